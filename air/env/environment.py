"""air's environment for the library `verifiers`, which calls it to run episodes. In a research task, the
agent works in a box (a container) from a pool, and its result is graded. In other worlds, such as games, the
world itself gives the rewards."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import verifiers.v1 as vf

from air import actions, tasks
from air.aio import run_concurrently
from air.env import recording, start_checks
from air.env.chat.guarded_renderer import guarded
from air.env.config import RESEARCH_FORMAT, AirHarnessConfig, ResearchEnvConfig
from air.env.credit import split
from air.env.episode import Episode
from air.env.failure_breaker import Breaker
from air.env.overfitting_alarm import OverfittingAlarm
from air.env.program.gateway import Gateway
from air.env.research_episode import ResearchEpisode
from air.env.runtimes.box_runtime import lend
from air.env.runtimes.no_box import NoBox
from air.env.taskset import AirTask
from air.env.world_boxes import WorldBoxes, lent
from air.env.world_episode import WatchedWorld, WorldEpisode
from air.errors import ConfigError, MissingError
from air.rewards.delta import DeltaReward
from air.sandbox.contract.box import Box, BoxSpec
from air.sandbox.pool.box_pool import Pool
from air.tasks import measured_scale, splits
from air.tasks.grading import Grader
from air.tasks.spec import TaskSpec
from air.trajectories import Recorder
from air.worlds import sources
from air.worlds.research.observations import describe
from air.worlds.research.score_rounding import step_of
from air.worlds.research.tools import Tools
from air.worlds.research.world import ResearchWorld
from air.worlds.sources import WorldTask, is_world

T = TypeVar("T")


class ResearchEnv(vf.SingleAgentEnv, vf.Env[ResearchEnvConfig]):
    """air's environment for `verifiers`. In each episode, one agent works on a research task in a box (a
    container), or plays in another world, such as a game, with or without a box. All episodes of a process
    share two pools of boxes, one for agents and one for graders. If no task needs a box, there are no
    pools."""

    def __init__(self, config: ResearchEnvConfig) -> None:
        super().__init__(config)
        self._specs: dict[str, TaskSpec] = {}
        self._worlds: dict[str, WorldTask] = {}
        self._serves = False
        self._boxes: WorldBoxes | None = None
        self._stack = AsyncExitStack()
        self._grader: Grader | None = None
        self._breaker = Breaker.of_run(config.max_failures)
        self._gaps = OverfittingAlarm()
        self._kept = recording.store(config)

    async def start(self) -> None:
        """Prepares the environment for episodes. Loads the worlds (what agents act in). If any task needs
        boxes, checks Docker, images and GPUs, and opens the pools of boxes. For research tasks, except those
        with grading rules of their own (such as Harbor tasks), also does the following:

        - Prepares their data.
        - Checks that each grader works on files without content, so that a later failure is not the grader's.
        - Measures the baseline and the target (scores with which results are compared), if a secret seed
          splits the data into visible and hidden parts, and no earlier run has measured them for this seed.

        Raises MissingError if a task, Docker or an image is not available. Raises ConfigError if there are
        too few GPUs, or if a program would play the agent in a box without isolation.
        """
        taskset = self.config.taskset
        self._worlds = {name: sources.load(name) for name in taskset.worlds}
        for world in self._worlds.values():
            self._format(world)
        specs: Sequence[TaskSpec] = ()
        if taskset.research:
            self._format(None)
            specs = await asyncio.to_thread(taskset.research_tasks)
        if specs or any(world.in_boxes for world in self._worlds.values()):
            await self._start_boxes(specs)
        self._serves = True

    async def _start_boxes(self, specs: Sequence[TaskSpec]) -> None:
        """Checks that this machine can start the boxes, prepares the research tasks `specs`, and opens the
        two pools of boxes. Graders have their own pool, because an agent keeps its box while it waits for a
        grade. If they shared a pool, waiting agents could hold all its boxes, and no grader could start."""
        config = self.config
        # Not in a thread: an error while verifiers starts its own server would leave its socket open.
        gpus, graders_gpus = start_checks.gpu_pools(config, specs)
        start_checks.warn_of_trust(specs)
        chosen = await asyncio.to_thread(splits.chosen, config.split_seed) if specs else None
        ours = [spec for spec in specs if spec.rules is None]
        if config.provider == "docker":
            for image in sorted(self._images(ours)):
                await asyncio.to_thread(start_checks.check_docker, image)
        elif self._harness() is None:
            await asyncio.to_thread(start_checks.check_namespaces)
        others = [spec for spec in specs if spec.rules is not None]
        for spec in others:
            start_checks.check_rules(spec, config)
        await run_concurrently([start_checks.check_images(spec) for spec in others], 4)
        for spec in ours:
            assert chosen is not None
            await asyncio.to_thread(tasks.data.prepare, spec.on(chosen.of(spec.id)))
        agents = await self._stack.enter_async_context(
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
        self._boxes = boxes = WorldBoxes(agents, graders, config)
        for world in self._worlds.values():
            if world.box is not None:
                agents.prepare(boxes.spec(world.box))
        self._grader = Grader(graders, config.provider)
        if chosen is not None:
            ours = await self._measured(ours, chosen, agents, self._grader)
        self._specs = {spec.id: spec for spec in (*ours, *others)}
        for spec in ours:
            agents.prepare(self._box_spec(spec))

    async def _measured(
        self, specs: Sequence[TaskSpec], chosen: splits.Splits, agents: Pool, grader: Grader
    ) -> list[TaskSpec]:
        """Returns the research tasks `specs`, each with the split of its data that `chosen` gives, and with
        the baseline and the target (scores with which results are compared) for this split. Measures them if
        a secret seed determines the split, unless an earlier run has measured them for it. Also checks that
        each task's grader works on files without content. Raises InfrastructureError if a grader fails."""
        at_once, provider = self.config.grader_boxes, self.config.provider
        measuring = [
            measured_scale.on_split(spec, chosen.of(spec.id), agents, grader, provider)
            for spec in specs
        ]
        measured = await run_concurrently(measuring, at_once)
        await run_concurrently([grader.check(spec) for spec in measured], at_once)
        return measured

    def _images(self, specs: Sequence[TaskSpec]) -> set[str]:
        """Returns the names of all container images that boxes need: for the research tasks `specs`, and for
        all other tasks of the run."""
        of_worlds = [box for one in self._worlds.values() for box in (one.box, one.check_box)]
        images = {spec.image for spec in specs} | {
            box.image for box in of_worlds if box is not None
        }
        return images | ({self.config.image} if specs and self.config.image else set())

    async def stop(self) -> None:
        """Closes both pools, with all boxes of agents and graders."""
        self._serves = False
        self._boxes = self._grader = None
        await self._stack.aclose()

    async def run_episode(self, task: vf.Task, ctx: vf.ModelContext, **hooks: Any) -> vf.Episode:
        """Runs one episode with the model `ctx`, whose replies cannot make the conversion between messages
        and tokens fail (see `GuardedRenderer`). `verifiers` calls this method; `hooks` are its callbacks."""
        return await super().run_episode(task, guarded(ctx), **hooks)

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Runs one episode to its end, including the gradings, in a new world (what the agent acts in), with
        a box if the task needs one. `verifiers` calls this method. Raises InfrastructureError if the run must
        stop, because too many earlier episodes failed, or code of the user failed (see `check_breaker`)."""
        assert isinstance(task, AirTask)
        await self.check_breaker()
        name = task.data.task_id
        try:
            trace = await self._play(task, agents)
        except Exception as error:  # the agent cannot cause an error here
            what = f"{type(error).__name__}: {error}"
            await asyncio.to_thread(self._breaker.failed, what, name)
            raise
        if trace.ok:
            await asyncio.to_thread(self._breaker.ended_well, name)
        else:
            last = trace.last_error
            what = "no reason given" if last is None else f"{last.type}: {last.message}"
            action = trace.info.get("air", {}).get("failed_action")
            await asyncio.to_thread(self._breaker.failed, what, name, action)

    async def _play(self, task: AirTask, agents: vf.Agents) -> vf.Trace:
        if is_world(task.data.task_id):
            return await self._play_world(task, agents)
        return await self._play_in_box(task, agents)

    async def _play_world(self, task: AirTask, agents: vf.Agents) -> vf.Trace:
        task_id = task.data.task_id
        async with self.lend_world(task_id) as world:
            with self._recorder() as recorder:
                episode = self.world_episode(task_id, world, recorder)
                if world.box is None:
                    return await self._play_episode(episode, task, agents, NoBox.of(episode))
                world.box.note_use(**recording.use(self.config, task_id, episode.id))
                return await self._play_episode(episode, task, agents, lend(world.box, episode))

    async def _play_in_box(self, task: AirTask, agents: vf.Agents) -> vf.Trace:
        spec = self.spec(task.data.task_id)
        if not spec.split.public:  # the prompt names the baseline, which belongs to a split
            data = task.data.model_copy(update={"prompt": describe(spec)})
            task = type(task)(data, task.config)
        start = time.monotonic()
        async with self.lease(spec) as box:
            world = self.world(spec, box)
            world.times.queue = box.queue_seconds
            world.times.box = time.monotonic() - start
            with self._recorder() as recorder:
                episode = self._research_episode(world, recorder)
                box.note_use(**recording.use(self.config, spec.id, episode.id))
                gateway = None if episode.format else Gateway(box, episode)
                runtime = lend(box, episode, gateway)
                trace = await self._play_episode(episode, task, agents, runtime, gateway)
            gap = episode.metrics.get("validation_test_gap")
            if gap is not None and not episode.failed:
                self._gaps.note(spec.id, gap)
            return trace

    def _recorder(self) -> Recorder:
        return Recorder(recording.folder(self.config), uuid.uuid4().hex)

    async def _play_episode(
        self,
        episode: Episode,
        task: AirTask,
        agents: vf.Agents,
        runtime: vf.Runtime,
        gateway: Gateway | None = None,
    ) -> vf.Trace:
        """Lets `verifiers` play the episode in `runtime` (the place where commands run), writes the last line
        of the trajectory (air's record of the episode), and returns the trace (`verifiers`' record).
        `gateway` connects a program in the box that plays the agent to the model; None if air's harness plays
        it."""
        trace: vf.Trace | None = None
        try:
            if gateway:
                await gateway.open()
            trace = await agents.agent.run(task, runtime=runtime)
        finally:
            await episode.abandon()
            episode.failed = trace is None or not trace.ok
            if trace is not None and episode.failed and episode.failed_action is not None:
                trace.info.setdefault("air", {})["failed_action"] = episode.failed_action
            try:
                await recording.ended(episode, trace)
            finally:
                if episode.user_error:
                    await asyncio.to_thread(self._breaker.open, episode.user_error)
        if episode.failed:  # verifiers asked for no metrics, since there is no reward
            trace.record_metrics(episode.metrics)
        return trace

    @asynccontextmanager
    async def lend_world(self, task_id: str) -> AsyncIterator[WatchedWorld]:
        """Async context manager: yields a new world, in which an agent can act, of the task `task_id`, which
        is no research task. The world gets its own box if it needs one. The caller must call its `reset`,
        and its `close` inside the block. Raises MissingError if the run has no such task."""
        async with lent(self._world_task(task_id), self._boxes) as world:
            yield world

    def world_episode(self, task_id: str, world: WatchedWorld, recorder: Recorder) -> WorldEpisode:
        """Returns the state of a new episode of the task `task_id`. `world`, in which the agent acts, comes
        from `lend_world` for the same task. `recorder` writes the episode's trajectory, air's record of it.
        Raises MissingError if the run has no such task."""
        task = self._world_task(task_id)
        name, action_format = self._format(task)
        return WorldEpisode(
            id=recorder.episode,
            world=world,
            recorder=recorder,
            config=self.config,
            format=action_format,
            format_name=name,
            task=task,
        )

    def _research_episode(self, world: ResearchWorld, recorder: Recorder) -> ResearchEpisode:
        name, action_format = self._format(None)
        return ResearchEpisode(
            id=recorder.episode,
            world=world,
            recorder=recorder,
            config=self.config,
            format=action_format,
            format_name=name,
        )

    async def check_breaker(self) -> None:
        """Raises InfrastructureError if the run must stop: too many episodes had infrastructure errors
        (failures that are not the agent's), or code of the user failed. The run's failure breaker (see
        `air.env.failure_breaker`) counts them."""
        await asyncio.to_thread(self._breaker.check)

    async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
        """If the setting `credit` is `"segment"`, replaces the trace (`verifiers`' record, a training sample)
        of a finished episode by one trace for each segment of the episode. `verifiers` calls this method."""
        if self.config.credit == "segment":
            episode.traces[:] = [part for trace in episode.traces for part in split(trace)]

    @asynccontextmanager
    async def lease(self, spec: TaskSpec) -> AsyncIterator[Box]:
        """Async context manager: yields a box for the agent of the research task `spec`. After the block, the
        box is reset for another episode, or removed (see `WorldBoxes.lease`)."""
        self._check_serving()
        assert self._boxes is not None
        async with self._boxes.lease(self._box_spec(spec)) as box:
            yield box

    def world(self, spec: TaskSpec, box: Box) -> ResearchWorld:
        """Returns a new `ResearchWorld`, in which an agent works on one episode of the research task `spec`.
        Its place for commands is `box`, in which nothing has run yet. The caller must then call the world's
        `reset`, which copies the task's files into the box."""
        self._check_serving()
        assert self._grader is not None
        return ResearchWorld(
            task=spec,
            box=box,
            grader=self._grader,
            pay=DeltaReward(
                spec.reward_scale(), mode=self.config.delta, unscored=self.config.unscored
            ),
            counts=self.config.counts,
            tools=self._tools(spec, box),
            offers_tools=self._harness() is not None,
            keep=None if self._kept is None else self._kept.keep,
            max_validates=0 if spec.rules else self.config.validates,
            told_step=step_of(spec),
            outlasts_caller=True,
        )

    def spec(self, task_id: str) -> TaskSpec:
        """Returns the research task with the id `task_id`, with the data split of this run and the baseline
        and target scores for that split. Raises MissingError if the run has no such task."""
        self._check_serving()
        return _named(self._specs, task_id, "research task")

    def _world_task(self, task_id: str) -> WorldTask:
        """Returns the task with the id `task_id` among the run's tasks that are not research tasks, such as
        games. Raises MissingError if the run has no such task."""
        self._check_serving()
        return _named(self._worlds, task_id, "world")

    def _check_serving(self) -> None:
        if not self._serves:
            raise RuntimeError("the environment is not serving: enter `env.serving()` first")

    def _box_spec(self, spec: TaskSpec) -> BoxSpec:
        box_spec = spec.box_spec(self.config.provider)
        closed = box_spec.provider == "docker" and not (box_spec.network or box_spec.gpus)
        return box_spec.model_copy(
            update={
                "image": box_spec.image if spec.rules else self.config.image or box_spec.image,
                "reusable": self.config.reuse_boxes and closed and not box_spec.open,
            }
        )

    def _harness(self) -> AirHarnessConfig | None:
        """Returns the settings of air's own harness (its agent loop), or None if another harness is used."""
        harness = self.config.agent.harness
        if harness is None:
            return AirHarnessConfig()
        return harness if isinstance(harness, AirHarnessConfig) else None

    def _format(self, world: WorldTask | None) -> tuple[str, actions.ActionFormat | None]:
        """Returns the name of the action format (the syntax in which the model writes actions) and the format
        itself: for the task `world`, or for research tasks if `world` is None. Returns ("", None) if the
        harness (the loop that plays the agent) is not air's own. Raises ConfigError if the format does not
        suit the task."""
        harness = self._harness()
        if harness is None:
            return "", None
        name = harness.format or (RESEARCH_FORMAT if world is None else world.format)
        action_format = actions.get(name)
        if action_format.scripts != (world is None):
            task = "a research task" if world is None else world.id
            raise ConfigError(
                f"{name!r} writes {'no ' if world is None else ''}shell scripts, which {task} "
                f"{'needs' if world is None else 'cannot run'}",
                where="env.agent.harness.format",
                remedy="leave it out, then each task has its own; or use two sources",
            )
        if world is not None:
            action_format = action_format.with_tools(world.tools, answers=world.answers)
        return name, action_format

    def _tools(self, spec: TaskSpec, box: Box) -> Tools | None:
        """Returns the agent's tools for one episode, or None if the action format (the syntax in which the
        model writes actions) uses no tools."""
        harness, (_, action_format) = self._harness(), self._format(None)
        if harness is None or action_format is None or not action_format.uses_tools:
            return None
        return Tools(box, harness.tool_settings(spec.network))


def _named(tasks: Mapping[str, T], task_id: str, kind: str) -> T:
    """Returns the task with the id `task_id`. Raises MissingError if `tasks`, the tasks of a run by id, has
    none. `kind` is the noun for a task in the error's text."""
    if task_id not in tasks:
        known = ", ".join(tasks) or "none"
        raise MissingError(f"the run has no {kind} {task_id!r}", remedy=f"its {kind}s: {known}")
    return tasks[task_id]
