"""Runs the loop of one completion of a text: lets the model continue the text up to the end of a tool call,
performs the call, and appends its result, until the model ends the text."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from air.errors import BoxEndedError
from air.serve.tools.model_endpoint import ChatState, Model, ModelRefused, TextReply
from air.serve.tools.sessions import BOX_ENDED, Session
from air.serve.tools.verl_tool_calls import ParsedCall, read
from air.serve.tools.verl_tool_protocol import LONGEST_REPLY

LEAST_TOKENS = 16
"""If the endpoint refuses a request, it is asked for half as many tokens, down to this number."""
_CONTROL = re.compile(
    r"<(?=[|\uff5c][^|\uff5c<>\n]{1,60}[|\uff5c]>|(?:start|end)_of_turn>|/?s>)|\[(?=/?INST\])"
)
"""The first character of a control token of a chat template, such as `<|im_end|>`."""


@dataclass(frozen=True)
class CompletionLoop:
    """What all completions of one server have in common."""

    model: Model
    tools: Collection[str]
    """The names of the tools that the model can call."""
    call_ends: Sequence[str]
    """The strings at which the model is stopped, because a tool call may end there."""
    max_turns: int
    """The maximum number of replies. In the last one, the model is not stopped at tool calls, so that it can
    end the text."""

    async def run(
        self, session: Session, prompt: str, stop: Sequence[str], sampling: Mapping[str, Any]
    ) -> ChatState:
        """Lets the model continue `prompt`, and returns the final state, whose `text` has all replies and
        results. `session` has the opened tools. `stop` are the strings at which the client wants the text to
        end; they are not part of the text. `sampling` has further fields of the requests to the model, among
        them `max_tokens`.

        The text also ends when the model stops by itself or at the limit of tokens, when a reply stopped at
        the end of a call has no call of a tool that exists (as with Agent0, whose tool server ends at invalid
        actions), when a tool ends the episode, and, with the reason `length`, when the endpoint takes no
        longer text.

        Raises the errors of `Model.complete` and `Session.call`, except for BoxEndedError: if the model's own
        commands ended the box (container) of its tools, the text says so and goes on.
        """
        state = ChatState()
        while True:
            is_last = state.turns + 1 >= self.max_turns
            ends = [] if is_last else self.call_ends
            stops = list(dict.fromkeys([*stop, *ends]))
            settings = {**sampling, "stop": stops} if stops else sampling
            reply = await self._continued(prompt, state, settings, ends)
            if reply is None:
                state.reason = "length"
                return state
            state.count(reply.usage)
            state.reason = reply.reason
            is_call = reply.stopped_at in ends
            written = reply.text + (reply.stopped_at if is_call else "")
            state.text += written
            result = await self._result(state, session, written) if is_call else None
            if result is None:
                return state
            state.text += result

    async def _continued(
        self,
        prompt: str,
        state: ChatState,
        settings: Mapping[str, Any],
        ends: Collection[str],
    ) -> TextReply | None:
        """Returns the model's next reply, or None if the endpoint takes no longer text. A refused request may
        ask for more tokens than the context has left after the text: then a shorter reply may still fit. The
        server has no tokenizer to count them, so it asks for half as many. The arguments are those of `run`;
        `ends` are the call ends among the stops.

        Raises the errors of `Model.complete`. If the endpoint refuses the first request of a text even for a
        short reply, the prompt fills the context, or something else is wrong: this raises the first refusal,
        which concerns the client's own `max_tokens`. After an accepted request, a refusal is taken for a full
        context."""
        most: int = settings["max_tokens"]
        refusal: ModelRefused | None = None
        while True:
            try:
                return await self.model.complete(
                    prompt + state.text, {**settings, "max_tokens": most}, ends
                )
            except ModelRefused as error:
                refusal = refusal or error
            if most <= LEAST_TOKENS:
                break
            most = max(most // 2, LEAST_TOKENS)
        if not state.turns:
            raise refusal
        return None

    async def _result(self, state: ChatState, session: Session, reply: str) -> str | None:
        """Performs the tool call in a reply, and returns the text to append: the result, in the syntax that
        matches the call. Returns None if the completion ends here."""
        if len(reply) > LONGEST_REPLY:
            state.reason = "length"
            return None
        call = read(reply, self.tools)
        if not isinstance(call, ParsedCall) or call.tool not in self.tools:
            return None
        state.calls.append(call.tool)
        try:
            result = await session.call(call.tool, call.arguments)
        except BoxEndedError:
            return call.format_observation(BOX_ENDED)  # the model can still answer
        if result.status == "finish":
            return None
        observation = without_control_tokens(result.observation.strip(" \n"))
        return call.format_observation(observation)


def without_control_tokens(observation: str) -> str:
    """Returns `observation` with a space within each text that could be a control token of a chat template:
    `<|im_end|>` becomes `< |im_end|>`. Otherwise a page that a tool has read could end the tool's result and
    begin a message of the user, because the whole text goes to the endpoint as one prompt."""
    return _CONTROL.sub(lambda found: f"{found[0]} ", observation)
