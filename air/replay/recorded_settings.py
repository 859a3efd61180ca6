"""Reads the settings, action format and task of a recorded episode from the first line of its record
(trajectory).

In the functions of this module, `start` is this line, and `path` is the file of the trajectory, which error
messages name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from air import actions, tasks
from air.actions import ActionFormat
from air.config import BaseConfig, validate
from air.env.config import AirHarnessConfig
from air.errors import ConfigError
from air.replay.options import ReplayOptions
from air.rewards.terms import RewardSettings
from air.tasks import splits
from air.tasks.sources.harbor.settings import HarborSettings
from air.tasks.spec import RewardScale, TaskSpec
from air.trajectories import Start


class RecordedRewardSettings(RewardSettings, BaseConfig):
    """The reward settings of a recorded episode: everything that decides how its scores become its reward
    (such as penalties), except the scale. The scale, which normalises the scores, is in the task's
    `RewardScale`."""

    episode_seconds: float = Field(3600.0, gt=0, allow_inf_nan=False)
    """The episode's time limit in seconds. An agent that uses all of this time pays the whole
    `time_penalty`."""


def load_task(start: Start, path: Path, options: ReplayOptions) -> TaskSpec:
    """Finds the task of a recorded episode on this machine, and returns it with the same split of its data as
    in the recording. `start` is the first line of the recording, and `path` the recording's file.

    Raises MissingError if the task is absent. Raises ConfigError if the task's files have changed and the
    option `changed_task` is not set, or if this machine lacks the secret from which the split was computed.
    """
    roots = (*options.task_roots, *map(Path, start.task_roots))
    mlgym = options.mlgym_root or (Path(start.mlgym_root) if start.mlgym_root else None)
    task = tasks.load(start.task, roots, mlgym_root=mlgym, harbor=harbor(start, path))
    if start.task_hash and task.hash != start.task_hash and not options.changed_task:
        raise ConfigError(
            f"task {task.id} has changed since ({start.task_hash[:8]} then, {task.hash[:8]} now)",
            where=str(path),
            remedy="restore its former files, or compare anyway with --changed-task",
        )
    split = splits.recorded(start.split, path).of(task.id)
    if split.public:
        return task
    scale, _ = reward(start, task, {}, path)  # the baseline and the target of that split
    return task.on(split, scale)


def harbor(start: Start, path: Path) -> HarborSettings:
    """Returns the settings for tasks in Harbor's format that the recording's first line, `start`, contains.
    If the recorded root folder of such tasks does not exist on this machine, the result has the default root
    folder instead. Raises ConfigError, which names the recording `path`, if a setting is invalid."""
    recorded = dict(start.harbor)
    if not Path(recorded.get("root") or "").is_dir():
        recorded.pop("root", None)
    return validate(HarborSettings, recorded, where=f"the settings of {path}")


def format_of(start: Start, path: Path) -> ActionFormat:
    """Returns the action format of a recorded episode: the syntax in which the model wrote its actions. If an
    older trajectory does not name the format, it is recognised by its instructions in the system prompt.

    Raises ConfigError if the format cannot be recognised, and MissingError if the format is a plugin that is
    not installed.
    """
    if start.format:
        return actions.get(start.format)
    for known in actions.FORMATS.values():
        if known.instructions in start.system:
            return known
    raise ConfigError("does not name its action format", where=str(path))


def reward(
    start: Start, task: TaskSpec, changes: Mapping[str, Any], path: Path
) -> tuple[RewardScale, RecordedRewardSettings]:
    """Returns the settings from which the reward of a recorded episode is computed, in two parts: the scale
    (baseline, target and normalisation of scores), and all other settings. `changes` maps names of settings
    to values that replace the recorded ones; unknown names are ignored.

    If the first line `start` of the trajectory contains no scale, the scale of `task` is used. Raises
    ConfigError, which names `path`, if a value cannot be used or a plugin cannot be imported.
    """
    recorded = start.scale or task.reward_scale().model_dump()
    scale = {**recorded, **{n: v for n, v in changes.items() if n in RewardScale.model_fields}}
    pay = {"unscored": "unchanged"}  # what air did before it recorded this setting
    pay |= {
        **start.pay,
        **{n: v for n, v in changes.items() if n in RecordedRewardSettings.model_fields},
    }
    where = f"the reward of {path}"
    return validate(RewardScale, scale, where=where), validate(
        RecordedRewardSettings, pay, where=where
    )


def harness(start: Start, path: Path) -> AirHarnessConfig:
    """Returns the settings of air's own harness (which drives the conversation between model and task) in a
    recorded episode, such as the maximum length of observations.

    Settings that the first line of the record does not contain have default values; the attribute
    `model_fields_set` of the result (from pydantic) has the names of the recorded ones. Raises ConfigError,
    which names `path`, if a value cannot be used.
    """
    names = AirHarnessConfig.own_fields()
    recorded = {name: value for name, value in start.settings.items() if name in names}
    if start.format:
        recorded["format"] = start.format
    return validate(AirHarnessConfig, recorded, where=f"the settings of {path}")
