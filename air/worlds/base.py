"""Defines the interface `World` (the environment in which an agent acts during one episode), and the data
types of its methods."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from air.sandbox.contract.result import Command, ExecResult
from air.tools.base import ToolError


class Refusal(ToolError):
    """Raised for an action that the world refuses to carry out. The agent sees the exception's message."""


@dataclass(frozen=True)
class Observation:
    """The text that is shown to the agent at the start of an episode or after an action."""

    text: str
    truncated: bool = False
    """Whether the text was shortened because it was too long."""


@dataclass(frozen=True)
class Validation:
    """The result of one grading during a research episode: the artefact (the files that the agent made) was
    scored on the validation split of the task's data, and the score gave a reward.

    If there is no score, `score` is None and `problem` describes the reason for the agent. `metrics` are all
    metrics that the grader returned, by name.
    """

    score: float | None
    """The value of the task's metric, not normalised; None if the artefact (the agent's files) was missing or
    malformed, or could not be graded."""
    phi: float | None
    """The normalised and clipped score φ (higher is better). Without a score, the lowest possible φ; or None
    if the setting `unscored` is `"unchanged"`."""
    delta: float
    """The reward for this grading: the normalised score `phi` minus an earlier one, `anchor`. It is 0 in the
    cases that `air.rewards.delta` describes."""
    problem: str = ""
    fault: str = ""
    """The grader's error if the grader failed twice on the artefact, else empty. The agent never sees it."""
    stderr: float | None = None
    """The standard error of `score`; None if the grader ran only once, with one seed."""
    floor: float = 0.0
    """The noise floor: the smallest difference of two normalised scores that earns a reward."""
    metrics: dict[str, float] = field(default_factory=dict)
    anchor: float | None = None
    """The earlier φ that was subtracted from `phi` to compute `delta`; None if `phi` is None."""
    digest: str = ""
    """A hash of the graded artefact's files; empty if the artefact could not be copied out of the box, the
    isolated place in which the agent works."""
    kept: str = ""
    """The path of the stored copy of the artefact, as `ResearchWorld.keep` returned it; empty if no copy is
    stored."""
    seconds: float = 0.0
    """The wall time of the grading in seconds, including the wait for a grader box (the isolated place in
    which the grader runs)."""
    remembered: bool = False
    """Whether the score was reused from an earlier grading of the same artefact, without running the
    grader."""
    automatic: bool = False
    """True if air graded at the end of the episode by itself, false if the agent requested the grading."""


@dataclass(frozen=True)
class Step:
    """The result of one action of the agent: the observation, and whether the episode has ended."""

    observation: Observation
    done: bool = False
    reward: float = 0.0
    """The reward that the world gives for this action. It is 0 in research tasks, whose rewards are in
    `Validation.delta`."""
    validation: Validation | None = None
    """The result of the grading that the action requested, in research tasks; None if the action was neither
    `validate` nor `submit`, or if nothing was graded."""
    code: int | None = None
    """The exit status of the action's shell script; None if no script ran. `exec_seconds` is the script's
    running time in seconds, and `timed_out` says whether the script was killed at its time limit."""
    exec_seconds: float = 0.0
    timed_out: bool = False


def without_end(unanswered: float, rewards: Iterable[float]) -> float:
    """Returns the last reward of an episode that was cut off before its world returned `done`, for example at
    the maximum number of turns.

    `unanswered`, at most 0, is what an episode earns in which the world gave no reward and the agent no
    answer (the field of `WorldTask`). `rewards` are the rewards that the world has given so far, with the sum
    S. If S is negative, the result is chosen such that the episode's total is the lower of S and
    `unanswered`. So a wrong answer is not punished twice, and never earns more than no answer. If S is
    positive or 0, the result is `unanswered`. As a formula: `min(0, unanswered − min(0, S))`.
    """
    loss = min(0.0, math.fsum(rewards))
    return min(0.0, unanswered - loss)


ActionT = TypeVar("ActionT", contravariant=True)


class World(Protocol[ActionT]):
    """The interface of a world, the environment in which an agent acts during one episode. Every method
    raises `InfrastructureError` for a failure that the agent did not cause. A failure that the agent can
    cause, such as an invalid move or the end of its box (the isolated place where its commands run), is
    reported in an observation or ends the episode. A world can be closed even after one of its methods was
    cancelled."""

    async def reset(self, seed: int) -> Observation:
        """Starts the episode that `seed` selects, and returns the first observation. Seeds of at least
        `air.worlds.sources.VALIDATION_SEED` are for evaluation; smaller seeds, from 0, are for training."""
        ...

    async def step(self, action: ActionT) -> Step:
        """Carries out one action of the agent and returns the result. A step after the end of the episode
        returns `done` true and the reward 0, and grades nothing."""
        ...

    async def close(self) -> dict[str, Any]:
        """Ends the episode and returns data about it by name, such as scores. A further call does nothing
        more."""
        ...

    def facts(self) -> Mapping[str, float]:
        """Returns the episode's facts: numbers about the episode so far, by name, such as `success` or
        `valid_moves`. Each fact becomes a metric of the episode, with the same name."""
        ...


class Run(Protocol):
    """The interface of a function that runs one command in a fresh box (an isolated place to run commands,
    such as a container), in which no agent has acted, so that the result can be trusted. The box is removed
    afterwards."""

    async def __call__(
        self,
        command: Command,
        *,
        seconds: float,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        max_bytes: int = 1_000_000,
    ) -> ExecResult:
        """Runs `command` (a shell script, or a program and its arguments) and returns its result.

        `seconds` is the time limit of the command, `stdin` is its standard input, and `max_bytes` is the
        maximum size of standard output and of standard error, each, in bytes. `files` (contents by path,
        relative to the workspace) are written before the command starts. If the command ends its own box, the
        result has exit status 137 and no output. This is not an infrastructure error, because the code that
        the command runs may have ended the box on purpose. Raises InfrastructureError if something else
        fails.
        """
        ...
