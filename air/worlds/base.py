"""The interface of a world, in which an agent acts: `reset`, `step` and `close`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar


class Refusal(Exception):
    """The world refuses an action. The message is shown to the agent; callers of the world never see this
    exception."""


@dataclass(frozen=True)
class Observation:
    """The text that is shown to the agent at the start or after an action."""

    text: str
    truncated: bool = False
    """Whether output was cut to a maximum length."""


@dataclass(frozen=True)
class Validation:
    """The result of one validate: the artefact's score on the validation split, and its reward.

    Either `score` is set, or `problem` says what is wrong with the artefact.
    """

    score: float | None
    """The primary metric as measured; None if there is a problem."""
    phi: float | None
    """The normalised and clipped score φ (higher is better); None if `score` is None."""
    delta: float
    """The reward of this validate; 0.0 if there is a problem."""
    problem: str = ""
    stderr: float | None = None
    """The standard error of `score`; None if the artefact was graded only once, with one seed."""
    floor: float = 0.0
    """The noise floor of φ: a smaller change of φ would have earned nothing."""
    metrics: dict[str, float] = field(default_factory=dict)
    anchor: float | None = None
    """The earlier φ with which this φ was compared; None if there is no score."""
    digest: str = ""
    """The digest of the graded artefact's files; empty if the artefact could not be copied out of the box."""
    kept: str = ""
    """Where a copy of the artefact was stored, as `ResearchWorld.keep` returned it; empty if nowhere."""
    seconds: float = 0.0
    """Wall time of the grading in seconds, including the wait for a grader box."""
    remembered: bool = False
    """Whether the score comes from another grading of an equal artefact, so that no grader ran."""
    automatic: bool = False
    """Whether this validate was made by the end of the episode and not requested by the agent."""


@dataclass(frozen=True)
class Step:
    """The result of one action of the agent."""

    observation: Observation
    done: bool = False
    validation: Validation | None = None
    code: int | None = None
    """Exit status of the action's script; None if no script ran."""
    exec_seconds: float = 0.0
    timed_out: bool = False


ActionT = TypeVar("ActionT", contravariant=True)


class World(Protocol[ActionT]):
    """An environment in which an agent acts. A failure of the world itself raises `InfrastructureError`."""

    async def reset(self, seed: int) -> Observation:
        """Starts an episode and returns the first observation."""
        ...

    async def step(self, action: ActionT) -> Step:
        """Carries out one action and returns its result."""
        ...

    async def close(self) -> dict[str, Any]:
        """Ends the episode and returns facts about it, such as scores; calling it twice is harmless."""
        ...
