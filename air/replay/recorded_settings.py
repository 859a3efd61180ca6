"""The settings that a recorded episode was played with: its first line's, checked before they are used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from air.config import BaseConfig, validate
from air.tasks.spec import RewardScale, TaskSpec
from air.trajectories import Start


class Pay(BaseConfig):
    """The settings of an environment that decide a reward; see `air.env.config.ResearchEnvConfig`."""

    delta: Literal["previous", "best"] = "previous"
    """What a validate is compared with."""
    format_penalty: float = Field(0.0, ge=0, allow_inf_nan=False)
    """For every reply that is no action."""
    validate_penalty: float = Field(0.0, ge=0, allow_inf_nan=False)
    """For every validate without a gradable artefact."""
    time_penalty: float = Field(0.0, ge=0, allow_inf_nan=False)
    """For using all of the episode's time."""
    test_weight: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Times the normalised test score."""
    episode_seconds: float = Field(3600.0, gt=0, allow_inf_nan=False)
    """The time that the penalty is a share of."""


class Harness(BaseModel):
    """The settings of a harness that decide what a model was shown; see `air.env.config.AirHarnessConfig`.
    What a file does not have is not set; others are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    window: int = Field(1000, ge=1)
    """Lines of a file in view at once."""
    overlap: int = Field(2, ge=0)
    """Lines that stay in view when it is scrolled."""
    memory: bool = False
    """Whether notes can be kept."""
    max_observation_tokens: int | None = Field(None, ge=1)
    """Longer observations lost their middle; None in version 1, which does not say."""
    tokenizer: str | None = None
    """What counted them; None: by bytes."""


def reward(
    start: Start, task: TaskSpec, changes: Mapping[str, Any], path: Path
) -> tuple[RewardScale, Pay]:
    """How scores were made rewards, with these changes of it.

    Args:
        task: gives the scale where none was recorded.
        changes: fields of `RewardScale` and of `Pay` by name.

    Raises:
        ConfigError: one has a value that cannot be used.
    """
    recorded = start.scale or task.reward_scale().model_dump()
    scale = {**recorded, **{n: v for n, v in changes.items() if n in RewardScale.model_fields}}
    pay = {**start.pay, **{n: v for n, v in changes.items() if n in Pay.model_fields}}
    where = f"the reward of {path}"
    return validate(RewardScale, scale, where=where), validate(Pay, pay, where=where)


def harness(start: Start, path: Path) -> Harness:
    """What decided what the model was shown.

    Raises:
        ConfigError: one has a value that cannot be used.
    """
    return validate(Harness, dict(start.settings), where=f"the settings of {path}")
