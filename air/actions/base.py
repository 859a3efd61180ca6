"""The actions of an agent, and the interface of an action format."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

Ending = Literal["validate", "submit"]


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool that is not a shell command, such as `open "solve.py" 12`."""

    name: str
    args: tuple[str, ...] = ()
    """The words after the tool's name, without their quotes."""
    body: tuple[str, ...] | None = None
    """The lines of text that follow the call, without line ends; None if the tool takes no text."""

    @property
    def text(self) -> str:
        """The call as a model would write it, with its lines of text."""
        lines = [" ".join([self.name, *map(shlex.quote, self.args)])]
        if self.body is not None:
            lines += [*self.body, f"end_of_{self.name}"]
        return "\n".join(lines)


@dataclass(frozen=True)
class Action:
    """An action of the agent: a shell script or a tool call, optionally followed by `validate` or `submit`.

    At least one of the three fields is set; `script` and `tool` are never both set.
    """

    script: str = ""
    """The shell script, without `validate` or `submit`; empty if there is no script."""
    ending: Ending | None = None
    """`validate` grades the artefact; `submit` grades it and ends the episode; None does neither."""
    tool: ToolCall | None = None
    """A call of one of the action format's own tools; None if there is no call."""

    @property
    def text(self) -> str:
        """The action as a model would write it, including `validate` or `submit`."""
        tool = self.tool.text if self.tool else ""
        return "\n".join(part for part in (self.script, tool, self.ending) if part)


@dataclass(frozen=True)
class Standing:
    """The agent's situation between two actions: turns left, working directory and open file."""

    left: int | None = None
    """The number of turns left; None if turns are not limited."""
    cwd: str = ""
    """The working directory of the agent's shell; empty if each script begins in the workspace."""
    open_file: str = ""
    """The path of the file that is open in the tools, and its lines in view; empty if no file is open."""


class FormatError(Exception):
    """The model's reply is not an action. The message is shown to the model as feedback."""


@runtime_checkable
class ActionFormat(Protocol):
    """Turns a model's reply into an action, and teaches the model how to write one. Has no state."""

    name: str
    instructions: str
    """The part of the system prompt that teaches the model this format."""
    optional: Mapping[str, str]
    """Maps an optional tool's name to the text that teaches it; used only if the tool is available."""
    uses_tools: bool
    """Whether actions may be tool calls, and the agent's shell keeps its working directory."""
    retries: int | None
    """Consecutive format errors after which the model may try again; one more ends the episode. None: no
    limit."""

    def parse(self, reply: str) -> Action:
        """Returns the action in the model's reply.

        Raises:
            FormatError: the reply has no action, or more than one; the message tells the model why.
        """
        ...

    def render(self, thought: str, action: Action) -> str:
        """Returns a well-formed reply with this thought and action; scripted agents use it."""
        ...

    def opening(self, standing: Standing) -> str:
        """Returns the text that follows the task's description in the first prompt."""
        ...

    def footer(self, standing: Standing) -> str:
        """Returns the text that follows every observation."""
        ...
