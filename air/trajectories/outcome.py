"""Reads the outcome of a recorded episode: its scores, its reward, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from air.config import validate
from air.errors import ConfigError
from air.trajectories.performance_profile import Direction
from air.trajectories.reader import read


class _Line(BaseModel):
    """Base class of the types that read lines of a trajectory file. Each type has only those fields of a line
    that are needed for an outcome (scores, reward, and how the episode ended); other fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class Start(_Line):
    """The first line of a trajectory file (the task, the model and how scores are compared), with only those
    fields that are needed for an outcome. `air.trajectories.schema.Start` has all fields and explains
    them."""

    task: str
    model: str
    isolation: str
    trust: str = ""
    metric: str
    direction: Direction
    baseline: float = Field(allow_inf_nan=False)
    scale: Mapping[str, Any] = Field(default_factory=dict)
    task_hash: str
    seed: int | None = None
    world: Mapping[str, Any] | None = None


class _Validate(_Line):
    score: float | None = Field(allow_inf_nan=False)


class _Metrics(_Line):
    score: float | None = Field(None, allow_inf_nan=False)
    test_score: float | None = Field(None, allow_inf_nan=False)
    turns: float = Field(0.0, allow_inf_nan=False)
    format_errors: float = Field(0.0, allow_inf_nan=False)


class _End(_Line):
    t: float = Field(allow_inf_nan=False)
    ok: bool
    failed_action: str | None = None
    reward: float | None = Field(allow_inf_nan=False)
    terms: dict[str, float] | None
    metrics: _Metrics


FORGEABLE = ("evaluator", "shared")
"""The values of a task's field `trust` (how grading uses the agent's files) with which an agent could forge
any score."""


@dataclass(frozen=True)
class EpisodeOutcome:
    """The outcome of a recorded episode: its scores, its reward, and how it ended."""

    start: Start | None
    """The trajectory's first line (task, model, …); None if the file has no such line, for example because
    the episode failed when it began."""
    how: Literal["well", "failed", "unfinished"]
    """`well`: the episode ended without an infrastructure error. `failed`: an infrastructure error ended
    it, so its scores do not count. `unfinished`: it is still running, or its run was killed."""
    ended: float = 0.0
    """The time when the episode ended, in seconds since the epoch; 0.0 if it is unfinished."""
    scores: tuple[float | None, ...] = ()
    """The scores of all gradings during the episode, in order; None for a grading without a score, because
    the artefact (the agent's files) was missing or malformed. Empty if the episode failed or is unfinished.
    If the task is not a research task, the only element is the score of the whole episode."""
    test: float | None = None
    """The score of the finally selected artefact (the agent's files) on the test split; None if there is
    none. If the task is not a research task, the episode's score."""
    reward: float = 0.0
    """The episode's reward; 0.0 if the episode failed or is unfinished."""
    terms: Mapping[str, float] = field(default_factory=dict)
    """The terms whose sum is the reward, by name. Empty if the episode failed or is unfinished."""
    turns: int = 0
    """The number of the model's replies; 0 if the episode failed or is unfinished."""
    format_errors: int = 0
    """The number of replies that were not an action; 0 if the episode failed or is unfinished."""
    failed_action: str | None = None
    """The text of the action that was carried out when an infrastructure error ended the episode. None if
    there was no error, or if it occurred outside of actions."""

    @property
    def last(self) -> float | None:
        """The last score; None if nothing was graded, or if the last artefact got no score."""
        return self.scores[-1] if self.scores else None

    @property
    def best(self) -> float | None:
        """The best score, which is the highest or lowest one by the metric's direction; None if there is no
        score."""
        scores = [score for score in self.scores if score is not None]
        if not scores or self.start is None:
            return None
        return max(scores) if self.start.direction == "higher" else min(scores)


LineT = TypeVar("LineT", bound=_Line)


def read_outcome(path: Path) -> EpisodeOutcome:
    """Reads the outcome of the episode in a trajectory file.

    Raises ConfigError if the file is not a trajectory, or lacks a required field.
    """
    start: Start | None = None
    end: _End | None = None
    scores: list[float | None] = []
    for line in read(path):
        kind = line.get("type")
        if kind == "start":
            start = _started(line, path)
        elif kind == "validate":
            scores.append(_parsed(_Validate, line, path).score)
        elif kind == "end":
            end = _parsed(_End, line, path)
        elif kind != "step":
            raise ConfigError("not a trajectory", where=str(path), remedy="name a run's folder")
    if end is None:
        return EpisodeOutcome(start, "unfinished")
    if not end.ok or start is None or end.reward is None:
        return EpisodeOutcome(start, "failed", end.t, failed_action=end.failed_action)
    test = end.metrics.test_score
    if (
        start.world is not None
    ):  # nothing is graded, and the seeds of an evaluation are its held-out data
        scores, test = [end.metrics.score], end.metrics.score
    return EpisodeOutcome(
        start,
        "well",
        end.t,
        tuple(scores),
        test,
        end.reward,
        end.terms or {},
        round(end.metrics.turns),
        round(end.metrics.format_errors),
    )


def _started(line: dict[str, Any], path: Path) -> Start:
    if "direction" not in line:
        raise ConfigError(
            "does not say whether higher or lower scores are better: "
            + ("an older air recorded it" if "origin" not in line else "its source did not say so"),
            where=str(path),
            remedy="play and record it again",
        )
    return _parsed(Start, line, path)


def _parsed(kind: type[LineT], line: dict[str, Any], path: Path) -> LineT:
    return validate(kind, line, where=f"{path}: {line['type']}")
