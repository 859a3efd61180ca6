"""The contract of a world: reset, step, close."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar


class Refusal(Exception):
    """The world refuses an action; the text tells the agent why. It is never raised out of the world."""


@dataclass(frozen=True)
class Observation:
    """The text that the agent is shown after an action."""

    text: str
    truncated: bool = False
    """Whether output was cut before it reached the agent."""


@dataclass(frozen=True)
class Validation:
    """One grading of the artefact on the validation split.

    Either `score` is set, or `problem` says what is wrong with the artefact.
    """

    score: float | None
    """The primary metric as measured."""
    phi: float | None
    """The score, oriented, normalised and clipped."""
    delta: float
    """The reward of this validate; 0.0 if there is a problem."""
    problem: str = ""
    stderr: float | None = None
    """The standard error of `score`; None if the artefact was graded once."""
    floor: float = 0.0
    """The normalised score's noise floor: a smaller move would have earned nothing."""
    metrics: dict[str, float] = field(default_factory=dict)
    anchor: float | None = None
    """The φ that this φ was compared with."""
    digest: str = ""
    """Digest of the artefact that was graded."""
    kept: str = ""
    """The return value of `ResearchWorld.keep`: where the artefact was kept."""
    seconds: float = 0.0
    """Wall time spent on grading, queueing included."""
    remembered: bool = False
    """Whether the grade was looked up, since an equal artefact was graded before."""
    automatic: bool = False
    """Whether the episode's end caused it, not the agent."""


@dataclass(frozen=True)
class Step:
    """The result of one action."""

    observation: Observation
    done: bool = False
    validation: Validation | None = None
    code: int | None = None
    """Exit status of the script; None if no script ran."""
    exec_seconds: float = 0.0
    timed_out: bool = False


ActionT = TypeVar("ActionT", contravariant=True)


class World(Protocol[ActionT]):
    """The environment of an agent's actions. A failure of the world itself raises `InfrastructureError`."""

    async def reset(self, seed: int) -> Observation:
        """Starts an episode and returns the first observation."""
        ...

    async def step(self, action: ActionT) -> Step:
        """Carries out one action."""
        ...

    async def close(self) -> dict[str, Any]:
        """Ends the episode and returns its facts; calling it twice is harmless."""
        ...
