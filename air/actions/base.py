"""An agent's actions, and the interface of action formats."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

Ending = Literal["validate", "submit"]


@dataclass(frozen=True)
class ToolCall:
    """A call of one of the action format's tools, which are not shell commands: `open "solve.py" 12`."""

    name: str
    args: tuple[str, ...] = ()
    """The arguments: the words after the tool's name, without quotes."""
    body: tuple[str, ...] | None = None
    """The lines of text that follow the call, without line ends; None if the tool takes no text."""
    arguments: Mapping[str, Any] | None = None
    """The arguments by name, as JSON values; None if the format has none, only the words in `args`."""

    @property
    def text(self) -> str:
        """The call as a model would write it, including the lines of text that follow the call."""
        lines = [" ".join([self.name, *map(shlex.quote, self.args)])]
        if self.body is not None:
            lines += [*self.body, f"end_of_{self.name}"]
        return "\n".join(lines)


@dataclass(frozen=True)
class Action:
    """An action of the agent: a shell script or a tool call, optionally followed by `validate` or `submit`;
    or, in worlds without a shell, an answer or a tool call.

    At least one of `script`, `tool`, `ending` and `answer` is set; only `ending` goes with another.
    """

    script: str = ""
    """The shell script, without `validate` or `submit`; empty if there is no script."""
    ending: Ending | None = None
    """`validate` grades the artefact; `submit` also ends the episode. None: the artefact is not graded."""
    tool: ToolCall | None = None
    """A call of one of the action format's own tools; None if there is no call."""
    answer: str = ""
    """An action as text, for a world that is no shell: a move, several moves, an answer."""

    @property
    def text(self) -> str:
        """The action as a model would write it, including `validate` or `submit`."""
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
    """The open file and the range of lines in view, as text; empty if no file is open."""


class FormatError(Exception):
    """Exception for a reply that is not a valid action. The model sees the message as feedback."""


@runtime_checkable
class ActionFormat(Protocol):
    """The interface of an action format, which turns a model's reply into an action. It has no state."""

    name: str
    instructions: str
    """The part of the system prompt that teaches the model this format."""
    optional: Mapping[str, str]
    """Maps each optional tool to the text that explains it to a model whose episode has it."""
    uses_tools: bool
    """Whether actions may be tool calls. If so, the shell's working directory lasts; if not, each script
    begins in the workspace."""
    retries: int | None
    """Number of consecutive invalid replies that do not end the episode. None: no limit."""

    def parse(self, reply: str) -> Action:
        """Returns the one action of a reply; raises FormatError, whose message the model sees."""
        ...

    def render(self, thought: str, action: Action) -> str:
        """Returns a well-formed reply with `thought` and `action`, as scripted agents write it."""
        ...

    def opening(self, standing: Standing) -> str:
        """Returns the text that ends the first prompt, after the task's description."""
        ...

    def footer(self, standing: Standing) -> str:
        """Returns the text that is added after every observation, such as the number of remaining turns."""
        ...
