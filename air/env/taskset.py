"""The taskset: air's tasks as verifiers tasks, with the hooks that begin, end and reward an episode."""

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
    """One prompt. Traces hold all of it, so it has no label, no answer and no path."""

    task_id: str = ""
    """The research task's id."""
    task_hash: str = ""
    """Digest of the task's folder."""
    seed: int = 0
    """The episode's seed."""


class ResearchTask(vf.Task[ResearchData]):
    """The hooks of one episode. The runtime carries the episode: `ResearchEnv` lends the runtime, or
    `vf-validate` and `vf-debug` start it (`air.env.runtimes.verifiers_owned`)."""

    spec: TaskSpec | None = None
    """The research task, if the taskset made this object; never on the wire."""

    async def setup(self, trace: vf.Trace[Any, Any, Any], runtime: vf.Runtime) -> None:
        """Lays the task out in the box and writes the record's first line."""
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
        """Runs the last validate and the test split in every ending without an infrastructure failure."""
        episode = episode_of(runtime)
        if (gateway := gateway_of(runtime)) and gateway.failure:
            raise gateway.failure  # verifiers drops what is raised once it has stopped an episode
        if episode.world.grading:
            raise GradingError("the episode's time ran out while a validate was being graded")
        episode.why_ended = episode.why_ended or str(trace.stop_condition)
        await episode.finish()
        trace.info["air"] = episode.summary()

    async def validate(self, runtime: vf.Runtime) -> bool:
        """Whether the recorded baseline and the best recorded solver score as recorded."""
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
        """The reward's terms by name; verifiers adds them up. Offline (`vf-replay`): the recorded terms."""
        return dict(_noted(trace)["terms"]) if runtime is None else episode_of(runtime).rewards

    @vf.metric
    async def facts(
        self, trace: vf.Trace[Any, Any, Any], runtime: vf.Runtime | None = None
    ) -> dict[str, float]:
        """Scores, counts and times of the episode. Offline: the recorded ones."""
        return dict(_noted(trace)["metrics"]) if runtime is None else episode_of(runtime).metrics


def _noted(trace: vf.Trace[Any, Any, Any]) -> dict[str, Any]:
    """Returns the `Episode.summary` of a finished trace."""
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
    """The tasks named in the config, each `examples_per_task` times."""

    def load(self) -> Iterable[ResearchTask]:
        """Yields the tasks in rotation, so that any prefix is balanced.

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
