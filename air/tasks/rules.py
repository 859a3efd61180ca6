"""The interface `Rules` for tasks that are not played and graded as air's own tasks are, such as Harbor's."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from air.sandbox.contract.box import Box, BoxSpec


@dataclass(frozen=True)
class Artefact:
    """The files that an agent hands in for grading."""

    files: Mapping[str, bytes]
    """The contents of each file, by its path relative to the agent's workspace."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the files' names and bytes, in hex. Artefacts with equal digests get equal scores. The
        digest is computed once; `collect` does this in a thread."""
        digest = hashlib.sha256()
        for name, data in sorted(self.files.items()):
            encoded = os.fsencode(name)
            digest.update(b"%d %s %d\n" % (len(encoded), encoded, len(data)))
            digest.update(data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Outcome:
    """The result of one run of a grader: metrics, or a message for the agent if its artefact is bad."""

    metrics: dict[str, float] = field(default_factory=dict)
    message: str = ""
    remember: bool = True
    """Whether the result is allowed to be cached."""
    seconds: float = 0.0
    fault: str = ""
    """How the grader failed on the artefact both times; empty if it did not fail."""


@dataclass(frozen=True)
class ToolServer:
    """A server of the Model Context Protocol whose tools a task offers to its agent."""

    name: str
    """A short name: letters, digits, `_` and `-`."""
    command: tuple[str, ...] = ()
    """The program and its arguments, which runs in the agent's box; empty if the server is remote."""
    user: str | None = None
    """The user that runs the program. None: the box's default user."""
    url: str = ""
    """The address of a remote server."""
    transport: str = "stdio"
    """`stdio`, `streamable-http` or `sse`."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of each request to `url`."""
    hosts: tuple[str, ...] = ()
    """The hosts that the task's network settings open."""


class Rules(Protocol):
    """Stages, collects and grades a task in another way than air's own tasks.

    The task has one or more steps, numbered from 0. Each has an instruction and a grading. The task's metric
    of a grading is the reward of its step.
    """

    @property
    def steps(self) -> int:
        """The number of steps."""
        ...

    @property
    def shared(self) -> bool:
        """Whether the agent's own box is the one in which its work is graded."""
        ...

    @property
    def images(self) -> Sequence[str]:
        """The images of all boxes of the task. The image of the agent's box comes first."""
        ...

    @property
    def tool_servers(self) -> Sequence[ToolServer]:
        """The servers whose tools the agent gets, for the whole episode."""
        ...

    def instruction(self, step: int) -> str:
        """Returns the text that the agent gets at the beginning of a step."""
        ...

    def total(self, rewards: Sequence[float | None], *, ended: bool) -> float:
        """Returns the task's score after steps with these `rewards`. A reward of None means that grading
        failed; it counts as the lowest reward. `ended`: whether the agent ended the episode before its last
        step."""
        ...

    def goes_on(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Whether another step follows the step `step`, whose grading gave `metrics`."""
        ...

    def agent_box(self) -> BoxSpec:
        """Returns the settings of the agent's box."""
        ...

    def grading_box(self, artefact: Artefact) -> BoxSpec:
        """Returns the settings of the fresh box in which an artefact is graded."""
        ...

    def check(self) -> None:
        """Raises ConfigError if the run's settings lack something that grading needs, such as a variable."""
        ...

    async def stage(self, box: Box, step: int) -> None:
        """Prepares the agent's box for a step. Raises StagingError if a command in it fails."""
        ...

    async def solve(self, box: Box, step: int) -> str:
        """Runs the reference solution of all steps up to `step` in a new agent's box. Returns what went
        wrong, or "". Raises MissingError if there is no solution, and ConfigError if the solution needs a
        missing setting."""
        ...

    async def collect(self, box: Box, step: int) -> Artefact:
        """Reads the artefact of a step from the agent's box. Raises ArtefactError if it cannot be graded."""
        ...

    def step_of(self, artefact: Artefact) -> int:
        """Returns the step to which an artefact belongs."""
        ...

    def untouched(self, step: int) -> Artefact:
        """Returns the artefact of an agent that did nothing."""
        ...

    async def grade(self, box: Box, artefact: Artefact) -> Outcome:
        """Grades an artefact in the fresh box `box`. Raises GradingError if there is no valid reward."""
        ...

    async def grade_shared(self, box: Box, step: int) -> Outcome:
        """Grades a step's work in the agent's own box, as `grade` does."""
        ...
