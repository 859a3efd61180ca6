"""Tracks the level of each source of prompts in a curriculum, and promotes a source to its next level. A
level is a list of tasks; the tasks get harder from level to level.

The source to which a table `[[embedded.levels]]` of the run file belongs plays only the tasks of its current
level. After each training step the source moves to the next level if the mean of a metric (the setting
`metric`) over the last episodes of the current level is high enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import verifiers.v1 as vf

from air.errors import ConfigError
from air.train.config.curriculum_config import LevelsConfig
from air.train.config.env_source import EnvSource
from air.train.loop.rollout import Group, Rollout, Source, task_name
from air.worlds import sources as worlds
from air.worlds.sources import is_world


class Levels:
    """The curriculum of one source of prompts: its levels (lists of tasks, the easiest first), and the
    current level.

    `ahead` is the number of training steps whose prompts are drawn before the current step has ended: 1 if
    the episodes of the next step begin during the current step, else 0.
    """

    def __init__(self, config: LevelsConfig, source: EnvSource, *, ahead: int) -> None:
        self.config, self.name = config, source.resolved_name
        self.tasks = [[_task_id(name) for name in level] for level in config.tasks(source)]
        self._planned = [0] * (1 + ahead)
        """The level (counted from 0) of each training step whose level is already decided: the next step,
        then `ahead` further steps."""
        self._window: deque[float] = deque(maxlen=config.window)
        """The values of the metric that decides on the promotion (`config.metric`), in the most recent
        episodes of the newest level, which is the last in `_planned`."""
        self._of_level: dict[int, list[vf.Task]] = {}

    def check(self) -> None:
        """Raises ConfigError if a task of the source does not report the metric that decides when the source
        moves to the next level. Only tasks of worlds (games, questions and the like) are checked, not
        research tasks."""
        for name in (name for level in self.tasks for name in level if is_world(name)):
            facts = worlds.load(name).facts
            if self.config.metric != "reward" and self.config.metric not in facts:
                raise ConfigError(
                    f"{name} has no fact {self.config.metric!r}",
                    where="embedded.levels.metric",
                    remedy=f"use {' or '.join(sorted({'reward', *facts}))}",
                )

    def at(self, source: Source, ahead: int) -> Source:
        """Returns a copy of `source`, a source of prompts, with only the prompts of one level: the level of
        the next training step if `ahead` is 0, or of the step that is `ahead` steps later. Raises ConfigError
        if the level has no prompt."""
        level = self._planned[ahead]
        if level not in self._of_level:
            names = self.tasks[level]
            prompts = [task for task in source.tasks if task_name(source, task) in names]
            if not prompts:
                raise ConfigError(
                    f"level {level + 1} has no prompt: {', '.join(names)}",
                    where=f"source {self.name}",
                    remedy="check embedded.levels, or raise taskset.examples_per_task",
                )
            self._of_level[level] = prompts
        return replace(source, tasks=self._of_level[level], level=level + 1)

    def values(self, groups: Sequence[Group]) -> list[float]:
        """Returns a list with the value of the curriculum's metric in each episode of `groups` that ended
        without an infrastructure error and belongs to the source's newest level (the level of the latest step
        whose level is decided). Raises ConfigError if such an episode does not have the metric."""
        names = self.tasks[self._planned[-1]]
        return [
            self._value(rollout)
            for group in groups
            for rollout in group.rollouts
            if rollout.ok and rollout.source == self.name and rollout.task in names
        ]

    def record(self, groups: Sequence[Group], step: int) -> tuple[dict[str, float], str]:
        """Adds the episodes of training step `step`, and promotes the source to its next level if the metric
        is high enough. Returns the curriculum's metrics of this step by name (the level of the step, and the
        mean of the metric over the latest episodes), and a message for the user if the source was promoted,
        else an empty string."""
        played, newest = self._planned[0], self._planned[-1]
        self._window += self.values(groups)
        reached = fmean(self._window) if self._window else None
        full = len(self._window) == self.config.window
        message = ""
        if full and reached is not None and reached >= self.config.promote_at:
            newest, message = self._promoted(newest, reached, step)
        self._planned = [*self._planned[1:], newest]
        metrics = {f"curriculum/{self.name}/level": float(played + 1)}
        if reached is not None:
            metrics[f"curriculum/{self.name}/{self.config.metric}"] = reached
        return metrics, message

    def _promoted(self, level: int, reached: float, step: int) -> tuple[int, str]:
        if level + 1 == len(self.tasks):
            return level, ""
        self._window.clear()
        return level + 1, (
            f"source {self.name}: level {level + 2} of {len(self.tasks)} "
            f"({', '.join(self.tasks[level + 1])}) from step {step + len(self._planned)} on; "
            f"{self.config.metric} {reached:.2f} in the last {self.config.window} episodes"
        )

    def _value(self, rollout: Rollout) -> float:
        metric = self.config.metric
        value = rollout.reward if metric == "reward" else rollout.metric(metric)
        if value is None:
            raise ConfigError(
                f"an episode of {rollout.task} has no metric {metric!r}",
                where="embedded.levels.metric",
                remedy="use `reward`",
            )
        return value

    def state_dict(self) -> dict[str, Any]:
        """Returns the levels of the next training steps and the latest values of the metric, as plain data
        for a checkpoint."""
        return {"planned": list(self._planned), "window": list(self._window)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the curriculum from `state`, a result of `state_dict`. Raises ConfigError if the run has
        fewer levels than the state needs."""
        planned = [int(level) for level in state["planned"]]
        if max(planned) >= len(self.tasks):
            raise ConfigError(
                f"the checkpoint is at level {max(planned) + 1}, and there are {len(self.tasks)}",
                where=f"embedded.levels of the source {self.name}",
                remedy="set the levels as they were",
            )
        # The number of planned steps differs if overlap was switched on or off. No promotion is lost.
        missing = len(self._planned) - len(planned)
        self._planned = [*planned, *[planned[-1]] * missing][-len(self._planned) :]
        self._window = deque(state["window"], maxlen=self.config.window)


class Curriculum:
    """The curricula of a run, one for each source of prompts that has levels (lists of tasks from easy to
    hard)."""

    def __init__(
        self, configs: Sequence[LevelsConfig], sources: Sequence[EnvSource], *, ahead: int
    ) -> None:
        self._levels = [Levels(one, one.chosen(sources), ahead=ahead) for one in configs]

    def check(self) -> None:
        """Raises ConfigError if a task does not report the metric that decides when its source of prompts
        moves to the next level."""
        for one in self._levels:
            one.check()

    def check_played(self, groups: Sequence[Group]) -> None:
        """Raises ConfigError if an episode in `groups` lacks the metric that decides when its source of
        prompts moves to the next level. Episodes of earlier levels and episodes with an infrastructure error
        are not checked."""
        for one in self._levels:
            one.values(groups)

    def at(self, sources: Sequence[Source], ahead: int) -> list[Source]:
        """Returns a list like `sources`, in which each source that has a curriculum is replaced by a copy.
        The copy has only the prompts of the source's level in the next training step (if `ahead` is 0), or in
        the step that is `ahead` steps later."""
        by_name = {one.name: one for one in self._levels}
        return [
            by_name[source.name].at(source, ahead) if source.name in by_name else source
            for source in sources
        ]

    def record(self, groups: Sequence[Group], step: int) -> tuple[dict[str, float], list[str]]:
        """Adds the episodes of training step `step` (in `groups`) to all curricula. Returns the curricula's
        metrics of this step by name, and a list with a message for the user about each promotion to a next
        level."""
        each = [one.record(groups, step) for one in self._levels]
        metrics = {name: value for found, _ in each for name, value in found.items()}
        return metrics, [message for _, message in each if message]

    def state_dict(self) -> dict[str, Any]:
        """Returns the levels of the next training steps and the latest values of the metric, for each source
        of prompts with a curriculum, as plain data for a checkpoint."""
        return {one.name: one.state_dict() for one in self._levels}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the curricula from `state`, a result of `state_dict`. Curricula of sources that `state`
        does not contain stay unchanged."""
        for one in self._levels:
            if one.name in state:
                one.load_state_dict(state[one.name])


def _task_id(name: str) -> str:
    """Returns the id under which episodes of the task `name` are recorded. It is `name` itself, except for
    some tasks whose world (such as a game or a set of questions) has another id."""
    return worlds.load(name).id if is_world(name) else name
