"""The taskset: our tasks as verifiers tasks, and the hooks that prepare, end and pay an episode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf

from air import tasks
from air.env.config import AirTasksetConfig
from air.env.runtime import episode_of
from air.errors import GradingError
from air.worlds.research import describe


class ResearchData(vf.TaskData):
    """One prompt. Written whole into traces, so it holds no label, no answer and no path."""

    task_id: str = ""
    """The research task's id."""
    task_hash: str = ""
    """Digest of the task's folder."""
    seed: int = 0
    """The episode's seed."""


class ResearchTask(vf.Task[ResearchData]):
    """The hooks of one episode; what they need rides on the lent runtime."""

    async def setup(self, trace: vf.Trace[Any, Any, Any], runtime: vf.Runtime) -> None:
        """Lays the task out in the box and opens the record."""
        episode = episode_of(runtime)
        episode.trace = trace
        await episode.world.reset(self.data.seed)
        trace.info["air"] = {"episode": episode.id, "task": self.data.task_id}
        episode.recorder.write(
            "start",
            episode=episode.id,
            trace=trace.id,
            task=self.data.task_id,
            task_hash=self.data.task_hash,
            metric=episode.world.task.metric,
            direction=episode.world.task.direction,
            baseline=episode.world.task.baseline,
            seed=self.data.seed,
            isolation=episode.world.box.isolation,
            image=episode.world.box.spec.image,
            gpus=list(episode.world.box.gpus),
            system=episode.system(self.data.system_prompt),
            prompt=episode.prompt(str(self.data.prompt), trace.agent.config.max_turns),
            model=trace.agent.config.model,
        )

    async def finalize(self, trace: vf.Trace[Any, Any, Any], runtime: vf.Runtime) -> None:
        """The last validate and the test split: in every ending that is not our failure."""
        episode = episode_of(runtime)
        if trace.is_timeout and episode.world.grading:
            raise GradingError("the episode's time ran out while a validate was being graded")
        episode.why_ended = episode.why_ended or str(trace.stop_condition)
        await episode.finish()
        trace.info["air"] = episode.summary()

    @vf.reward
    async def terms(self, runtime: vf.Runtime) -> dict[str, float]:
        """The reward's terms by name; verifiers adds them up."""
        return episode_of(runtime).rewards

    @vf.metric
    async def facts(self, runtime: vf.Runtime) -> dict[str, float]:
        """Scores, counts and times of the episode."""
        return episode_of(runtime).metrics


class AirTaskset(vf.Taskset[ResearchTask, AirTasksetConfig]):
    """The tasks named in the config, each `examples_per_task` times."""

    def load(self) -> Iterable[ResearchTask]:
        """Tasks in turn, so that any prefix is balanced.

        Raises:
            MissingError: a task that does not exist.
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
                yield ResearchTask(data, self.config.task)
