"""Runs the loop of one completion of a text: lets the model continue the text up to the end of a tool call,
performs the call, and appends its result, until the model ends the text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from air.errors import BoxEndedError
from air.serve.tools.model_endpoint import ChatState, Model
from air.serve.tools.sessions import BOX_ENDED, Session
from air.serve.tools.verl_tool_calls import ParsedCall, read
from air.serve.tools.verl_tool_protocol import LONGEST_REPLY


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
        end; they are not part of the text. `sampling` has further fields of the requests to the model.

        The text also ends when the model stops by itself or at the limit of tokens, when a reply stopped at
        the end of a call has no call of a tool that exists, and when a tool ends the episode.

        Raises the errors of `Model.complete` and `Session.call`, except for BoxEndedError: if the model's own
        commands ended the box (container) of its tools, the text says so and goes on.
        """
        state = ChatState()
        while True:
            is_last = state.turns + 1 >= self.max_turns
            ends = [] if is_last else self.call_ends
            stops = list(dict.fromkeys([*stop, *ends]))
            settings = {**sampling, "stop": stops} if stops else sampling
            reply = await self.model.complete(prompt + state.text, settings)
            state.count(reply.usage)
            state.reason = reply.reason
            is_call = reply.stopped_at in ends
            written = reply.text + (reply.stopped_at if is_call else "")
            state.text += written
            result = await self._result(state, session, written) if is_call else None
            if result is None:
                return state
            state.text += result

    async def _result(self, state: ChatState, session: Session, reply: str) -> str | None:
        """Performs the tool call in a reply, and returns the text to append: the result, in the syntax that
        matches the call. Returns None if the completion ends here."""
        call = read(reply, self.tools) if len(reply) <= LONGEST_REPLY else None
        if not isinstance(call, ParsedCall) or call.tool not in self.tools:
            return None
        state.calls.append(call.tool)
        try:
            result = await session.call(call.tool, call.arguments)
        except BoxEndedError:
            return call.format_observation(BOX_ENDED)  # the model can still answer
        if result.status == "finish":
            return None
        return call.format_observation(result.observation.strip(" \n"))
