"""The terms of an episode's reward: pure functions of the episode's facts and the run's settings.

    delta             what the validates earned together; see `air.rewards.delta`
    format            −format_penalty · replies that were not an action
    failed_validates  −validate_penalty · validates whose artefact was missing or malformed
    time              −time_penalty · min(1, seconds / limit)
    test_score        +test_weight · φ(test score); φ's lowest value if there is no score
    plugins           +weight · function(facts), for each entry of `RewardSettings.terms`

The reward is the sum of all terms. A weight of 0 turns a term off: it is 0.0, never −0.0.
To add a term to this package: one function in `TERMS` and one field in `RewardSettings`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from air.config import plugin
from air.errors import InfrastructureError, UsageError
from air.rewards.normalise import Scale, phi_on


class RewardSettings(BaseModel):
    """The settings that decide an episode's reward. They are recorded with every episode."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    delta: Literal["previous", "best"] = "previous"
    """What a validate is compared with: the score before it, or the best score so far."""
    format_penalty: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Taken from the reward for every reply that is not an action."""
    validate_penalty: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Taken from the reward for every validate whose artefact is missing or malformed."""
    time_penalty: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Taken from the reward if the agent uses all of the episode's time; for a part of the time, that
    share. The time is the agent's own: from the end of the task's layout to its last reply, less
    what graders took."""
    test_weight: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Times the normalised score on the test split, which is then no longer unseen; added to the reward."""
    terms: dict[str, float] = Field(default_factory=dict)
    """Further terms, each as `"module:function" = weight`: the function gets an
    `air.rewards.terms.EpisodeFacts` and returns a number."""

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
    """What a term may depend on: an episode up to now, or a finished one."""

    scale: Scale
    """The task's baseline, target and direction."""
    scores: tuple[float | None, ...]
    """The score of every validate; None if its artefact was missing or malformed."""
    phis: tuple[float | None, ...]
    """The normalised scores, likewise."""
    deltas: tuple[float, ...]
    """What every validate earned."""
    turns: int
    """Replies of the model."""
    format_errors: int
    """Replies that were not an action."""
    seconds: float
    """The agent's own time, without grading."""
    limit: float
    """The longest episode, in seconds."""
    test_score: float | None
    """The last artefact's score on the test split; None if it has none, or is not graded yet."""
    finished: bool
    """Whether the test split was graded."""


Term = Callable[[EpisodeFacts, RewardSettings], float]


def reward_terms(facts: EpisodeFacts, settings: RewardSettings) -> dict[str, float]:
    """Returns the terms of the reward by name; the reward is their sum.

    Raises:
        ValueError: the facts are impossible, e.g. a negative time.
        InfrastructureError: the function of a plugin failed, or returned no finite number.
    """
    values = {name: term(facts, settings) for name, term in TERMS.items()}
    for path, weight in settings.terms.items():
        values[term_name(path)] = weight * _plugin_value(path, facts)
    return values


def term_name(path: str) -> str:
    """The name of a plugin's term: its function's name."""
    return path.rpartition(":")[2]


def delta(facts: EpisodeFacts, settings: RewardSettings) -> float:
    """What the validates earned; `settings.delta` has acted when each was paid."""
    return sum(facts.deltas)


def format_errors(facts: EpisodeFacts, settings: RewardSettings) -> float:
    """What replies that were not an action cost."""
    return 0.0 - settings.format_penalty * facts.format_errors


def failed_validates(facts: EpisodeFacts, settings: RewardSettings) -> float:
    """What validates without a gradable artefact cost."""
    return 0.0 - settings.validate_penalty * sum(score is None for score in facts.scores)


def time_used(facts: EpisodeFacts, settings: RewardSettings) -> float:
    """What the time costs: the share of the limit that was used, at most all of it.

    Raises:
        ValueError: the limit is not positive, or the time is negative or not a number.
    """
    if not facts.limit > 0 or not facts.seconds >= 0:
        raise ValueError(f"{facts.seconds} s of {facts.limit} s is no share of a limit")
    return 0.0 - settings.time_penalty * min(1.0, facts.seconds / facts.limit)


def final_score(facts: EpisodeFacts, settings: RewardSettings) -> float:
    """What the last artefact earns by its normalised score on the test split; 0 until it is graded.

    Without a score it counts as the worst that `scale.phi_clip` allows. So deleting a bad artefact
    never earns anything.

    Raises:
        ValueError: the score is not finite.
    """
    if not facts.finished or settings.test_weight == 0:
        return 0.0
    score, scale = facts.test_score, facts.scale
    return settings.test_weight * (scale.phi_clip[0] if score is None else phi_on(scale, score))


TERMS: Mapping[str, Term] = {
    "delta": delta,
    "format": format_errors,
    "failed_validates": failed_validates,
    "time": time_used,
    "test_score": final_score,
}
"""The terms of this package by name."""


def _plugin_value(path: str, facts: EpisodeFacts) -> float:
    function = plugin(path)
    try:
        value = float(function(facts))
    except Exception as error:  # whatever it is, the agent did not cause it
        raise InfrastructureError(
            f"the reward term {path} failed: {type(error).__name__}: {error}"
        ) from error
    if not math.isfinite(value):
        raise InfrastructureError(
            f"the reward term {path} must return a finite number, not {value}"
        )
    return value
