"""Grades recorded artefacts (the agent's graded files) again, and computes the reward from the new scores and
changed settings. Used by `air replay --rescore`.

The artefacts are stored beside the record of the episode (trajectory), so no action is repeated. The reward
is computed from the new scores and from what was recorded: the time, the number of turns, and the number of
replies without a valid action.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from air.errors import ArtefactError, ConfigError, boundary
from air.replay.ignored_differences import Difference, values
from air.replay.options import ReplayOptions
from air.replay.recorded_settings import RecordedRewardSettings, load_task, reward
from air.rewards.delta import Counts, DeltaReward, validate_that_counts
from air.rewards.terms import EpisodeFacts, reward_terms
from air.tasks.artefact import Artefact
from air.tasks.grading import Grader, Split
from air.tasks.spec import RewardScale, TaskSpec
from air.trajectories import Trajectory, Validation
from air.trajectories.artefacts import read_artefact
from air.trajectories.schema import Test


@dataclass
class RescoreResult:
    """The result of grading the artefacts of one recorded episode again: scores, rewards and differences from
    the record. `path` is the trajectory file, and `task` is the task's id."""

    path: Path
    task: str
    recorded: float
    """The reward in the record of the episode."""
    reward: float = 0.0
    """The reward computed from the new scores and the settings with the user's changes."""
    terms: dict[str, float] = field(default_factory=dict)
    """The parts of `reward` by name; `reward` is their sum."""
    deltas: list[float] = field(default_factory=list)
    """For each grading of the episode, the new delta reward: the reward for the change of the score since an
    earlier grading. 0.0 if the grading earns none."""
    scores: int = 0
    """The number of new scores that were compared with recorded scores."""
    equal_scores: int = 0
    """The number of new scores that equal the recorded ones exactly."""
    differences: list[Difference] = field(default_factory=list)

    @property
    def matched(self) -> bool:
        """Whether all new scores equal the recorded scores. If no settings were changed, the new reward must
        also equal the recorded reward."""
        return not self.differences


def check_names(changes: Mapping[str, Any]) -> None:
    """Raises ConfigError if a key of `changes` is not the name of a reward setting. These are the fields of
    `RewardScale` (how scores are normalised) and of `RecordedRewardSettings` (how they become a reward)."""
    names = {*RewardScale.model_fields, *RecordedRewardSettings.model_fields}
    for name in changes:
        if name not in names:
            raise ConfigError(
                f"a reward has no setting {name!r}",
                where="--reward",
                remedy=f"use one of: {', '.join(sorted(names))}",
            )


async def rescore(
    trajectory: Trajectory, grader: Grader, changes: Mapping[str, Any], options: ReplayOptions
) -> RescoreResult:
    """Grades the artefacts (the agent's graded files) of one recorded episode again. Returns the new scores,
    the new reward, and all differences from the record.

    `changes` maps names of reward settings (fields of `RewardScale`, which normalises scores, and of
    `RecordedRewardSettings`, all others) to new values. Raises UsageError if the recorded episode failed, if
    the record has no artefacts, or if a new value is invalid. Raises InfrastructureError if a grader failed.
    """
    start, end, where = trajectory.start, trajectory.end, str(trajectory.path)
    if start is None or end is None or not end.ok or end.reward is None:
        raise ConfigError("did not end well, so it has no reward", where=where)
    if not start.scale:
        raise ConfigError(
            "keeps no artefacts: an older air recorded it", where=where, remedy="play it again"
        )
    task = load_task(start, trajectory.path, options)
    scale, pay = reward(start, task, changes, trajectory.path)
    result = RescoreResult(trajectory.path, task.id, end.reward)
    rewards = DeltaReward(scale, mode=pay.delta, unscored=pay.unscored)
    regraded = await _regrade(trajectory, grader, task, result, rewards)
    counts = None if "delta" not in changes else pay.counts
    await _regrade_test(trajectory, grader, task, result, regraded, counts)
    count = end.metrics.get
    with boundary(ConfigError, f"{where}: its counts and times", ValueError, OverflowError):
        facts = EpisodeFacts(
            scale=scale,
            scores=tuple(regraded.scores),
            phis=tuple(regraded.phis),
            deltas=tuple(result.deltas),
            turns=round(count("turns", 0.0)),
            format_errors=round(count("format_errors", 0.0)),
            seconds=count("seconds_agent", 0.0),
            limit=pay.episode_seconds,
            test_score=regraded.test,
            finished=True,
        )
        result.terms = reward_terms(facts, pay)
    result.reward = sum(result.terms.values())
    if not changes and not math.isclose(result.reward, end.reward, rel_tol=1e-9, abs_tol=1e-9):
        turn = _last_turn(trajectory)
        result.differences.append(Difference(turn, "reward", repr(end.reward), repr(result.reward)))
    return result


@dataclass
class _Regraded:
    """The new scores of the artefacts of one episode. `scores` and `phis` have one entry per grading: the
    score on the validation split, and the same score after normalisation. `test` is the score on the test
    split. None: no score."""

    scores: list[float | None] = field(default_factory=list)
    phis: list[float | None] = field(default_factory=list)
    test: float | None = None


async def _regrade(
    trajectory: Trajectory, grader: Grader, task: TaskSpec, result: RescoreResult, pay: DeltaReward
) -> _Regraded:
    """Grades every artefact of a recorded episode on the validation split again, and returns the new scores.
    `task` is the task with the split of the recording. `pay` computes the new delta rewards; they are added
    to `result`, and so are the differences from the record.

    Raises ConfigError if an artefact was not stored, or if its file has changed since.
    """
    folder, where = trajectory.path.parent, str(trajectory.path)
    regraded = _Regraded()
    rewards: list[float | None] = []
    for one in trajectory.validations:
        score, stderr = None, None
        if one.artefact:
            artefact = _artefact(folder, one.kept, one.artefact, where)
            score, stderr = await _grade(grader, task, artefact, "val")
        if task.rules is not None and task.rules.steps > 1:
            rewards.append(score)
            score = task.rules.total(rewards, ended=one.automatic)
        _compare(result, one.turn, "score", one.score, score)
        payment = pay.of(score, stderr)
        regraded.scores.append(score)
        regraded.phis.append(None if payment is None else payment.phi)
        result.deltas.append(0.0 if payment is None else payment.delta)
    return regraded


async def _regrade_test(
    trajectory: Trajectory,
    grader: Grader,
    task: TaskSpec,
    result: RescoreResult,
    regraded: _Regraded,
    counts: Counts | None,
) -> None:
    """Grades one artefact on the test split, and stores the score in `regraded`. This is the artefact that
    counts at the end of the episode: `counts` says whether it is the latest or the best one; None: the
    artefact that counted in the recording. If the recording has a test score of the same artefact, the two
    scores are compared, and a difference is added to `result`."""
    recorded = None if trajectory.end is None else trajectory.end.test
    one: Test | Validation | None = recorded
    if counts is not None:
        index = validate_that_counts(regraded.scores, counts, task.direction)
        one = None if index is None else trajectory.validations[index]
    if one is None or not one.artefact:
        return
    where = str(trajectory.path)
    artefact = _artefact(trajectory.path.parent, one.kept, one.artefact, where)
    regraded.test, _ = await _grade(grader, task, artefact, "test")
    if recorded is not None and recorded.artefact == one.artefact:
        _compare(result, _last_turn(trajectory), "test score", recorded.score, regraded.test)


def _last_turn(trajectory: Trajectory) -> int:
    return trajectory.steps[-1].turn if trajectory.steps else 0


def _artefact(folder: Path, name: str, digest: str, where: str) -> Artefact:
    if not name:
        raise ConfigError(
            f"artefact {digest[:8]} was not kept, so it cannot be graded again",
            where=where,
            remedy="record with a larger record_artefacts_mb, or record_artefacts_total_mb",
        )
    artefact = Artefact(read_artefact(folder, name))
    if artefact.digest != digest:
        raise ConfigError("is not the artefact that was graded", where=str(folder / name))
    return artefact


async def _grade(
    grader: Grader, task: TaskSpec, artefact: Artefact, split: Split
) -> tuple[float | None, float | None]:
    """Grades an artefact (the agent's files) on the data split `split`, with the random seed 0. Returns its
    score and the standard error of the score, or (None, None) if the artefact is missing or malformed. The
    standard error alone may also be None."""
    try:
        grade = await grader.grade(task, artefact, split=split, seed=0)
    except ArtefactError:
        return None, None
    return grade.score, grade.stderr


def _compare(
    result: RescoreResult, turn: int, what: str, recorded: float | None, now: float | None
) -> None:
    result.scores += 1
    difference = values(turn, what, recorded, now)
    result.equal_scores += difference is None
    if difference is not None:
        result.differences.append(difference)
