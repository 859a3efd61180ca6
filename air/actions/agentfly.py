"""Four action formats, those of the agents of AgentFly (another framework that trains agents): `action`,
`code`, `bash_swe` and `react_input`.

    action       the text between `<action>` and `</action>`
    code         the text of the only ```python block
    bash_swe     the text of the first ```bash block; if it contains the value of `DONE`, the episode ends
    react_input  `Action:` and a tool's name, then `Input:` and the arguments as JSON; or `Answer:` and text

`action`, `code` and `bash_swe` need a world (what the agent acts in) with at most one tool, which has exactly
one required argument, a string. The action's text becomes this argument or, in a world without tools, the
answer. If the world accepts answers in words (plain text that is no tool call), a reply without an action is
an answer, too. In `react_input` an answer needs `Answer:`.

Thoughts before `</think>` are ignored. So is text after the action, as in AgentFly. In `react_input`, the
ignored text begins at the next label, such as `Observation:`. The reply itself is not shortened, so the
sampled tokens are unchanged.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from air.actions.base import Action, FormatError, Message
from air.actions.tool_schemas import Toolbox
from air.actions.world_format import WorldFormat
from air.errors import ConfigError

DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The word with which a `bash_swe` command ends the episode. If a command contains this word, it is the last
one, and its output is the final answer."""
END = "end task"
"""The text with which an action of the format `action` ends the episode, if the world (what the agent acts
in) accepts answers in words: such an action is an answer and not a tool call. Upper and lower case are
equivalent."""
_LABELS = ("Thought", "Action", "Input", "Observation", "Answer")


class OneTool(WorldFormat):
    """The base class of formats whose action is a single text: the argument of the only tool of the world
    (what the agent acts in) or, in a world without tools, the answer."""

    form: str
    """The instructions for the model on how to write an action."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] = (), *, answers: bool = False) -> None:
        super().__init__(tools, answers=answers)
        self._argument = _text_argument(self.name, self.toolbox) if self.toolbox else ""

    @property
    def instructions(self) -> str:
        lines = [self.form]
        if self.toolbox:
            lines.append(f"It is passed on to this tool: {self.toolbox.described}")
        if self.toolbox and self.answers:
            lines.append(
                "When you need the tool no more, reply with your final answer, without it."
            )
        return "\n".join(lines)

    @abstractmethod
    def action_in(self, text: str) -> str | None:
        """Returns the text of the action in `text`, a reply without its thought; None if the reply has no
        action. Raises FormatError if the action's markup is malformed."""

    @abstractmethod
    def action_of(self, text: str) -> str:
        """Writes an action in this format: returns `text` inside the format's markup, such as
        `<action>…</action>`. The inverse of `action_in`."""

    def read(self, message: Message) -> Action:
        text = _after_thought(message)
        action = self.action_in(text)
        if action is not None and not action.strip():
            raise FormatError(f"Format error: the action is empty. {self.form}")
        if action is None or not self.toolbox:
            if action is None and not self.answers:
                raise FormatError(f"Format error: no action found. {self.form}")
            return Action(answer=_answer(text if action is None else action))
        return self.call(action)

    def call(self, text: str) -> Action:
        """Returns the action that calls the only tool of the world (what the agent acts in) with `text` as
        its argument."""
        name = self.toolbox.names[0]
        return Action(tool=self.toolbox.checked(name, {self._argument: text}))

    def written(self, thought: str, action: Action) -> str:
        thought = f"<think>{thought}</think>\n" if thought else ""
        if action.tool is not None:
            text = str((action.tool.arguments or {}).get(self._argument, ""))
            return thought + self.action_of(text)
        return thought + (action.answer if self.toolbox else self.action_of(action.answer))


class ActionTag(OneTool):
    """The action format `action`: the action is the text between `<action>` and `</action>`."""

    name = "action"
    form = "Think between <think> and </think>, then act: <action>your action</action>"

    def action_in(self, text: str) -> str | None:
        start, end = text.find("<action>"), text.find("</action>")
        if start < 0 or end < start:
            if start >= 0 or end >= 0:
                raise FormatError(f"Format error: <action> has no beginning or no end. {self.form}")
            return None
        return text[start + len("<action>") : end].strip()

    def action_of(self, text: str) -> str:
        return f"<action>{text}</action>"

    def call(self, text: str) -> Action:
        if self.answers and text.casefold() == END:
            return Action(answer=text)
        return super().call(text)


class Code(OneTool):
    """The action format `code`: the action is the text of the only ```python block."""

    name = "code"
    form = (
        "Solve the question step by step. In each step, reply with exactly one block that begins with a line "
        "```python and ends with a line ```. Its output comes back."
    )

    def action_in(self, text: str) -> str | None:
        blocks = _blocks(text, ("python",))
        if len(blocks) > 1 and not self.answers:
            raise FormatError(f"Format error: {len(blocks)} blocks found. Write exactly one.")
        return blocks[0] if len(blocks) == 1 else None

    def action_of(self, text: str) -> str:
        return f"```python\n{text}\n```"


class BashSwe(OneTool):
    """The action format `bash_swe`: the action is the text of the first ```bash block."""

    name = "bash_swe"
    form = (
        "Reply with a short thought and one block that begins with a line ```bash and ends with a line ```. "
        f"Its output comes back. When you are done, a command with `echo {DONE}` ends the task."
    )

    def action_in(self, text: str) -> str | None:
        return next(iter(_blocks(text, ("bash", "mswea_bash_command"))), None)

    def action_of(self, text: str) -> str:
        return f"```bash\n{text}\n```"

    def call(self, text: str) -> Action:
        call = super().call(text)
        return Action(tool=call.tool, ending="submit" if DONE in text else None)


class ReactInput(WorldFormat):
    """The action format `react_input`: `Action:` and `Input:` call a tool, or `Answer:` gives an answer."""

    name = "react_input"

    @property
    def instructions(self) -> str:
        form = "Thought: your thoughts\nAction: the name of a tool\nInput: its arguments, a JSON object"
        lines = [f"Reply in this form, and stop after it:\n{form}", self.toolbox.described]
        if self.answers or not self.toolbox:
            lines.append("When you are done, write a line that begins with `Answer:` instead.")
        return "\n".join(lines)

    def read(self, message: Message) -> Action:
        parts = _parts(_after_thought(message))
        if "Action" in parts and self.toolbox:
            name, arguments = parts["Action"], parts.get("Input")
            if arguments is None:
                raise FormatError("Format error: no `Input:` follows the action.")
            return Action(tool=self.toolbox.checked(name, arguments or "{}"))
        if self.toolbox and not self.answers:
            raise FormatError("Format error: no `Action:` found. Write `Action:`, then `Input:`.")
        if "Answer" not in parts:
            raise FormatError("Format error: neither `Action:` nor `Answer:` found.")
        return Action(answer=_answer(parts["Answer"]))

    def written(self, thought: str, action: Action) -> str:
        if action.tool is None:
            return f"Thought: {thought}\nAnswer: {action.answer}"
        name, arguments = action.tool.name, action.tool.arguments or {}
        return f"Thought: {thought}\nAction: {name}\nInput: {_json(arguments)}"


def _text_argument(name: str, toolbox: Toolbox) -> str:
    """Returns the name of the only required argument of the only tool in `toolbox`. Raises ConfigError if
    there are several tools, or if the tool does not have exactly one required argument, a string. `name` is
    the action format's name, for the error message."""
    tool = toolbox.names[0]
    parameters = toolbox.parameters(tool)
    needed = list(parameters.get("required") or ())
    properties = parameters.get("properties") or {}
    one_text = len(needed) == 1 and properties.get(needed[0], {}).get("type") == "string"
    if len(toolbox.names) > 1 or not one_text:
        raise ConfigError(
            f"the action format {name!r} writes one text, for a world's only tool, but this world has "
            f"{', '.join(f'`{each}`' for each in toolbox.names):.200}",
            where="env.agent.harness.format",
            remedy="offer one tool with one required text, or use tool_calls",
        )
    return str(needed[0])


def _after_thought(message: Message) -> str:
    """Returns the text of a message after the last `</think>`, or the whole text if there is no thought.
    Raises FormatError if `<think>` is not closed."""
    if "</think>" in message.text:
        return message.text.rpartition("</think>")[2]
    if "<think>" in message.text:
        raise FormatError("Format error: <think> is not closed by </think>.")
    return message.text


def _answer(text: str) -> str:
    if not (answer := text.strip()):
        raise FormatError("Format error: the answer is empty.")
    return answer


def _blocks(text: str, languages: Sequence[str]) -> list[str]:
    """Returns the text of each closed block between ``` fences whose language is one of `languages` (in lower
    case; the case in `text` does not matter). The opening fence and the language are not part of the text."""
    between = text.split("```")
    blocks = []
    for inside in between[1:-1:2]:
        language, *_ = inside.split(maxsplit=1) or [""]
        if language.casefold() in languages and inside.startswith(language):
            blocks.append(inside[len(language) :].strip())
    return blocks


def _parts(text: str) -> dict[str, str]:
    """Splits a reply at the labels in `_LABELS`, such as `Action:`, that begin a line. Returns a dict from
    each label that occurs, without the colon, to the text between this label and the next one. If a label
    occurs twice, the text after its first occurrence is returned."""
    parts: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.split("\n"):
        label, colon, rest = line.lstrip().partition(":")
        if colon and label in _LABELS:
            lines = [rest]
            parts.setdefault(label, lines)
        else:
            lines.append(line)
    return {label: "\n".join(one).strip() for label, one in parts.items()}


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(dict(value), ensure_ascii=False)
