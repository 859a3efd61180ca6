"""The base classes of action formats for worlds without a shell, such as games and questions: an action is an
answer in text, or one tool call."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

from air.actions.base import Action, ActionFormat, FormatError, Message, Standing
from air.actions.tool_schemas import CALL_FORM, Toolbox

_BEGINS_CALL = re.compile(r'\s*\{\s*"(?:name|arguments)"\s*:')


class WorldFormat(ActionFormat, ABC):
    """The base class of action formats for worlds without a shell. The actions are answers, or calls of the
    world's tools. `tools` are the tools' schemas, in the format of the field `tools` in OpenAI's API."""

    scripts = False
    optional: Mapping[str, str] = {}
    uses_tools = False
    retries: int | None = None

    def __init__(self, tools: Sequence[Mapping[str, Any]] = (), *, answers: bool = False) -> None:
        self.toolbox = Toolbox(tools)
        self.answers = answers
        """Whether the world (what the agent acts in), although it has tools, also accepts an answer in words:
        plain text that is no tool call."""

    def with_tools(self, tools: Sequence[Mapping[str, Any]], *, answers: bool = False) -> Self:
        return type(self)(tools, answers=answers)

    @abstractmethod
    def read(self, message: Message) -> Action:
        """Parses a message that contains exactly one action, and returns the action. Raises FormatError,
        whose text the model sees, if `message` does not have exactly one action."""

    @abstractmethod
    def written(self, thought: str, action: Action) -> str:
        """Returns a reply in this format that consists of `thought` and `action`. Unlike `render`, does not
        check whether the reply, when parsed, gives this action again."""

    def parse(self, reply: str) -> Action:
        return self.read(Message(reply))

    def render(self, thought: str, action: Action) -> str:
        """Returns a reply in this format that consists of `thought` and `action`, as scripted agents
        (programs that play in place of a model) write it. Raises ValueError if the format cannot express the
        action."""
        reply, fault = self.written(thought, action), ""
        try:
            again: Action | None = self.parse(reply)
        except FormatError as error:
            again, fault = None, f" ({error})"
        if again != action:
            raise ValueError(f"{self.name} cannot express {action!r:.200}{fault}")
        return reply

    def opening(self, standing: Standing) -> str:
        return ""

    def footer(self, standing: Standing) -> str:
        return "" if standing.left is None else f"\n[{standing.left} turns left]"


class AnswerFormat(WorldFormat):
    """The base class of formats whose reply contains exactly one answer: a text, such as a move in a game, in
    the form that the world (what the agent acts in) explains to the model.

    In a world with tools, the answer is one tool call instead, written as a JSON object (`{"name": …,
    "arguments": {…}}`). If such a world also accepts answers in words, text that begins like a JSON call is
    parsed as a call, and any other text is an answer. A subclass defines which part of a reply is the
    answer.
    """

    form: str
    """The instructions for the model on how to write a reply, without the description of tools."""

    @property
    def instructions(self) -> str:
        if not self.toolbox:
            return self.form
        call = f"The answer is one call of a tool, as a JSON object: {CALL_FORM}"
        if self.answers:
            call += "\nOr, when you need no tool any more, it is your final answer in words."
        return "\n".join([self.form, call, self.toolbox.described])

    @abstractmethod
    def answer_in(self, message: Message) -> str:
        """Returns the text of the answer in a message. Raises FormatError if there is not exactly one
        answer."""

    @abstractmethod
    def reply_with(self, thought: str, answer: str) -> str:
        """Returns a reply in this format that consists of a thought and the text of an answer."""

    def read(self, message: Message) -> Action:
        answer = self.answer_in(message)
        if not answer.strip():
            raise FormatError(f"Format error: the answer is empty. {self.form}")
        if self.toolbox and not (self.answers and not _BEGINS_CALL.match(answer)):
            return Action(tool=self.toolbox.parse(answer))
        return Action(answer=answer)

    def written(self, thought: str, action: Action) -> str:
        return self.reply_with(thought, action.tool.text if action.tool else action.answer)
