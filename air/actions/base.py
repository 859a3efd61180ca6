"""Defines an agent's actions, and the interface of action formats.

An action format turns a model's reply into an action.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

Ending = Literal["validate", "submit"]


@dataclass(frozen=True)
class ToolCall:
    """A call of one of the action format's tools, which are not shell commands: `open "solve.py" 12`."""

    name: str
    args: tuple[str, ...] = ()
    """The arguments: the words after the tool's name, without quotes."""
    body: tuple[str, ...] | None = None
    """The lines of text that follow the call, without line ends; None if the tool takes no text."""

    @property
    def text(self) -> str:
        """The call as a model would write it, including the lines of text that follow the call."""
        lines = [" ".join([self.name, *map(shlex.quote, self.args)])]
        if self.body is not None:
            lines += [*self.body, f"end_of_{self.name}"]
        return "\n".join(lines)


@dataclass(frozen=True)
class Action:
    """An action of the agent: a shell script or a tool call, optionally followed by `validate` or `submit`.

    At least one of `script`, `tool` and `ending` is set; `script` and `tool` are never both set.
    """

    script: str = ""
    """The shell script, without `validate` or `submit`; empty if there is no script."""
    ending: Ending | None = None
    """`validate` grades the artefact. `submit` grades the artefact and ends the episode. None: the artefact
    is not graded."""
    tool: ToolCall | None = None
    """A call of one of the action format's own tools; None if there is no call."""

    @property
    def text(self) -> str:
        """The action as a model would write it, including `validate` or `submit`."""
        tool = self.tool.text if self.tool else ""
        return "\n".join(part for part in (self.script, tool, self.ending) if part)


@dataclass(frozen=True)
class Standing:
    """The agent's situation between two actions: remaining turns, working directory and open file."""

    left: int | None = None
    """The number of remaining turns; None if turns are not limited."""
    cwd: str = ""
    """The working directory of the agent's shell; empty if each script begins in the workspace."""
    open_file: str = ""
    """The file that the agent has opened with a tool, and the range of lines in view, as text; empty if no
    file is open."""


class FormatError(Exception):
    """Exception for a reply that is not a valid action. The model sees the message as feedback."""


@runtime_checkable
class ActionFormat(Protocol):
    """The interface of an action format, which turns a model's reply into an action.

    The format also provides the text that teaches the model how to write an action. An action format has no
    state.
    """

    name: str
    instructions: str
    """The part of the system prompt that teaches the model this format."""
    optional: Mapping[str, str]
    """Maps the name of each optional tool to the text that explains it to the model. The text of a tool is
    used only if the tool is available in the episode."""
    uses_tools: bool
    """Whether actions may be tool calls. If so, the working directory of the agent's shell is the same in the
    next action; if not, each script begins in the workspace."""
    retries: int | None
    """Number of consecutive replies that are allowed not to be a valid action. One more such reply ends the
    episode. None: no limit."""

    def parse(self, reply: str) -> Action:
        """Returns the one action that the model's reply contains.

        Raises:
            FormatError: the reply has no action, or more than one. The message explains this to the model.
        """
        ...

    def render(self, thought: str, action: Action) -> str:
        """Returns a well-formed reply that contains `thought` and `action`, as a model would write it.

        Scripted agents, which play an episode without a model, use this method.
        """
        ...

    def opening(self, standing: Standing) -> str:
        """Returns the text that ends the first prompt, after the task's description.

        Args:
            standing: the state of the episode at its start.
        """
        ...

    def footer(self, standing: Standing) -> str:
        """Returns the text that is added after every observation, such as the number of remaining turns."""
        ...
