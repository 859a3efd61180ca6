"""Computes an episode's reward as a sum of terms, from data about the episode (`EpisodeFacts`) and settings
(`RewardSettings`, which contain the weights and penalties below). During an episode, the agent can have its
work graded, which gives a score; each such grading is called a validate. At the end, the work is graded on
the hidden test data, which gives the test score.

    delta             sum of the rewards of all validates; see `air.rewards.delta`
    format            −format_penalty · number of replies that were not an action
    failed_validates  −validate_penalty · number of validates without a score
    time              −time_penalty · min(1, seconds / limit)
    test_score        +test_weight · φ(test score); φ's lowest value if there is no score
    holdout           φ(test score) − φ(baseline) − delta, if `final` is `holdout`
    user's functions  +weight · function(EpisodeFacts), for each entry of `RewardSettings.terms`

φ is the normalised score (0 at the task's baseline, 1 at its target), see `air.rewards.normalise`. A weight
of 0 turns a term off; the term is then 0.0, never −0.0. To add a term to this package, add one function to
`TERMS` and one field to `RewardSettings`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from air.config import plugin
from air.errors import RewardTermError, UsageError
from air.rewards.delta import Counts
from air.rewards.normalise import Scale, phi_on


class RewardSettings(BaseModel):
    """Settings that define how an episode's reward is computed. They are recorded with every episode."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    delta: Literal["previous", "best"] = "previous"
    """The earlier score with which the score of each `validate` (graded attempt of the agent) is compared:
    `previous` is the score of the previous validate, `best` is the best score so far; for the first validate,
    both are the task's baseline. The setting also selects the artefact (the graded file or folder) that is
    graded on the test split at the end: with `previous` that of the last validate, with `best` that with the
    best score."""
    unscored: Literal["lowest", "unchanged"] = "lowest"
    """The reward for a `validate` (graded attempt of the agent) without a score. There is no score if the
    artefact (the file or folder to be graded) is missing or malformed or makes the grader fail, or if the
    agent's box (its sandbox) has ended. `lowest`: the artefact counts as if it had the lowest normalised
    score, so that an agent gains nothing by deleting a bad artefact. `unchanged`: the validate earns nothing,
    as in air before this setting existed."""
    format_penalty: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Subtracted from the reward for every reply that is not an action."""
    validate_penalty: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Subtracted from the reward for every `validate` (graded attempt of the agent) without a score, usually
    because the file or folder to be graded is missing or malformed."""
    time_penalty: float = Field(0.0, ge=0, allow_inf_nan=False)
    """The penalty for using the episode's whole time limit. It is multiplied by the share of the limit that
    the agent used (at most 1), and subtracted from the reward. The time runs from the moment when the task's
    files are in the box (the agent's sandbox) to the agent's last reply, without the time of grading,
    while the agent's processes stand still."""
    test_weight: float = Field(0.0, ge=0, allow_inf_nan=False)
    """A factor: this factor times the normalised test score is added to the reward. If it is above 0,
    training uses the test split, so test scores no longer measure performance on unseen data."""
    final: Literal["validation", "holdout"] = "validation"
    """The split that determines the total of the delta rewards. `validation`: the validation split, whose
    scores the agent sees at each `validate` (graded attempt). `holdout`: the test split, whose scores the
    agent never sees; at the end, the term `holdout` replaces the sum of the deltas by the change of φ from
    the baseline to the test score. Training then uses the test split."""
    terms: dict[str, float] = Field(default_factory=dict)
    """Additional reward terms of a user, each as `"module:function" = weight`, with any finite weight. The
    function takes an `air.rewards.terms.EpisodeFacts` and returns a number. The weight times this number is
    added to the reward."""

    @property
    def counts(self) -> Counts:
        """Which `validate` (graded attempt of the agent) counts at the end of the episode, so that the file
        or folder that was graded there is graded on the test split: `last` or `best`. The setting `delta`
        determines this."""
        return "best" if self.delta == "best" else "last"

    @field_validator("terms")
    @classmethod
    def _check_plugins(cls, terms: dict[str, float]) -> dict[str, float]:
        names = list(TERMS)
        for path, weight in terms.items():
            try:
                function = plugin(path)
            except UsageError as error:
                raise ValueError(str(error)) from None
            if not callable(function):
                raise ValueError(f"{path!r} is not a function")
            if not math.isfinite(weight):
                raise ValueError(f"the weight of {path!r} must be finite, not {weight}")
            if term_name(path) in names:
                raise ValueError(f"there are two terms named {term_name(path)!r}: rename {path!r}")
            names.append(term_name(path))
        return terms


@dataclass(frozen=True)
class EpisodeFacts:
    """Data about a running or finished episode, from which the terms of its reward are computed."""

    scale: Scale
    """The task's settings by which scores are normalised, such as baseline, target and direction."""
    scores: tuple[float | None, ...]
    """The score of every `validate` (graded attempt of the agent), in order; None for one without a score,
    for example because the file or folder to be graded was missing or malformed."""
    phis: tuple[float | None, ...]
    """The normalised score φ of every `validate` (graded attempt of the agent), in order. For a validate
    without a score it is the lowest φ, or None if `RewardSettings.unscored` is `unchanged`."""
    deltas: tuple[float, ...]
    """The delta reward for every `validate` (graded attempt of the agent), in order: the change of the
    normalised score; see `air.rewards.delta`."""
    turns: int
    """The number of the model's replies."""
    format_errors: int
    """The number of replies that were not an action."""
    seconds: float
    """The time that the agent has used, in seconds, without grading."""
    limit: float
    """The time limit of the episode, in seconds."""
    test_score: float | None
    """The score, on the test split, of the artefact (the graded file or folder) of the last or best
    `validate`, as `RewardSettings.delta` says; None if it has no score or has not been graded on the test
    split yet."""
    finished: bool
    """Whether grading on the test split is complete."""


Term = Callable[[EpisodeFacts, RewardSettings], float]


def reward_terms(facts: EpisodeFacts, settings: RewardSettings) -> dict[str, float]:
    """Returns a dict that maps the name of each term of an episode's reward to its value. The reward is the
    sum of the values.

    Raises ValueError if `facts` has an impossible value, such as a negative time, and RewardTermError if a
    function in `settings.terms` raises an exception or returns anything but a finite number.
    """
    values = {name: term(facts, settings) for name, term in TERMS.items()}
    for path, weight in settings.terms.items():
        values[term_name(path)] = _amount(path, weight, facts)
    return values


def term_name(path: str) -> str:
    """Returns the name of a user's reward term: the part of `path` (`module:function`) after the colon."""
    return path.rpartition(":")[2]


def delta(facts: EpisodeFacts, settings: RewardSettings) -> float:
    """Returns the reward term `delta`: the sum of the delta rewards for all validates (graded attempts of the
    agent) in the episode. `settings` is not used; all reward terms have this parameter."""
    return sum(facts.deltas)


def format_errors(facts: EpisodeFacts, settings: RewardSettings) -> float:
    """Returns the reward term `format`, which is 0 or negative: the penalty for replies of the model that
    were not an action."""
    return 0.0 - settings.format_penalty * facts.format_errors


def failed_validates(facts: EpisodeFacts, settings: RewardSettings) -> float:
    """Returns the reward term `failed_validates`, which is 0 or negative: the penalty for validates (graded
    attempts of the agent) without a score, such as those for which the file or folder to be graded was
    missing."""
    return 0.0 - settings.validate_penalty * sum(score is None for score in facts.scores)


def time_used(facts: EpisodeFacts, settings: RewardSettings) -> float:
    """Returns the reward term `time`, which is 0 or negative: the penalty for the used share of the time
    limit.

    Raises ValueError if the time limit is not positive, or the used time is negative or not a number.
    """
    if not facts.limit > 0 or not facts.seconds >= 0:
        raise ValueError(f"{facts.seconds} s of {facts.limit} s is no share of a limit")
    return 0.0 - settings.time_penalty * min(1.0, facts.seconds / facts.limit)


def final_score(facts: EpisodeFacts, settings: RewardSettings) -> float:
    """Returns the reward term `test_score`: `settings.test_weight` times φ, the normalised test score; 0
    before grading on the test split is complete.

    An artefact (the agent's file or folder that is graded) without a score has the lowest φ
    (`scale.phi_clip[0]`), so that deleting a bad artefact never earns anything. Raises ValueError if the test
    score is not finite.
    """
    if not facts.finished or settings.test_weight == 0:
        return 0.0
    score, scale = facts.test_score, facts.scale
    return settings.test_weight * (scale.phi_clip[0] if score is None else phi_on(scale, score))


def holdout(facts: EpisodeFacts, settings: RewardSettings) -> float:
    """Returns the reward term `holdout`: φ(test score) − φ(baseline) − Σ deltas at the end of an episode; 0
    before the end, or if the setting `final` is not `holdout`. φ is the normalised score.

    With this term the total reward is the change of φ on the test split; the deltas (rewards for graded
    attempts) only pay a part of it earlier. An artefact without a score has the lowest φ. Raises ValueError
    if the test score is not finite.
    """
    if settings.final != "holdout" or not facts.finished:
        return 0.0
    score, scale = facts.test_score, facts.scale
    final = scale.phi_clip[0] if score is None else phi_on(scale, score)
    return final - phi_on(scale, scale.baseline) - sum(facts.deltas)


TERMS: Mapping[str, Term] = {
    "delta": delta,
    "format": format_errors,
    "failed_validates": failed_validates,
    "time": time_used,
    "test_score": final_score,
    "holdout": holdout,
}
"""Maps the name of each built-in reward term to its function."""


def _amount(path: str, weight: float, facts: EpisodeFacts) -> float:
    """Returns a user's reward term: `weight` times the value that the user's function at `path`
    (`module:function`) returns for the episode `facts`. Raises RewardTermError if the function fails or its
    value is not a finite number."""
    function = plugin(path)
    try:
        amount = weight * float(function(facts))
    except Exception as error:  # a user's function may raise anything
        raise _failed(path, f"raised {type(error).__name__}: {error}") from error
    if not math.isfinite(amount):
        raise _failed(path, f"must pay a finite amount, not {amount}")
    return amount


def _failed(path: str, what: str) -> RewardTermError:
    return RewardTermError(
        f"the reward term {what}",
        where=path,
        remedy="correct the function so that it returns a finite number for every episode, or remove it from "
        "`terms`",
    )
