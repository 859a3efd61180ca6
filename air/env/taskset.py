"""Offers air's tasks as verifiers tasks, with the hooks that begin, end and reward an episode."""

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
from air.errors import GradingError, UsageError
from air.tasks.spec import TaskSpec
from air.worlds.research.world import describe


class ResearchData(vf.TaskData):
    """The data of one prompt. Traces contain all of it, so it must not hold labels, answers or paths."""

    task_id: str = ""
    """The id of the research task."""
    task_hash: str = ""
    """A digest of the task's folder."""
    seed: int = 0
    """The seed of the episode."""


class ResearchTask(vf.Task[ResearchData]):
    """The hooks that verifiers calls during one episode of a research task.

    The runtime carries the episode's state. Either `ResearchEnv` lends the runtime, or the commands
    `vf-validate` and `vf-debug` start one (`air.env.runtimes.verifiers_owned`).
    """

    spec: TaskSpec | None = None
    """The research task if the taskset made this object, else None; it is never serialised."""

    async def setup(self, trace: vf.Trace[Any, Any, Any], runtime: vf.Runtime) -> None:
        """Puts the task's files into the box and writes the first line of the trajectory."""
        if trace.agent.name in verifiers_owned.COMMANDS and not hasattr(runtime, "episode"):
            spec = self.spec or tasks.load(self.data.task_id)
            runtime.episode = await verifiers_owned.open_episode(spec, runtime)
        episode = episode_of(runtime)
        episode.trace = trace
        await episode.world.reset(self.data.seed)
        if gateway := gateway_of(runtime):
            gateway.begin(trace)
        max_turns = trace.agent.config.max_turns
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
            harness=_harness_id(trace),
            worker=os.getpid(),
        )
        await episode.start_diffs()

    async def finalize(self, trace: vf.Trace[Any, Any, Any], runtime: vf.Runtime) -> None:
        """Grades the finished episode: see `Episode.finish`.

        Raises:
            InfrastructureError: a grading failed, or the episode's time ran out during one.
        """
        episode = episode_of(runtime)
        if (gateway := gateway_of(runtime)) and gateway.failure:
            raise gateway.failure  # verifiers ignores errors that are raised after it has stopped an episode
        if episode.world.grading:
            raise GradingError("the episode's time ran out while a validate was being graded")
        episode.why_ended = episode.why_ended or str(trace.stop_condition)
        await episode.finish()
        trace.info["air"] = episode.summary()

    async def validate(self, runtime: vf.Runtime) -> bool:
        """Whether the task's baseline and best reference solution still reach their recorded scores."""
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
        """Returns the reward's terms by name; verifiers adds them up.

        Without a runtime (`vf-replay`), returns the terms that the trace recorded.
        """
        return dict(_noted(trace)["terms"]) if runtime is None else episode_of(runtime).rewards

    @vf.metric
    async def facts(
        self, trace: vf.Trace[Any, Any, Any], runtime: vf.Runtime | None = None
    ) -> dict[str, float]:
        """Returns the scores, counts and times of the episode by name.

        Without a runtime (`vf-replay`), returns those that the trace recorded.
        """
        return dict(_noted(trace)["metrics"]) if runtime is None else episode_of(runtime).metrics


def _noted(trace: vf.Trace[Any, Any, Any]) -> dict[str, Any]:
    """Returns the `Episode.summary` that a finished trace contains."""
    noted = trace.info.get("air", {})
    if "terms" not in noted:
        raise UsageError(
            f"trace {trace.id} has no rewards of air",
            remedy="play it again: it failed, or an older air made it",
        )
    return dict(noted)


def _harness_id(trace: vf.Trace[Any, Any, Any]) -> str:
    harness = trace.agent.config.harness
    return "air" if harness is None else harness.id


class AirTaskset(vf.Taskset[ResearchTask, AirTasksetConfig]):
    """The tasks named in the config, each repeated `examples_per_task` times with different seeds."""

    def load(self) -> Iterable[ResearchTask]:
        """Yields the tasks in rotation, so that the first N prompts have about equally many of each task.

        Raises:
            MissingError: a task does not exist.
        """
        roots, mlgym = self.config.task_roots, self.config.mlgym_root
        specs = [tasks.load(name, roots, mlgym_root=mlgym) for name in self.config.tasks]
        for seed in range(self.config.examples_per_task):
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
