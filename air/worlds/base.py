"""The contract of a world: reset, step, close."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar


class Refusal(Exception):
    """What the agent asked for is not done; the text tells it why. It never leaves the world."""


@dataclass(frozen=True)
class Observation:
    """What the agent is shown."""

    text: str
    truncated: bool = False
    """Whether output was cut before it reached the agent."""


@dataclass(frozen=True)
class Validation:
    """One grading of the artefact on the validation split.

    Either `score` is there, or `problem` says what was wrong with the artefact.
    """

    score: float | None
    """The primary metric as measured."""
    phi: float | None
    """The score, oriented, normalised and clipped."""
    delta: float
    """What this validate earned; 0.0 where there is a problem."""
    problem: str = ""
    stderr: float | None = None
    """The standard error of `score`, where the artefact was graded repeatedly."""
    floor: float = 0.0
    """The normalised score's noise floor: a smaller move would have earned nothing."""
    metrics: dict[str, float] = field(default_factory=dict)
    anchor: float | None = None
    """The φ that this one was compared with."""
    digest: str = ""
    """Digest of the artefact that was graded."""
    kept: str = ""
    """What `ResearchWorld.keep` answered for it."""
    seconds: float = 0.0
    """Wall time spent on grading, queueing included."""
    remembered: bool = False
    """Whether the score was known from an equal artefact."""
    automatic: bool = False
    """Whether the episode's end asked for it, not the agent."""


@dataclass(frozen=True)
class Step:
    """What one action did."""

    observation: Observation
    done: bool = False
    validation: Validation | None = None
    code: int | None = None
    """Exit status of the script; None where none ran."""
    exec_seconds: float = 0.0
    timed_out: bool = False


ActionT = TypeVar("ActionT", contravariant=True)


class World(Protocol[ActionT]):
    """Something an agent acts in. A failure of the world itself raises `InfrastructureError`."""

    async def reset(self, seed: int) -> Observation:
        """Starts an episode and returns what the agent sees first."""
        ...

    async def step(self, action: ActionT) -> Step:
        """Does one action."""
        ...

    async def close(self) -> dict[str, Any]:
        """Ends the episode and returns its last facts; harmless twice."""
        ...
