"""Computes measures of finished episodes, for the tables of `air eval`: best score, last score, test score,
and others.

A try is one grading on the validation split, by `validate`, by `submit` or at the episode's end. More tries
can only raise the best score, so there are also measures of the first one and two tries. Scores are
normalised to φ: 0 is the task's baseline and 1 its target. An artefact (graded file) without a score gets the
lowest φ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from air.errors import ConfigError
from air.rewards.normalise import phi_on
from air.tasks.spec import RewardScale
from air.train.loop.rollout import Rollout
from air.trajectories.outcome import EpisodeOutcome


@dataclass(frozen=True)
class EpisodeScores:
    """The results of one episode that ended without an infrastructure error (of air or the machine): the
    scores of all tries (gradings on the validation split), the reward, and others."""

    task: str
    scale: RewardScale
    scores: tuple[float | None, ...]
    """The scores of all tries on the validation split, in order; None for a try without a score."""
    test: float | None
    """The test score: the score, on the test split, of the artefact (the graded files) on which the episode's
    result is based; None if this artefact has no test score. In worlds other than research tasks, such as
    games, the world's own score."""
    reward: float
    turns: int
    format_errors: int
    success: float | None = None
    """The number `success` that a game, question or other world reports at the end of an episode; None for
    research tasks, and for worlds that do not report this number."""
    seed: int | None = None
    """The seed of the episode if these results were read from a recording (`of_outcome`), else None."""

    @classmethod
    def of_rollout(cls, rollout: Rollout) -> EpisodeScores:
        """Returns the results of an episode that air's environment has just played."""
        info = rollout.info
        test = rollout.metric("score") if "facts" in info else rollout.metric("test_score")
        return cls(
            task=rollout.task,
            scale=RewardScale.model_validate(info["scale"]),
            scores=tuple(info["scores"]),
            test=test,
            reward=rollout.reward,
            turns=int(rollout.metric("turns") or 0),
            format_errors=int(rollout.metric("format_errors") or 0),
            success=info.get("facts", {}).get("success"),
        )

    @classmethod
    def of_outcome(cls, outcome: EpisodeOutcome, where: str) -> EpisodeScores:
        """Returns the results of a recorded episode that ended without an infrastructure error. Raises
        ConfigError if the recording lacks the baseline and target that define normalised scores, because an
        older version of air made it; `where` names the file in the message."""
        start = outcome.start
        if start is None or not start.scale:
            raise ConfigError("has no scale of scores", where=where, remedy="play it again")
        return cls(
            task=start.task,
            scale=RewardScale.model_validate(start.scale),
            scores=outcome.scores,
            test=outcome.test,
            reward=outcome.reward,
            turns=outcome.turns,
            format_errors=outcome.format_errors,
            # If `success` is the metric of a world, the score is its value.
            success=outcome.last if start.world is not None and start.metric == "success" else None,
            seed=start.seed,
        )

    def best(self, tries: int | None = None) -> float | None:
        """Returns the best score (the lowest one, if lower is better in this task) of the first `tries` tries
        (gradings on the validation split), or of all tries if `tries` is None. Returns None if none of these
        tries has a score."""
        scores = [score for score in self.scores[:tries] if score is not None]
        if not scores:
            return None
        return max(scores) if self.scale.direction == "higher" else min(scores)

    @property
    def last(self) -> float | None:
        """The score of the last try (grading on the validation split); None if the last try gave no score, or
        if there is no try."""
        return self.scores[-1] if self.scores else None

    def phi(self, score: float | None) -> float:
        """Returns the normalised score φ of `score`: 0 for the task's baseline and 1 for its target. If
        `score` is None, returns the lowest φ that the task allows."""
        return self.scale.phi_clip[0] if score is None else phi_on(self.scale, score)


Measure = Callable[[EpisodeScores], float]
MEASURES: Mapping[str, Measure] = {
    "best": lambda played: played.phi(played.best()),
    "first": lambda played: played.phi(played.best(1)),
    "best of 2": lambda played: played.phi(played.best(2)),
    "last": lambda played: played.phi(played.last),
    "test": lambda played: played.phi(played.test),
    "tries": lambda played: float(len(played.scores)),
    "reward": lambda played: played.reward,
}
"""Functions that compute a measure of one episode, by the measure's name. All but `tries` and `reward` return
normalised scores φ."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error."""

    mean: float
    stderr: float | None
    """The standard error. None if it is unknown, because there is only one value."""

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + ("" if self.stderr is None else f" ± {self.stderr:.3f}")

    def minus(self, other: Estimate) -> Estimate:
        """Returns the difference: this mean minus the mean `other`, with the difference's standard error.
        This error is None if the standard error of one of the two means is None. The two means must be
        independent of each other."""
        errors = (self.stderr, other.stderr)
        return Estimate(self.mean - other.mean, None if None in errors else math.hypot(*errors))  # type: ignore[arg-type]


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """Returns the mean and standard error of the values that are not None. Returns None if there are no such
    values."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    error = stdev(present) / math.sqrt(len(present)) if len(present) > 1 else None
    return Estimate(fmean(present), error)


def by_task(episodes: Sequence[EpisodeScores]) -> dict[str, list[EpisodeScores]]:
    """Returns a dict from the id of each task to its episodes, in the order in which the tasks first
    occur."""
    tasks: dict[str, list[EpisodeScores]] = {}
    for played in episodes:
        tasks.setdefault(played.task, []).append(played)
    return tasks


def overall(episodes: Sequence[EpisodeScores], measure: Measure) -> Estimate | None:
    """Returns an estimate of `measure` over all tasks: the mean of the tasks' means, so that all tasks have
    the same weight. The standard error is None if a task has only one episode. Returns None if there are no
    episodes."""
    means = [estimate(map(measure, played)) for played in by_task(episodes).values()]
    known = [mean for mean in means if mean is not None]
    if not known:
        return None
    errors = [mean.stderr for mean in known if mean.stderr is not None]
    error = math.hypot(*errors) / len(known) if len(errors) == len(known) else None
    return Estimate(fmean(mean.mean for mean in known), error)


def gains(
    before: Sequence[EpisodeScores], after: Sequence[EpisodeScores]
) -> dict[str, tuple[Estimate | None, Estimate | None, Estimate | None]]:
    """Compares episodes before and after a change, such as a training. Returns a dict from the name of each
    measure to three estimates over all tasks: the mean of the episodes `before`, the mean of the episodes
    `after`, and the gain (`after` minus `before`). An estimate is None if it has no episodes."""
    table: dict[str, tuple[Estimate | None, Estimate | None, Estimate | None]] = {}
    for name, measure in MEASURES.items():
        then, now = overall(before, measure), overall(after, measure)
        gain = None if then is None or now is None else now.minus(then)
        table[name] = (then, now, gain)
    return table
