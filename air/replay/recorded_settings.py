"""Reads and validates the settings of a recorded episode, which the first line of its trajectory contains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from air.config import BaseConfig, validate
from air.env.config import AirHarnessConfig
from air.rewards.terms import RewardSettings
from air.tasks.spec import RewardScale, TaskSpec
from air.trajectories import Start


class Pay(RewardSettings, BaseConfig):
    """The settings that decide how the reward of a recorded episode is computed."""

    episode_seconds: float = Field(3600.0, gt=0, allow_inf_nan=False)
    """The episode's time limit in seconds; an agent that uses all of it loses the whole `time_penalty`."""


def reward(
    start: Start, task: TaskSpec, changes: Mapping[str, Any], path: Path
) -> tuple[RewardScale, Pay]:
    """Returns the scale and the other reward settings of a recorded episode, after `changes` by name.

    The task's scale is used if the first line `start` of the trajectory has none. Raises ConfigError, which
    names `path`, if a value is unusable or a plugin cannot be imported.
    """
    recorded = start.scale or task.reward_scale().model_dump()
    scale = {**recorded, **{n: v for n, v in changes.items() if n in RewardScale.model_fields}}
    pay = {**start.pay, **{n: v for n, v in changes.items() if n in Pay.model_fields}}
    where = f"the reward of {path}"
    return validate(RewardScale, scale, where=where), validate(Pay, pay, where=where)


def harness(start: Start, path: Path) -> AirHarnessConfig:
    """Returns the settings of air's own harness in a recorded episode, which decided what the model saw.

    Pydantic's `model_fields_set` lists those that the first line `start` has; the others are defaults. Raises
    ConfigError, which names `path`, if a value is unusable.
    """
    names = AirHarnessConfig.own_fields()
    recorded = {name: value for name, value in start.settings.items() if name in names}
    if start.format:
        recorded["format"] = start.format
    return validate(AirHarnessConfig, recorded, where=f"the settings of {path}")
