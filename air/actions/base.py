"""What an action is, and the contract of an action format."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

Ending = Literal["validate", "submit"]


@dataclass(frozen=True)
class ToolCall:
    """One use of a tool that is no shell command: `open "solve.py" 12`."""

    name: str
    args: tuple[str, ...] = ()
    """The words after the name, unquoted."""
    body: tuple[str, ...] | None = None
    """The lines that come with it, without line ends; None where the tool takes none."""

    @property
    def text(self) -> str:
        """The call as a model would write it."""
        lines = [" ".join([self.name, *map(shlex.quote, self.args)])]
        if self.body is not None:
            lines += [*self.body, f"end_of_{self.name}"]
        return "\n".join(lines)


@dataclass(frozen=True)
class Action:
    """One step in a research world: a shell script or a tool call, then perhaps an ending.

    At least one of the three is there; a script and a tool call are never there together.
    """

    script: str = ""
    """The shell script, without the ending; empty where there is none."""
    ending: Ending | None = None
    """What follows: grade the artefact, or grade it and end the episode."""
    tool: ToolCall | None = None
    """A tool of the format's own."""

    @property
    def text(self) -> str:
        """The action as the model wrote it, ending included."""
        tool = self.tool.text if self.tool else ""
        return "\n".join(part for part in (self.script, tool, self.ending) if part)


@dataclass(frozen=True)
class Standing:
    """Where the agent stands between two actions."""

    left: int | None = None
    """Turns left; None where nothing limits them."""
    cwd: str = ""
    """The working directory of its shell; empty where none is kept."""
    open_file: str = ""
    """The file that its tools work on, and which lines are in view; empty where there is none."""


class FormatError(Exception):
    """The text is no action. Its message is the feedback that the model is shown."""


@runtime_checkable
class ActionFormat(Protocol):
    """Turns a model's reply into an action. Stateless."""

    name: str
    instructions: str
    """The part of the system prompt that teaches the format."""
    optional: Mapping[str, str]
    """What else is taught where a tool is on offer, by the tool's name."""
    uses_tools: bool
    """Whether its actions hold tool calls and its shell keeps a working directory."""
    retries: int | None
    """How many format errors in a row are asked again; one more ends the episode. None: all."""

    def parse(self, reply: str) -> Action:
        """The action in `reply`.

        Raises:
            FormatError: there is none, or more than one; the message is the feedback.
        """
        ...

    def render(self, thought: str, action: Action) -> str:
        """A well-formed reply: what a scripted agent says."""
        ...

    def opening(self, standing: Standing) -> str:
        """What follows the task in the first prompt."""
        ...

    def footer(self, standing: Standing) -> str:
        """What follows every observation."""
        ...
