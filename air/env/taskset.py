"""Provides air's tasks to verifiers, with the methods that start, grade and reward an episode."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import verifiers.v1 as vf

from air import tasks
from air.env.config import AirTasksetConfig
from air.env.recording import started
from air.env.runtimes import verifiers_owned
from air.env.runtimes.lent import episode_of, gateway_of
from air.errors import UsageError
from air.tasks.spec import TaskSpec
from air.worlds import sources
from air.worlds.research.observations import describe
from air.worlds.sources import is_world

LAST_GRADINGS = "[end of the episode]"
"""The text that stands for the failed action, in trajectories and in the failure breaker, if an error occurs
in the gradings at the end of an episode."""


class AirData(vf.TaskData):
    """The data of one prompt: the task's text and id, a digest of its files, and the episode's seed.
    verifiers writes these fields into its traces, so they must not contain labels, answers or paths."""

    task_id: str = ""
    """The id of the task."""
    task_hash: str = ""
    """The SHA-256, in hex, of everything that the task consists of: the files in its folder, or the
    definition of its world."""
    seed: int = 0
    """The seed with which the world is reset."""


class AirTask(vf.Task[AirData]):
    """A research task, or a task of another world, with the methods that verifiers calls during an episode.
    The state of the episode is not stored here but on the runtime (verifiers' name for the place where
    commands run): a box from a pool of `ResearchEnv`, no box (`NoBox`), or a runtime that `vf-validate` or
    `vf-debug` started."""

    spec: TaskSpec | None = None
    """The specification of a research task; never serialised. None for tasks of other worlds, and if
    verifiers itself made this object (not `AirTaskset`)."""

    async def setup(self, trace: vf.Trace[Any, Any, Any], runtime: vf.Runtime) -> None:
        """Resets the world (for a research task, this copies the task's files into the box), then writes the
        first line of the trajectory."""
        if trace.agent.name in verifiers_owned.COMMANDS and not hasattr(runtime, "episode"):
            if is_world(self.data.task_id):
                raise UsageError(
                    f"{self.data.task_id} is a world without a box, which has nothing to validate",
                    remedy=f"play it with `air shell {self.data.task_id}`",
                )
            spec = self.spec or tasks.load(self.data.task_id)
            runtime.episode = await verifiers_owned.open_episode(spec, runtime)
        episode = episode_of(runtime)
        episode.trace = trace
        await episode.reset(self.data.seed)
        if gateway := gateway_of(runtime):
            gateway.begin(trace)
        harness = trace.agent.config.harness
        trace.info["air"] = {
            "episode": episode.id,
            "task": self.data.task_id,
            "isolation": episode.isolation,
        }
        episode.recorder.write(
            "start",
            **started(episode),
            trace=trace.id,
            task=self.data.task_id,
            task_hash=self.data.task_hash,
            seed=self.data.seed,
            max_turns=episode.max_turns,
            system=episode.system(self.data.system_prompt),
            prompt=episode.prompt(str(trace.task.data.prompt)),
            model=trace.agent.config.model,
            harness="air" if harness is None else harness.id,
            worker=os.getpid(),
        )
        await episode.begin()

    async def finalize(self, trace: vf.Trace[Any, Any, Any], runtime: vf.Runtime) -> None:
        """Ends the episode (a research task is graded a last time), and stores the episode's summary in the
        trace. Raises the error with which a grading failed, such as InfrastructureError."""
        episode = episode_of(runtime)
        if (gateway := gateway_of(runtime)) and gateway.failure:
            raise gateway.failure  # verifiers ignores errors that are raised after it has stopped an episode
        episode.why_ended = episode.why_ended or str(trace.stop_condition)
        with episode.performing(LAST_GRADINGS):
            await episode.finish()
        trace.info["air"] = episode.summary()

    async def validate(self, runtime: vf.Runtime) -> bool:
        """Runs the task's first and last recorded reference solution in the runtime, for the command
        `vf-validate`. Returns whether both solutions reach their recorded scores, and the last is better than
        the first (the baseline). Raises UsageError if the runtime belongs to an episode with an agent."""
        episode = episode_of(runtime)
        if not isinstance(episode, verifiers_owned.UnplayedEpisode):
            raise UsageError(
                "a task cannot be validated in a lent box, which belongs to an episode"
            )
        return await episode.check()

    @vf.reward
    async def terms(
        self, trace: vf.Trace[Any, Any, Any], runtime: vf.Runtime | None = None
    ) -> dict[str, float]:
        """Returns the terms of the episode's reward by name; the reward is their sum. Without a runtime (in
        the command `vf-replay`), the terms are read from the trace."""
        return dict(_summary(trace)["terms"]) if runtime is None else episode_of(runtime).rewards

    @vf.metric
    async def facts(
        self, trace: vf.Trace[Any, Any, Any], runtime: vf.Runtime | None = None
    ) -> dict[str, float]:
        """Returns the scores, counts and times of the episode by name. Without a runtime (in the command
        `vf-replay`), they are read from the trace."""
        return dict(_summary(trace)["metrics"]) if runtime is None else episode_of(runtime).metrics


def _summary(trace: vf.Trace[Any, Any, Any]) -> dict[str, Any]:
    """Returns the episode's summary, which `Episode.summary` stored in a finished trace. Raises UsageError if
    there is none, because an infrastructure error ended the episode, or an older version of air recorded
    it."""
    summary = trace.info.get("air", {})
    if "terms" not in summary:
        raise UsageError(
            f"trace {trace.id} has no rewards of air",
            remedy="play it again: it failed, or an older air made it",
        )
    return dict(summary)


class AirTaskset(vf.Taskset[AirTask, AirTasksetConfig]):
    """The prompts that the settings define: `examples_per_task` of each task, with different seeds."""

    def load(self) -> Iterable[AirTask]:
        """Yields one task object for each prompt. The tasks take turns, so that in the first N prompts, for
        any N, each task has about the share that its weight gives it. Raises MissingError if a task does not
        exist."""
        config = self.config
        weights: dict[str, float] = {}
        names: list[str] = []
        for written in config.tasks:
            members = tasks.expanded([written], config.harbor)
            names += members
            for name in members:
                weights[name] = weights.get(name, 0.0) + config.weights.get(written, 1.0)
        makers = {name: self._maker(name) for name in weights}
        for name, number in turns(weights, self.config.examples_per_task * len(names)):
            yield makers[name](number)

    def _maker(self, name: str) -> Callable[[int], AirTask]:
        """Returns a function that takes the number (from 0) of a prompt of the task `name`, and returns its
        task object."""
        config = self.config
        if is_world(name):
            world = sources.load(name)
            first = config.first_seed
            first += sources.VALIDATION_SEED if config.purpose == "evaluation" else 0
            return lambda number: self._task(
                world.id, world.id, world.instructions, world.digest, first + number, world.seconds
            )
        spec = config.research_task(name)
        prompt, seconds = describe(spec), spec.limits.episode_seconds

        def research(number: int) -> AirTask:
            seed = config.first_seed + number
            task = self._task(spec.id, spec.id, prompt, spec.hash, seed, seconds)
            task.spec = spec
            return task

        return research

    def _task(
        self, task_id: str, name: str, prompt: str, digest: str, seed: int, seconds: float
    ) -> AirTask:
        data = AirData(
            id=f"{task_id}/{seed}",
            name=name,
            prompt=prompt,
            task_id=task_id,
            task_hash=digest,
            seed=seed,
            timeout=vf.TaskTimeout(agent=seconds),
        )
        return AirTask(data, self.config.task)


def turns(weights: Mapping[str, float], count: int) -> Iterator[tuple[str, int]]:
    """Yields `count` pairs (name, number of earlier pairs with the same name). Each name's share is
    proportional to its weight, spread as evenly as possible; with equal weights, the names take turns in
    order."""
    taken = dict.fromkeys(weights, 0)
    for _ in range(count):
        # The name whose next turn is due first; `min` takes the first of equal ones.
        name = min(weights, key=lambda each: (taken[each] + 0.5) / weights[each])
        yield name, taken[name]
        taken[name] += 1
