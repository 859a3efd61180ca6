"""Defines the interface `Rules` of an object that prepares the agent's sandbox and grades the agent's files
for a task that has its own way of doing both, such as a task of Harbor (a framework that runs agents on tasks
in containers). Also defines the types that such an object uses."""

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
    """An agent's artefact: the files to grade, as they were read from the agent's box (sandbox)."""

    files: Mapping[str, bytes]
    """The contents of each file, by its path relative to the agent's workspace."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the files' names and contents, in hex. Artefacts with equal digests are the same for
        grading. The digest is computed at its first use and then kept."""
        digest = hashlib.sha256()
        for name, data in sorted(self.files.items()):
            encoded = os.fsencode(name)
            digest.update(b"%d %s %d\n" % (len(encoded), encoded, len(data)))
            digest.update(data)
        return digest.hexdigest()


@dataclass(frozen=True)
class GraderResult:
    """The result of one run of a grader: metrics by name, or a message for the agent if the grader cannot
    grade the agent's files (the artefact). `seconds` is the wall time of the run."""

    metrics: dict[str, float] = field(default_factory=dict)
    message: str = ""
    cacheable: bool = True
    """Whether the result may be cached and used again for an equal artefact."""
    seconds: float = 0.0
    fault: str = ""
    """The grader's error message if the grader failed on the artefact (the agent's files); otherwise empty.
    If the field `message` is set, the grader failed twice, and the artefact is at fault. If not, the grader
    failed once and computed the metrics in its second run. The agent does not get this error message."""


@dataclass(frozen=True)
class ToolServer:
    """A server of the Model Context Protocol (MCP) whose tools a task offers to its agent."""

    name: str
    """A short name: letters, digits, `_` and `-`."""
    command: tuple[str, ...] = ()
    """The command that starts the server in the agent's box (sandbox): program and arguments. Empty if the
    server is remote."""
    user: str | None = None
    """The name of the user that runs the program in the box (sandbox). None: the box's default user."""
    url: str = ""
    """The URL of a remote server; empty if the server runs in the box (sandbox)."""
    transport: str = "stdio"
    """How air talks to the server: `stdio`, `streamable-http` or `sse`."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """HTTP headers of each request to `url`."""
    hosts: tuple[str, ...] = ()
    """Names of the hosts that the task's network settings allow. The connection to a remote server reaches no
    other host."""


class Rules(Protocol):
    """The interface of an object that prepares a task's boxes (sandboxes), and collects and grades the
    artefacts (the agents' files), in another way than air does for its own tasks.

    The task has one or more stages, which Harbor calls steps. A parameter `step` is the number of a stage,
    from 0. Each stage has its own instruction and is graded once. Its reward is the value of the task's
    metric in that grade.
    """

    @property
    def steps(self) -> int:
        """The number of the task's stages, at least 1."""
        ...

    @property
    def shared(self) -> bool:
        """Whether the agent's work is graded in the agent's own box (sandbox) instead of a fresh one."""
        ...

    @property
    def images(self) -> Sequence[str]:
        """The names of the container images of all boxes (sandboxes) of the task. The image of the agent's
        box comes first."""
        ...

    @property
    def build_command(self) -> str:
        """The shell command that builds the images of the task's boxes (sandboxes)."""
        ...

    @property
    def tool_servers(self) -> Sequence[ToolServer]:
        """The servers of the Model Context Protocol (MCP) whose tools the agent gets for the whole
        episode."""
        ...

    def instruction(self, step: int) -> str:
        """Returns the text that the agent gets at the beginning of a stage."""
        ...

    def total(self, rewards: Sequence[float | None], *, ended: bool) -> float:
        """Returns the task's score from the rewards of the stages that the agent played, in their order. A
        reward of None means that grading the stage failed; it counts as the lowest reward. `ended`: whether
        the agent ended the episode before the task's last stage."""
        ...

    def goes_on(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Whether the episode continues with the next stage, after the stage numbered `step` was graded with
        the metrics `metrics`."""
        ...

    def agent_box(self) -> BoxSpec:
        """Returns the settings of the agent's box (sandbox)."""
        ...

    def grading_box(self, artefact: Artefact) -> BoxSpec:
        """Returns the settings of the fresh box (sandbox) in which an artefact (the agent's files) is
        graded."""
        ...

    def check(self) -> None:
        """Raises ConfigError if the run's settings lack a value that grading needs, such as an environment
        variable."""
        ...

    async def stage(self, box: Box, step: int) -> None:
        """Prepares the agent's box (sandbox) for a stage. Raises StagingError if a command of the task that
        prepares the box fails."""
        ...

    def has_solution(self, step: int) -> bool:
        """Returns true if the task has a reference solution of every stage from the first to the one with the
        number `step`, which counts from 0."""
        ...

    async def solve(self, box: Box, step: int) -> str:
        """Runs the reference solutions of the stages from the first to `step`, inclusive, in a new box
        (sandbox) of the agent. Returns a message if the script of a solution failed, otherwise an empty
        string. Raises MissingError if a solution is missing, and ConfigError if the run lacks a setting that
        the solution needs."""
        ...

    async def collect(self, box: Box, step: int) -> Artefact:
        """Reads the artefact (the files to grade) of a stage from the agent's box (sandbox). Raises
        ArtefactError if the artefact cannot be graded."""
        ...

    def step_of(self, artefact: Artefact) -> int:
        """Returns the number, from 0, of the task's stage to which an artefact (the agent's files)
        belongs."""
        ...

    def untouched(self, step: int) -> Artefact:
        """Returns the artefact (the files to grade) of an agent that did nothing in the stage numbered
        `step`."""
        ...

    async def grade(self, box: Box, artefact: Artefact) -> GraderResult:
        """Grades an artefact (the agent's files) in the fresh box (sandbox) `box`. Raises GradingError if
        grading produced no valid reward."""
        ...

    async def grade_shared(self, box: Box, step: int) -> GraderResult:
        """Grades the agent's work in a stage, in the agent's own box (sandbox). Raises GradingError if
        grading produced no valid reward."""
        ...
