"""Defines an agent's actions, and the interface of action formats, which parse the replies of a model as
actions."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self, runtime_checkable

from air.errors import ConfigError

Ending = Literal["validate", "submit"]


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool by the tool's name, such as `open "solve.py" 12`. A shell script is not a `ToolCall`
    but the field `script` of an `Action`."""

    name: str
    args: tuple[str, ...] = ()
    """The arguments by position: the words after the tool's name, without quotes. Empty if the action format
    gives the arguments by name, in `arguments`."""
    body: tuple[str, ...] | None = None
    """The lines of text that follow the call, without line ends; None if the tool takes no text."""
    arguments: Mapping[str, Any] | None = None
    """The arguments by name, as JSON values; None if the action format has only the words in `args`."""

    @property
    def text(self) -> str:
        """The call as a model would write it, including the lines of text that follow it. A call with
        arguments by name is written as a JSON object."""
        if self.arguments is not None:
            call = {"name": self.name, "arguments": dict(self.arguments)}
            return json.dumps(call, ensure_ascii=False)
        lines = [" ".join([self.name, *map(shlex.quote, self.args)])]
        if self.body is not None:
            lines += [*self.body, f"end_of_{self.name}"]
        return "\n".join(lines)


@dataclass(frozen=True)
class Action:
    """An action of the agent. In research tasks: a shell script or a tool call, optionally followed by
    `validate` (grades the work so far) or `submit` (also ends the episode). In worlds without a shell, such
    as games: an answer or a tool call.

    At least one of `script`, `tool`, `ending` and `answer` is set. Of these fields, `script`, `tool` and
    `answer` exclude each other.
    """

    script: str = ""
    """The shell script, without `validate` or `submit`; empty if there is no script."""
    ending: Ending | None = None
    """`validate` grades the artefact (the files that the task asks for); `submit` also ends the episode.
    None: the artefact is not graded."""
    tool: ToolCall | None = None
    """The tool call; None if the action calls no tool."""
    answer: str = ""
    """The action in a world without a shell, as text: one or more moves, or an answer. Empty if there is
    none."""
    message: Message | None = field(default=None, compare=False, repr=False)
    """The model's message from which the action was parsed; None if the action did not come from a model."""

    @property
    def text(self) -> str:
        """The action as a model would write it, including a final `validate` or `submit` (the field
        `ending`)."""
        tool = self.tool.text if self.tool else ""
        return "\n".join(part for part in (self.script, tool, self.answer, self.ending) if part)


@dataclass(frozen=True)
class Standing:
    """The agent's situation between two actions: remaining turns, working directory and open file."""

    left: int | None = None
    """The number of remaining turns; None if turns are not limited."""
    cwd: str = ""
    """The working directory of the agent's shell; empty if each script begins in the workspace."""
    open_file: str = ""
    """The open file and the lines in view, such as `/work/a.py, lines 1-80 of 120`; empty if no file is
    open."""


class FormatError(Exception):
    """Raised for a reply that is not a valid action. The model sees the exception's message as feedback."""


@dataclass(frozen=True)
class MessageCall:
    """A tool call that the model server found in a reply. The reply's text no longer contains the call."""

    id: str
    """The id that the message with the tool's result must repeat; empty if the server gave none."""
    name: str
    arguments: str
    """The arguments of the tool call, as text: a JSON object."""


@dataclass(frozen=True)
class Message:
    """A reply of the model. `text` lacks the tool calls and the reasoning that the model server returned
    separately."""

    text: str
    tool_calls: tuple[MessageCall, ...] = ()
    reasoning: str = ""
    """The reasoning that the server returned separately from the text; empty if there is none."""


@runtime_checkable
class TextFormat(Protocol):
    """Protocol of an action format that reads only the text of a reply. An action format defines how the
    model must write an action, and parses the model's replies into actions. It has no state."""

    name: str
    optional: Mapping[str, str]
    """The explanations of the optional tools, by the tool's name. An optional tool is available only if the
    run or the task allows it. The prompt contains the explanations of the available ones."""
    uses_tools: bool
    """Whether actions may be calls of the tools of research tasks, such as `open` and `edit`. If so, the
    shell keeps its working directory between actions; if not, each script begins in the workspace."""
    retries: int | None
    """The number of consecutive invalid replies that an episode survives; one more ends the episode. None: no
    limit."""

    @property
    def instructions(self) -> str:
        """The part of the system prompt that teaches the model this format."""
        ...

    def parse(self, reply: str) -> Action:
        """Parses a reply that contains exactly one action. Raises FormatError, with a message for the
        model, for any other reply."""
        ...

    def render(self, thought: str, action: Action) -> str:
        """Returns a reply in this format that consists of `thought` and `action`. Scripted agents (programs
        that play in place of a model) write their replies with it."""
        ...

    def opening(self, standing: Standing) -> str:
        """Returns the text that ends the first prompt, after the task's description; an empty string if there
        is none. `standing` is the agent's situation at the start, which the text can show."""
        ...

    def footer(self, standing: Standing) -> str:
        """Returns the text that is added after every observation, such as the number of remaining turns; an
        empty string if there is none. `standing` is the agent's situation after the observed action."""
        ...


@runtime_checkable
class ActionFormat(TextFormat, Protocol):
    """The interface of an action format, which parses a model's message as an action. A format has no
    state.

    The members below have defaults, which suit a format that reads only text and offers no tools.
    """

    scripts: bool = True
    """Whether actions may be shell scripts. Research tasks need them."""

    @property
    def request_tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools' schemas that each request passes to the model server, in the format of the field `tools`
        in OpenAI's API; empty if the requests pass none."""
        return ()

    def with_tools(self, tools: Sequence[Mapping[str, Any]], *, answers: bool = False) -> Self:
        """Returns this format for a world (what the agent acts in) that offers `tools`: schemas in the format
        of the field `tools` in OpenAI's API. `answers` says whether the world also accepts answers in words:
        plain text that is no tool call. Raises ConfigError if the format cannot call the tools."""
        if tools:
            raise ConfigError(
                f"the action format {self.name!r} cannot call the tools of this world",
                where="env.agent.harness.format",
                remedy="use tool_calls, or another format that can",
            )
        return self

    def read(self, message: Message) -> Action:
        """Parses a message that contains exactly one action, and returns the action. Raises FormatError,
        whose text the model sees, if `message` does not have exactly one action."""
        return self.parse(message.text)

    def observation(self, message: Message, shown: str) -> list[dict[str, Any]]:
        """Returns the chat messages, in the format of OpenAI's API, that show the text `shown` to the model
        after `message`. If the server parsed tool calls from `message`, there is one message with the role
        `tool` for each call, as the protocol requires."""
        if not message.tool_calls:
            return [{"role": "user", "content": shown}]
        return [
            {"role": "tool", "tool_call_id": call.id, "content": shown}
            for call in message.tool_calls
        ]
