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
    """Returns the reward settings of a recorded episode, after some of them were changed.

    Returns two objects: first the scale, by which scores become rewards; then all other settings.

    Args:
        start: the first line of the trajectory.
        task: the task, whose scale is used if the trajectory contains none.
        changes: new values for fields of `RewardScale` and `Pay`, by name.
        path: the trajectory's file, for error messages.

    Raises:
        ConfigError: a setting has a value that cannot be used, or a plugin cannot be imported.
    """
    recorded = start.scale or task.reward_scale().model_dump()
    scale = {**recorded, **{n: v for n, v in changes.items() if n in RewardScale.model_fields}}
    pay = {**start.pay, **{n: v for n, v in changes.items() if n in Pay.model_fields}}
    where = f"the reward of {path}"
    return validate(RewardScale, scale, where=where), validate(Pay, pay, where=where)


def harness(start: Start, path: Path) -> AirHarnessConfig:
    """Returns the settings that air's own harness (its agent loop) had in a recorded episode.

    These settings decided what the model was shown.

    A setting that was not recorded has its default value, and pydantic's `model_fields_set` does not contain
    its name.

    Args:
        start: the first line of the trajectory.
        path: the trajectory's file, for error messages.

    Raises:
        ConfigError: a setting has a value that cannot be used.
    """
    names = AirHarnessConfig.own_fields()
    recorded = {name: value for name, value in start.settings.items() if name in names}
    if start.format:
        recorded["format"] = start.format
    return validate(AirHarnessConfig, recorded, where=f"the settings of {path}")
