"""The environment: lends a box to every episode and takes it back."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import verifiers.v1 as vf

from air import formats, tasks
from air.env.config import AirHarnessConfig, ResearchEnvConfig
from air.env.credit import split
from air.env.episode import Episode
from air.env.runtime import lend
from air.env.taskset import ResearchTask
from air.errors import ConfigError, MissingError
from air.rewards.delta import DeltaReward
from air.sandbox import images
from air.sandbox.base import Box
from air.sandbox.gpus import listed, plan
from air.sandbox.leases import GpuPool
from air.sandbox.pool import Pool
from air.tasks.grading import Grader
from air.tasks.spec import TaskSpec
from air.trajectories import Recorder
from air.worlds.research import ResearchWorld
from air.worlds.tools import Tools, ToolSettings


class ResearchEnv(vf.Env[ResearchEnvConfig]):
    """One agent, one box, one task. Boxes and graders are shared by a process's episodes."""

    def __init__(self, config: ResearchEnvConfig) -> None:
        super().__init__(config)
        self._specs: dict[str, TaskSpec] = {}
        self._agents: Pool | None = None
        self._stack = AsyncExitStack()
        self._grader: Grader | None = None

    async def start(self) -> None:
        """Opens the pools; grader boxes have one of their own, or they would wait for agents'."""
        config = self.config
        specs = [self._spec(name) for name in config.taskset.tasks]
        gpus, graders_gpus = await asyncio.to_thread(_gpus, config, specs)
        if config.provider == "docker":
            for image in sorted({spec.image for spec in specs}):
                await asyncio.to_thread(_check_docker, image)
        for spec in specs:
            await asyncio.to_thread(tasks.data.prepare, spec)
        self._agents = await self._stack.enter_async_context(
            Pool(config.max_boxes, warm=config.warm_boxes, gpus=gpus)
        )
        graders = await self._stack.enter_async_context(
            Pool(
                config.grader_boxes,
                warm=min(1, config.grader_boxes - 1),
                gpus=graders_gpus,
                nested=True,
            )
        )
        self._grader = Grader(graders, config.provider)
        for spec in specs:
            self._agents.prepare(spec.box_spec(config.provider))

    async def stop(self) -> None:
        """Closes every box of this process."""
        self._agents = self._grader = None
        await self._stack.aclose()

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """One episode, in a box that is leased for it alone."""
        assert isinstance(task, ResearchTask)
        if self._agents is None or self._grader is None:
            raise RuntimeError("the environment is not serving: enter `env.serving()` first")
        spec = self._spec(task.data.task_id)
        async with self._agents.lease(spec.box_spec(self.config.provider)) as box:
            pay = DeltaReward(spec.reward_scale(), mode=self.config.delta)
            tools = self._tools(spec, box)
            world = ResearchWorld(task=spec, box=box, grader=self._grader, pay=pay, tools=tools)
            world.times.queue = box.queue_seconds
            episode_id = uuid.uuid4().hex
            with Recorder(self._record_dir(), episode_id) as recorder:
                episode = Episode(
                    id=episode_id,
                    world=world,
                    recorder=recorder,
                    config=self.config,
                    format=self._format(),
                )
                trace: vf.Trace | None = None
                try:
                    trace = await agents.agent.run(task, runtime=lend(box, episode))
                finally:
                    _record_end(episode, trace)

    async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
        """With `credit = "segment"`, makes one trace a segment of the finished episode."""
        if self.config.credit == "segment":
            episode.traces[:] = [part for trace in episode.traces for part in split(trace)]

    def _spec(self, task_id: str) -> TaskSpec:
        if task_id not in self._specs:
            config = self.config.taskset
            self._specs[task_id] = tasks.load(
                task_id, config.task_roots, mlgym_root=config.mlgym_root
            )
        return self._specs[task_id]

    def _harness(self) -> AirHarnessConfig | None:
        """Our harness's settings; None where another one plays."""
        harness = self.config.agent.harness
        if harness is None:
            return AirHarnessConfig()
        return harness if isinstance(harness, AirHarnessConfig) else None

    def _format(self) -> formats.ActionFormat | None:
        harness = self._harness()
        return None if harness is None else formats.get(harness.format)

    def _tools(self, spec: TaskSpec, box: Box) -> Tools | None:
        """The tools of one episode, where the action format has any."""
        harness, action_format = self._harness(), self._format()
        if harness is None or action_format is None or not action_format.uses_tools:
            return None
        settings = ToolSettings(
            window=harness.window,
            overlap=harness.overlap,
            memory=harness.memory,
            hosts=spec.network,
        )
        return Tools(box, settings)

    def _record_dir(self) -> Path | None:
        return None if self.config.record_dir is None else self.config.record_dir.expanduser()


def _gpus(
    config: ResearchEnvConfig, specs: Sequence[TaskSpec]
) -> tuple[GpuPool | None, GpuPool | None]:
    """The run's GPUs, for agents' boxes and for graders': an agent that waits for its grade keeps its
    own. None where it names none. A task that needs more is refused at the start."""
    if not config.gpus:
        for spec in specs:
            if spec.gpus or spec.grader.gpus:
                raise ConfigError(
                    f"task {spec.id} needs {spec.needs()}, and no GPU is given to boxes",
                    where="env.gpus",
                    remedy='set gpus = "auto", or name them: `air gpus` lists them',
                )
        return None, None
    found = plan(config.gpus, trainer=config.trainer_gpus, inference=config.inference_gpus)
    kept = max(spec.grader.gpus for spec in specs)
    most = max(spec.gpus for spec in specs)
    if most + kept > len(found):
        raise ConfigError(
            f"a box needs {most} GPUs, graders {kept}, and the run has {len(found)}: {listed(found)}",
            where="env.gpus",
            remedy="name more, or take the task out",
        )
    agents_count, slots = len(found) - kept, config.slots_per_gpu
    agents = GpuPool(found[:agents_count], slots_per_gpu=slots)
    return agents, GpuPool(found[agents_count:], slots_per_gpu=slots)


def _check_docker(image: str) -> None:
    if reason := images.unready(image):
        raise MissingError(
            f"Docker boxes cannot be started: {reason}",
            where="env.agent.runtime.type",
            remedy="run `air setup`, or play without isolation in process boxes: "
            '`type = "subprocess"` (--orchestrator.train.source.0.env.agent.runtime.type subprocess)',
        )


def _record_end(episode: Episode, trace: vf.Trace | None) -> None:
    failed = trace is None or not trace.ok
    error = None if trace is None or trace.last_error is None else trace.last_error
    episode.recorder.write(
        "end",
        ok=not failed,
        why=episode.why_ended or (trace.stop_condition if trace else "interrupted"),
        error=None if error is None else f"{error.type}: {error.message}",
        reward=None if failed else sum(episode.rewards.values()),
        terms=None if failed else episode.rewards,
        metrics=episode.metrics,
        branches=None if trace is None else trace.num_branches,
    )
