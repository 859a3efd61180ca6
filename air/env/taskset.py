"""Provides air's tasks to verifiers, with the methods that begin, grade and reward an episode."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf

from air import tasks
from air.env.config import AirTasksetConfig
from air.env.recording import started
from air.env.runtimes import verifiers_owned
from air.env.runtimes.lent import episode_of, gateway_of
from air.errors import UsageError
from air.tasks.spec import TaskSpec
from air.worlds.research.world import describe


class ResearchData(vf.TaskData):
    """The data of one prompt: the task's text, its id, a digest of its files, and the seed of the episode.
    verifiers writes these fields into its traces, so they must not contain labels, answers or paths."""

    task_id: str = ""
    """The id of the research task."""
    task_hash: str = ""
    """A digest of the files in the task's folder."""
    seed: int = 0
    """The seed of the episode, with which the world is reset."""


class ResearchTask(vf.Task[ResearchData]):
    """A research task with the methods that verifiers calls during an episode.
    The episode's state is an attribute of the runtime, verifiers' name for the place where commands run: a
    box that `ResearchEnv` took from a pool, or a runtime that `vf-validate` or `vf-debug` started."""

    spec: TaskSpec | None = None
    """air's description of the task, never serialised; None if `AirTaskset` did not make this object."""

    async def setup(self, trace: vf.Trace[Any, Any, Any], runtime: vf.Runtime) -> None:
        """Puts the task's files into the box, then writes the first line of the trajectory."""
        if trace.agent.name in verifiers_owned.COMMANDS and not hasattr(runtime, "episode"):
            spec = self.spec or tasks.load(self.data.task_id)
            runtime.episode = await verifiers_owned.open_episode(spec, runtime)
        episode = episode_of(runtime)
        episode.trace = trace
        await episode.world.reset(self.data.seed)
        if gateway := gateway_of(runtime):
            gateway.begin(trace)
        harness, max_turns = trace.agent.config.harness, trace.agent.config.max_turns
        trace.info["air"] = {
            "episode": episode.id,
            "task": self.data.task_id,
            "isolation": episode.world.box.isolation,
        }
        episode.recorder.write(
            "start",
            **started(episode),
            trace=trace.id,
            task=self.data.task_id,
            task_hash=self.data.task_hash,
            seed=self.data.seed,
            max_turns=max_turns,
            system=episode.system(self.data.system_prompt),
            prompt=episode.prompt(str(trace.task.data.prompt), max_turns),
            model=trace.agent.config.model,
            harness="air" if harness is None else harness.id,
            worker=os.getpid(),
        )
        await episode.start_diffs()

    async def finalize(self, trace: vf.Trace[Any, Any, Any], runtime: vf.Runtime) -> None:
        """Grades the artefact of the finished episode, and stores the episode's summary in the trace.
        Raises InfrastructureError if a grading failed."""
        episode = episode_of(runtime)
        if (gateway := gateway_of(runtime)) and gateway.failure:
            raise gateway.failure  # verifiers ignores errors that are raised after it has stopped an episode
        episode.why_ended = episode.why_ended or str(trace.stop_condition)
        await episode.finish()
        trace.info["air"] = episode.summary()

    async def validate(self, runtime: vf.Runtime) -> bool:
        """Runs the task's first and last reference solutions in the runtime, for the command `vf-validate`.
        Returns whether both reach their recorded scores, and the last is better than the first (the
        baseline). Raises UsageError if an agent plays in the runtime."""
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
        """Returns the terms of the episode's reward by name; the reward is their sum.
        Without a runtime (in the command `vf-replay`), returns the terms that are stored in the trace."""
        return dict(_summary(trace)["terms"]) if runtime is None else episode_of(runtime).rewards

    @vf.metric
    async def facts(
        self, trace: vf.Trace[Any, Any, Any], runtime: vf.Runtime | None = None
    ) -> dict[str, float]:
        """Returns the scores, counts and times of the episode by name.
        Without a runtime (in the command `vf-replay`), returns the values that are stored in the trace."""
        return dict(_summary(trace)["metrics"]) if runtime is None else episode_of(runtime).metrics


def _summary(trace: vf.Trace[Any, Any, Any]) -> dict[str, Any]:
    """Returns the summary (scores, reward terms, …) that `Episode.summary` stored in a finished trace.
    Raises UsageError if there is none, because the episode failed or an older version of air ran it."""
    summary = trace.info.get("air", {})
    if "terms" not in summary:
        raise UsageError(
            f"trace {trace.id} has no rewards of air",
            remedy="play it again: it failed, or an older air made it",
        )
    return dict(summary)


class AirTaskset(vf.Taskset[ResearchTask, AirTasksetConfig]):
    """The prompts that the settings define: `examples_per_task` for each task, with different seeds."""

    def load(self) -> Iterable[ResearchTask]:
        """Yields one object for each prompt. The tasks take turns, so that the first N prompts contain each
        task about equally often. Raises MissingError if a task does not exist."""
        roots, mlgym = self.config.task_roots, self.config.mlgym_root
        specs = [tasks.load(name, roots, mlgym_root=mlgym) for name in self.config.tasks]
        first = self.config.first_seed
        for seed in range(first, first + self.config.examples_per_task):
            for spec in specs:
                data = ResearchData(
                    id=f"{spec.id}/{seed}",
                    name=spec.id,
                    prompt=describe(spec),
                    task_id=spec.id,
                    task_hash=spec.hash,
                    seed=seed,
                    timeout=vf.TaskTimeout(agent=spec.limits.episode_seconds),
                )
                task = ResearchTask(data, self.config.task)
                task.spec = spec
                yield task
