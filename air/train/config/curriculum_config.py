"""Settings of curricula, which make the tasks or episodes of a run harder step by step: `[[embedded.levels]]`
(lists of tasks from easy to hard) and `[embedded.rounds]` (the allowed number of turns in each stage of the
run)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Self

from pydantic import Field, model_validator

from air.config import BaseConfig
from air.env.config import AirTasksetConfig
from air.train.config.env_source import EnvSource
from air.worlds import sources as worlds


class LevelsConfig(BaseConfig):
    """Settings in a table `[[embedded.levels]]`: a curriculum for one source of prompts. The source begins
    with the tasks of its first level, and moves to the next level when the mean of a metric over its latest
    episodes is high enough."""

    source: str | None = None
    """The `name` of the source of prompts to which the levels belong. None: the only source of the run."""
    levels: list[list[str]] | None = None
    """The tasks of each level, the easiest level first. Each task of the source must be in exactly one level.
    None: each task of the source is a level of its own, in the order of `taskset.tasks`."""
    promote_at: float = Field(0.6, allow_inf_nan=False)
    """The source moves to the next level when the mean of `metric` over the last `window` episodes of the
    level reaches this number."""
    window: int = Field(64, ge=1)
    """Number of latest episodes of the level over which the mean of `metric` is taken. Episodes with an
    infrastructure error do not count."""
    metric: str = "success"
    """The metric of an episode that `promote_at` refers to: `reward`, or the name of a number that the task's
    world (its game or environment) reports about each episode, such as `success`."""

    def chosen(self, sources: Sequence[EnvSource]) -> EnvSource:
        """Returns the element of `sources` (the run's sources of prompts) to which the levels belong: the one
        with the name in the setting `source` or, if this setting is None, the only one. Raises ValueError if
        there is not exactly one such source."""
        name = self.source or (sources[0].resolved_name if len(sources) == 1 else None)
        if name is None:
            raise ValueError("embedded.levels needs `source`, the name of one of the sources")
        found = [source for source in sources if source.resolved_name == name]
        if len(found) != 1:
            raise ValueError(
                f"embedded.levels names the source {name!r}, but {len(found)} sources have this name"
            )
        return found[0]

    def tasks(self, source: EnvSource) -> list[list[str]]:
        """Returns a list with the task ids of each level, the easiest level first. `source` is the source of
        prompts to which the levels belong. Raises ValueError if the levels do not contain each task of the
        source exactly once, if there are fewer than two levels or an empty one, or if the tasks come from
        another package than air."""
        taskset = source.env.taskset
        if not isinstance(taskset, AirTasksetConfig):
            raise ValueError(f"embedded.levels needs the taskset `air` in {source.resolved_name!r}")
        names = list(dict.fromkeys(taskset.tasks))
        levels = [[name] for name in names] if self.levels is None else self.levels
        counts = Counter(name for level in levels for name in level)
        if missing := [name for name in names if name not in counts]:
            raise ValueError(f"embedded.levels leaves out the task {missing[0]!r} of the source")
        if wrong := [name for name, count in counts.items() if name not in names or count > 1]:
            raise ValueError(
                f"embedded.levels must have each task of the source once, which {wrong[0]!r} is not"
            )
        if len(levels) < 2 or not all(levels):
            raise ValueError("embedded.levels needs two levels or more, each with a task")
        return levels


class TurnStagesConfig(BaseConfig):
    """Settings in the table `[embedded.rounds]`: episodes are short in the first stage of the run and longer
    in each later stage, as in AgentGym-RL. The table applies to all sources of prompts for training. Their
    tasks must be tasks of air, such as games, but not research tasks (which run in a sandbox), and the rules
    that the agent reads must not state its number of turns."""

    max_turns: list[int] = Field(min_length=1)
    """The largest number of turns of an episode in each stage of the run, the first stage first. It replaces
    the limit of the task itself. If `env.agent.max_turns` is smaller, that setting is the limit. The last
    stage lasts to the end of the run."""
    stage_steps: int = Field(100, ge=1)
    """Number of training steps of every stage except the last one. A stage is a part of the run with one
    limit of turns; the last stage lasts to the end of the run."""

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if min(self.max_turns) < 1:
            raise ValueError("max_turns must be 1 or more in each stage")
        return self

    def at(self, step: int) -> int:
        """Returns the largest number of turns that an episode of training step `step` may have. Steps count
        from 1."""
        return self.max_turns[min((step - 1) // self.stage_steps, len(self.max_turns) - 1)]

    @staticmethod
    def check(sources: Sequence[EnvSource]) -> None:
        """Raises ValueError if one of `sources` (the run's sources of prompts) has tasks whose number of
        turns cannot be changed: research tasks, tasks that are not air's, or tasks whose rules tell the agent
        its number of turns."""
        for source in sources:
            taskset = source.env.taskset
            if not isinstance(taskset, AirTasksetConfig) or taskset.research:
                raise ValueError(
                    f"embedded.rounds needs worlds, and the source {source.resolved_name!r} has other tasks"
                )
            if told := [name for name in taskset.worlds if worlds.load(name).names_turns]:
                raise ValueError(
                    f"embedded.rounds cannot shorten {told[0]!r}, whose rules tell the agent how many turns "
                    "it has; leave rounds out (games: make levels of tasks with the option -turns)"
                )


def check_curricula(
    levels: Sequence[LevelsConfig], rounds: TurnStagesConfig | None, sources: Sequence[EnvSource]
) -> None:
    """Raises ValueError if a curriculum (an element of `levels`, or `rounds`) cannot be used with `sources`,
    the sources of prompts for training: for example if it names a task that no source has, or if two elements
    of `levels` are for the same source."""
    names = [one.chosen(sources).resolved_name for one in levels]
    for one in levels:
        one.tasks(one.chosen(sources))
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"two tables embedded.levels are for the source {twice[0]!r}; remove one")
    if rounds is not None:
        rounds.check(sources)
