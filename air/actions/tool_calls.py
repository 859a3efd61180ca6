"""The action formats `tool_calls` and `hermes`: an action is exactly one tool call.

In `tool_calls`, each request passes the tools' schemas to the model server, which renders them with the
model's chat template and parses the call from the reply. In `hermes`, the system prompt describes the tools.
Both formats accept a call that the server parsed. If the server parsed none, they parse a call from the text
after the thought: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. If the world (what the agent acts
in) accepts answers in words (plain text), a reply without a call is an answer. A world that has no tools and
does not accept answers in words gets one tool, `act`, whose argument is the action's text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from air.actions.base import Action, FormatError, Message, ToolCall
from air.actions.tags import after_thought, find_tagged_text
from air.actions.tool_schemas import CALL_FORM, Toolbox
from air.actions.world_format import WorldFormat

ACT: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "act",
        "description": "Acts in the world.",
        "parameters": {
            "type": "object",
            "properties": {"action": {"type": "string", "description": "the action, as text"}},
            "required": ["action"],
        },
    },
}
"""The schema of the tool `act`, by which the model acts if the world (what it acts in) has no tools and does
not accept answers in words (the field `WorldTask.answers` is false)."""
OR_ANSWER = "When you need no tool any more, reply with your final answer."
"""A sentence that is added to the instructions of a world with tools if the agent may also reply with an
answer in words (the field `WorldTask.answers`)."""


class ToolCalls(WorldFormat):
    """The `tool_calls` action format: each request passes the tools' schemas to the model server."""

    name = "tool_calls"

    def __init__(self, tools: Sequence[Mapping[str, Any]] = (), *, answers: bool = False) -> None:
        super().__init__(tools, answers=answers)
        self._offered = self.toolbox if tools or answers else Toolbox([ACT])

    @property
    def instructions(self) -> str:
        if not self._offered:
            return "Think, then reply with your answer."
        call = "Think, then call exactly one tool in each reply."
        return f"{call} {OR_ANSWER}" if self.answers else call

    @property
    def request_tools(self) -> Sequence[Mapping[str, Any]]:
        return self._offered.schemas

    def read(self, message: Message) -> Action:
        if self.answers and not (message.tool_calls or self._has_call(message)):
            return Action(answer=_answer(message))
        call = self._call(message)
        if self.answers or self.toolbox:
            return Action(tool=call)
        action = (call.arguments or {})["action"]
        if not action.strip():
            raise FormatError(
                "Format error: the action is empty. Put it into the argument `action`."
            )
        return Action(answer=action)

    def _has_call(self, message: Message) -> bool:
        return "tool_call>" in message.text and bool(self._offered)

    def _call(self, message: Message) -> ToolCall:
        if len(message.tool_calls) > 1:
            raise FormatError(
                f"Format error: {len(message.tool_calls)} tool calls found. Make exactly one."
            )
        for call in message.tool_calls:
            return self._offered.checked(call.name, call.arguments, by_server=True)
        tagged = find_tagged_text(after_thought(message, ("tool_call",)), "tool_call")
        if tagged is None:
            known = ", ".join(self._offered.names)
            raise FormatError(
                "Format error: no complete tool call found. Call exactly one of these tools, with "
                f"arguments that are valid JSON: {known}."
            )
        return self._offered.parse(tagged.inside)

    def written(self, thought: str, action: Action) -> str:
        if self.answers and action.tool is None:
            return f"<think>{thought}</think>\n{action.answer}" if thought else action.answer
        call = action.tool or ToolCall("act", arguments={"action": action.answer})
        return f"{thought}\n<tool_call>\n{call.text}\n</tool_call>"

    def observation(self, message: Message, shown: str) -> list[dict[str, Any]]:
        if not message.tool_calls:
            # Chat templates write messages of the role `tool` in this form, too.
            called = "<tool_call>" in message.text
            content = f"<tool_response>\n{shown}\n</tool_response>" if called else shown
            return [{"role": "user", "content": content}]
        return super().observation(message, shown)


class Hermes(ToolCalls):
    """The `hermes` action format: the system prompt describes the tools."""

    name = "hermes"

    @property
    def instructions(self) -> str:
        if not self._offered:
            return super().instructions
        return (
            "Think, then call exactly one tool in each reply, as JSON in this form:\n"
            f"<tool_call>\n{CALL_FORM}\n</tool_call>\n{self._offered.described}"
            + (f"\n{OR_ANSWER}" if self.answers else "")
        )

    @property
    def request_tools(self) -> Sequence[Mapping[str, Any]]:
        return ()


def _answer(message: Message) -> str:
    """Returns the text of a message after its thought. Raises FormatError if this text is empty or the
    thought is malformed."""
    if not (text := after_thought(message, ("tool_call",)).strip()):
        raise FormatError("Format error: the reply is empty. Write your answer.")
    return text
