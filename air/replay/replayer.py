"""Replays recorded episodes of research tasks: repeats every action in a new box (sandbox), without a model,
and compares the results with the record.

Where the record has a grading, the artefact (the agent's graded files) in the new box is graded. A replay
needs no network, unless the task's settings allow its agent to reach some hosts.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from air import tasks
from air.errors import ConfigError
from air.replay import world_replay
from air.replay.comparison import Comparison, ReplayResult
from air.replay.options import ReplayOptions
from air.replay.recorded_settings import load_task
from air.replay.restore import RestoredEpisode, begin
from air.sandbox.contract.box import Box
from air.sandbox.contract.kinds import OF_ISOLATION
from air.sandbox.pool.box_pool import Pool
from air.sandbox.pool.gpu_leases import GpuPool
from air.tasks.grading import Grader
from air.tasks.spec import Provider, TaskSpec
from air.trajectories import Start, Trajectory


class Replayer:
    """Replays recorded episodes in boxes (sandboxes). It is an async context manager, which opens and closes
    the pools from which boxes are leased.

    `at_once` is the maximum number of agents' boxes that run at the same time, and also the maximum number of
    grader boxes. `gpus` are the two pools of GPUs that `air.replay.restore.gpu_pools` returns; None in place
    of a pool: no GPUs.
    """

    def __init__(
        self,
        options: ReplayOptions,
        *,
        at_once: int = 2,
        gpus: tuple[GpuPool | None, GpuPool | None] = (None, None),
    ) -> None:
        self._options = options
        self._at_once = at_once
        self._gpus = gpus
        self._stack = AsyncExitStack()
        self._graders: dict[Provider, Grader] = {}

    async def __aenter__(self) -> Replayer:
        """Opens the pools of boxes. Raises BoxStartError if the service that takes snapshots of boxes did not
        start."""
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="air-replay-"))
        self._grades = Path(folder)
        boxes, graders = self._gpus
        self._boxes = await self._stack.enter_async_context(Pool(self._at_once, gpus=boxes))
        self._grader_boxes = await self._stack.enter_async_context(
            Pool(self._at_once, gpus=graders, nested=True)
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def replay(self, trajectory: Trajectory) -> ReplayResult:
        """Replays one recorded episode, and returns the result of the comparison with its record, the
        `trajectory`.

        Raises UsageError if the trajectory cannot be replayed, and InfrastructureError if a box or a grader
        failed.
        """
        start = _start(trajectory)
        if start.world is not None:
            return await world_replay.replay(trajectory, start, self._options)
        task = load_task(start, trajectory.path, self._options)
        if (task.gpus or task.grader.gpus) and self._gpus[0] is None:
            raise ConfigError(
                f"needs {task.needs()}, but there is no --gpus",
                where=str(trajectory.path),
                remedy="name GPUs, or all: --gpus auto",
            )
        provider = self._options.provider or OF_ISOLATION[start.isolation].provider
        skip = self._options.from_step or 1
        if not 1 <= skip <= max(1, len(trajectory.steps)):
            raise ConfigError(
                f"there is no step {skip}: it has {len(trajectory.steps)}",
                where=str(trajectory.path),
                remedy="give another --from",
            )
        began = time.monotonic()
        result = ReplayResult(trajectory.path, task.id)
        async with AsyncExitStack() as stack:
            episode = await self._begin(trajectory, start, task, provider, skip - 1, stack)
            _note_image(result, start, episode.world.box)
            await Comparison(episode, self._options, result).run(skip - 1)
        result.seconds = time.monotonic() - began
        return result

    def grader_of(self, trajectory: Trajectory) -> Grader:
        """Returns a grader for the artefacts (graded files) of a recorded episode. The grader's boxes are of
        the kind that the option `provider` chooses or, if it is None, of the recorded kind.

        Raises ConfigError if air did not record the trajectory, or if episodes in its world have no
        artefacts.
        """
        start = _start(trajectory)
        if start.world is not None:
            raise ConfigError(
                f"{start.task} has no artefact that could be graded again",
                where=str(trajectory.path),
            )
        return self._grader(self._options.provider or OF_ISOLATION[start.isolation].provider)

    async def _begin(
        self,
        trajectory: Trajectory,
        start: Start,
        task: TaskSpec,
        provider: Provider,
        skip: int,
        stack: AsyncExitStack,
    ) -> RestoredEpisode:
        """Repeats the first `skip` steps of a recorded episode in a new box, without comparison. Returns the
        episode with the box in which the comparison is to continue. If `skip` is 0, this is the new box;
        otherwise it is a second box, which starts from a snapshot of the first. `stack` closes the returned
        box later."""
        spec = task.box_spec(provider)
        if image := self._options.image or start.image:
            if not image.isprintable():
                raise ConfigError(f"{image!r} is no image", where=str(trajectory.path))
            spec = spec.model_copy(update={"image": image})
        if task.rules is None:
            await asyncio.to_thread(tasks.data.prepare, task)
        grader = self._grader(provider)
        if not skip:
            box = await stack.enter_async_context(self._boxes.lease(spec))
            return await stack.enter_async_context(begin(trajectory, start, task, box, grader))
        async with (
            self._boxes.lease(spec) as first,
            begin(trajectory, start, task, first, grader) as before,
        ):
            await before.repeat_steps(skip)
            snapshot = await first.snapshot()
        await stack.enter_async_context(snapshot)
        box = await stack.enter_async_context(self._boxes.lease(spec, snapshot=snapshot))
        episode = before.fork(box)
        stack.push_async_callback(episode.world.abandon)
        return episode

    def _grader(self, provider: Provider) -> Grader:
        if provider not in self._graders:
            self._graders[provider] = Grader(self._grader_boxes, provider, self._grades / provider)
        return self._graders[provider]


def _start(trajectory: Trajectory) -> Start:
    start, where = trajectory.start, str(trajectory.path)
    if start is None:
        raise ConfigError("ended before it began: there is nothing to replay", where=where)
    if start.origin != "air" or not (start.world or start.isolation in OF_ISOLATION):
        raise ConfigError(
            f"was imported from {start.origin}: only what air recorded itself can be replayed",
            where=where,
        )
    return start


def _note_image(result: ReplayResult, start: Start, box: Box) -> None:
    if start.image_digest and box.image_digest and start.image_digest != box.image_digest:
        result.notes.append(
            f"image {start.image} was {start.image_digest[:19]}, and {box.spec.image} is "
            f"{box.image_digest[:19]}"
        )
