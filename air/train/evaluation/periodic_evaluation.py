"""Evaluates the policy during a training run, on the held-out sources of tasks in `[orchestrator.eval]`.

The episodes of an evaluation after step N are recorded in the run's folder `evaluations/step_N/SOURCE/`. The
metrics are one line of `evaluations.jsonl`: `{"v": 1, "step": …, "reward": …, …, "sources": {SOURCE: {…}}}`.
The numbers beside `sources` are means over the sources, with three exceptions: the metrics in `SUMS` are
sums, `reward_stderr` is the standard error of the mean reward, and `seconds` is the duration. The line is
written last, so an evaluation without a line is not finished.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import stdev
from typing import Any

import verifiers.v1 as vf

from air import json_lines
from air.aio import run_concurrently
from air.env import recording
from air.env.config import AirTasksetConfig
from air.env.taskset import AirTask
from air.errors import ConfigError, boundary
from air.train.config.eval_config import EvalConfig, EvalSourceConfig
from air.train.loop import metrics, run_folder
from air.train.loop.progress import number
from air.train.loop.rollout import Rollout, play_group, serving
from air.trajectories import evaluations

logger = logging.getLogger(__name__)

VERSION = 1
_AT_ONCE = 32
"""The largest number of groups of episodes that an evaluation plays concurrently."""


class Evaluations:
    """The evaluations of the training run in `folder`: reads recorded evaluations, and plays new ones.

    `fill_in_settings` is called with a source of tasks and the folder for its trajectories (recorded
    episodes). It returns a copy of the source, whose environment has the settings that come from the run.
    `seed` seeds the sampling of replies at a temperature above 0; None: no seed is sent. `best_metric` is the
    metric whose highest value marks the best step, among the evaluations with the smallest share of episodes
    with infrastructure errors.
    """

    def __init__(
        self,
        config: EvalConfig,
        folder: Path,
        fill_in_settings: Callable[[EvalSourceConfig, Path], EvalSourceConfig],
        *,
        seed: int | None,
        best_metric: str,
    ) -> None:
        self.config = config.model_copy(update={"source": [*map(_held_out, config.source)]})
        self._folder, self._fill_in_settings, self._seed = folder, fill_in_settings, seed
        self._best_metric = best_metric

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The lines of `evaluations.jsonl`, one for each finished evaluation."""
        return evaluations.rows(self._folder)

    def due(self, step: int, max_steps: int) -> bool:
        """Whether an evaluation must follow training step `step` and is not recorded yet. Steps count from 1;
        step 0 is the start of the run. `max_steps` is the number of the last step."""
        done = any(row["step"] == step for row in self.rows)
        return self.config.due(step, max_steps) and not done

    def episodes(self) -> int:
        """Returns the number of episodes of one evaluation, over all sources."""
        return sum(
            len(_prompts(_tasks(source), self._examples(source))) * self._group_size(source)
            for source in self.config.source
        )

    def check_tasks(self) -> None:
        """Raises ConfigError if the environment of a source cannot be loaded, has no task, or names an
        unknown task."""
        for source in self.config.source:
            if not list(_tasks(source)):
                raise ConfigError("has no task", where=f"source {source.resolved_name}")

    def trained_prompts(self, trained: Iterable[vf.Task]) -> list[vf.Task]:
        """Returns those prompts of the evaluations that are not held out, because the run is also trained on
        them: those with the same task and seed as a prompt in `trained`. Prompts of tasks that are not air's
        are never returned, because their seeds are not known."""
        known = {_identity(task) for task in trained}
        return [
            task
            for source in self.config.source
            for task in _prompts(_tasks(source), self._examples(source))
            if isinstance(task, AirTask) and _identity(task) in known
        ]

    async def play(
        self, step: int, ctx: vf.ModelContext, on_done: Callable[[Rollout], None]
    ) -> dict[str, Any]:
        """Plays and records the evaluation after training step `step`, and returns its metrics: its line of
        `evaluations.jsonl`. `ctx` says with which model, server and sampling settings the policy's replies
        are sampled. `on_done` is called with each episode when it has ended."""
        began = time.monotonic()
        recording.TRAINING_STEP.set(step)
        played = {
            source.resolved_name: await self._play_source(source, step, ctx, on_done)
            for source in self.config.source
        }
        for rollout in (one for rollouts in played.values() for one in rollouts if not one.ok):
            logger.warning("episode of the evaluation failed: %s", rollout.error)
        row = make_row(step, played, time.monotonic() - began)
        json_lines.append(self._folder / evaluations.FILE, [row])
        return row

    def best_step(self, steps: Iterable[int]) -> int | None:
        """Returns the step among `steps` with the best evaluation: the one with the largest share of episodes
        without an infrastructure error and, among equal shares, the highest value of the metric
        `best_metric`. Returns None if none of these steps was evaluated."""
        return evaluations.best_step(self.rows, self._best_metric, steps)

    def summary(self, row: dict[str, Any]) -> str:
        """Returns a line of text about an evaluation: its metrics, and the best step so far. `row` is the
        evaluation's line of `evaluations.jsonl`. Raises ConfigError if the metric `best_metric` is in no
        evaluation, although one of them has an episode without an infrastructure error in each source."""
        evaluations.check_metric(self.rows, self._best_metric)
        names = dict.fromkeys(["reward", self._best_metric])
        values = [f"{name} {number(evaluations.value(row, name), '+z.3f')}" for name in names]
        failed = f"; {row['failed_episodes']} failed" if row["failed_episodes"] else ""
        earlier = (one["step"] for one in self.rows)
        highest = evaluations.best_step(self.rows, self._best_metric, earlier)
        return (
            f"evaluation after step {row['step']}: {', '.join(values)} "
            f"({row['episodes']} episodes{failed}); best after step {highest}"
        )

    async def _play_source(
        self,
        source: EvalSourceConfig,
        step: int,
        ctx: vf.ModelContext,
        on_done: Callable[[Rollout], None],
    ) -> list[Rollout]:
        name = source.resolved_name
        folder = run_folder.evaluation_folder(self._folder, step) / re.sub(r"[^\w.-]+", "-", name)
        filled_in = self._fill_in_settings(source, folder / run_folder.TRAJECTORIES)
        async with serving([filled_in], self._group_size(source)) as (opened,):
            groups = [
                play_group(
                    opened,
                    task,
                    ctx,
                    on_done,
                    # The seeds are the same in every evaluation, so evaluations differ only by the weights.
                    seed=None if self._seed is None else f"evaluation {self._seed} {name} {place}",
                )
                for place, task in enumerate(_prompts(opened.tasks, self._examples(source)))
            ]
            return [r for group in await run_concurrently(groups, _AT_ONCE) for r in group.rollouts]

    def _examples(self, source: EvalSourceConfig) -> int:
        own = source.num_examples
        return self.config.num_examples if own is None else own

    def _group_size(self, source: EvalSourceConfig) -> int:
        return source.group_size or self.config.group_size


def _held_out(source: EvalSourceConfig) -> EvalSourceConfig:
    """Returns a copy of an evaluation's source of tasks in which games, questions and other worlds with
    random seeds get seeds that are reserved for evaluations, so that no training uses them."""
    taskset = source.env.taskset
    if not isinstance(taskset, AirTasksetConfig):
        return source
    taskset = taskset.model_copy(update={"purpose": "evaluation"})
    env = source.env.model_copy(update={"taskset": taskset})
    return source.model_copy(update={"env": env})


def _identity(task: vf.Task) -> tuple[str, str]:
    """Returns what identifies a prompt, as a pair: its id, which contains the seed, and the digest of its
    task's files."""
    return str(getattr(task.data, "id", "")), str(getattr(task.data, "task_hash", ""))


def _tasks(source: EvalSourceConfig) -> Any:
    with boundary(ConfigError, f"source {source.resolved_name}", TypeError, ValueError):
        return vf.load_environment(source.env).taskset


def _prompts(tasks: Any, count: int) -> list[vf.Task]:
    every = list(tasks)
    return every if count == -1 else every[:count]


SUMS = (*metrics.COUNTS, "episodes", "failed_episodes")
"""The metrics that are summed over the sources of an evaluation."""
_NOT_MEANS = {*SUMS, "reward_stderr", "tasks"}


def make_row(step: int, played: dict[str, list[Rollout]], seconds: float) -> dict[str, Any]:
    """Returns the line of `evaluations.jsonl`, as a dict, for the evaluation after training step `step`.
    `played` has the episodes by the source's name; `seconds` is the duration of the evaluation."""
    sources = {name: _metrics(rollouts) for name, rollouts in played.items()}
    names = dict.fromkeys(
        name for one in sources.values() for name, value in one.items() if name not in _NOT_MEANS
    )
    return {
        "v": VERSION,
        "step": step,
        **{name: metrics.mean(one.get(name) for one in sources.values()) for name in names},
        "reward_stderr": _stderr(list(sources.values())),
        **{name: sum(one[name] for one in sources.values()) for name in SUMS},
        "seconds": seconds,
        "sources": sources,
    }


def _stderr(sources: Sequence[dict[str, Any]]) -> float | None:
    """Returns the standard error of the mean over the sources' mean rewards. It is computed from the standard
    errors of the sources, and is None if one of these is unknown."""
    errors = [one["reward_stderr"] for one in sources]
    return None if None in errors else math.hypot(*errors) / len(errors)


def _metrics(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    good = [rollout for rollout in rollouts if rollout.ok]
    rewards = [rollout.reward for rollout in good]
    return {
        **metrics.of_rollouts(good),
        "test_score": metrics.mean(rollout.metric("test_score") for rollout in good),
        "reward_stderr": stdev(rewards) / math.sqrt(len(rewards)) if len(rewards) > 1 else None,
        "episodes": len(rollouts),
        "failed_episodes": len(rollouts) - len(good),
        "tasks": metrics.scores_by_task(rollouts),
    }
