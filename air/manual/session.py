"""Plays an episode in which a person replies in place of a model. The person can undo the latest steps.

`AirHarness` (the loop that plays the agent) handles a person's reply as it handles a model's reply. So
observations, grades, rewards and the record are the same as in a model's episode. The length of the prompt is
not limited, since there is no model. The time in which the person writes a reply counts as the model's time,
which is part of the agent's time. The time that copies and undos take does not count.

Before each reply the workspace is copied out of the running box. (A `Box.snapshot` would end the box's
processes and empty `/tmp`, and so change the next observation.) An undo starts a new box with that copy. It
restores the workspace, the state of the agent's tools (open file, shell and notes), the validations, the
rewards, the number of turns, and the record. It does not restore files outside the workspace (such as those
in `/tmp`), processes, or the elapsed time. The grader stores the grades of each artefact, so after an undo
the same artefact is not graded a second time. If an undo fails, the episode has no box; undoing the same step
again starts a new box.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from air import actions, tasks
from air.env import recording
from air.env.chat.harness import AirHarness, Reply
from air.env.config import AirHarnessConfig, ResearchEnvConfig
from air.env.diffs import Differ
from air.env.environment import ResearchEnv
from air.env.episode import Counters, Episode
from air.env.token_budget import counter_for
from air.errors import AirError, ConfigError, InfrastructureError, UsageError, boundary
from air.manual.draft import Draft
from air.manual.undo import Point, unpack
from air.replay.restore import Play, ReplayOptions, begin, format_of, load_task
from air.rewards.terms import RewardSettings
from air.sandbox.contract.box import ExecResult
from air.sandbox.contract.kinds import OF_ISOLATION
from air.sandbox.contract.shell import Shell
from air.tasks.spec import TaskSpec
from air.trajectories import Step, TokenRef, Trajectory
from air.worlds.research.world import ResearchWorld, describe

MOST_POINTS = 50
"""The highest number of steps that can be undone. Older steps cannot be undone."""
T = TypeVar("T")


def recorded_config(trajectory: Trajectory, provider: str | None = None) -> dict[str, Any]:
    """Returns the settings with which an episode was recorded, as nested dicts.

    The dict has the same keys as the table `[….env]` of a run file (TOML).

    Args:
        provider: the type of runtime (`docker` or `subprocess`) that replaces the recorded one; None: keeps
            the recorded one.

    Raises:
        ConfigError: air did not record the episode.
    """
    start, where = trajectory.start, str(trajectory.path)
    if start is None or start.origin != "air" or start.isolation not in OF_ISOLATION:
        raise ConfigError("is no episode that air itself recorded", where=where)
    harness = AirHarnessConfig.own_fields() & set(start.settings)
    known = {name: start.settings[name] for name in harness}
    played = start.format or format_of(start, trajectory.path).name
    pay = {n: start.pay[n] for n in RewardSettings.model_fields if n in start.pay}
    return {
        "taskset": {
            "id": "air",
            "tasks": [start.task],
            "task_roots": list(start.task_roots),
            "mlgym_root": start.mlgym_root,
        },
        "agent": {
            "harness": {"id": "air", "format": played, **known},
            "runtime": {"type": provider or OF_ISOLATION[start.isolation].runtime},
            "max_turns": start.max_turns,
        },
        "image": start.image or None,
        **pay,
    }


class Interrupted(AirError):
    """The error that a running action raises after a call of `ManualEpisode.interrupt`.

    Its text tells whether the action was undone.
    """


class ManualEpisode:
    """One episode that a person plays in place of a model, for example in the command `air shell`.

    Async context manager: `async with` starts the episode and yields this object. All methods must be called
    in the same event loop.

    Args:
        config: the settings of the environment; they must name one task.
        origin: a recorded episode to continue, and the number of its first steps, which are repeated in the
            new box; None: a new episode.
        seed: the seed of a new episode; not used with `origin`.
    """

    def __init__(
        self,
        config: ResearchEnvConfig,
        *,
        origin: tuple[Trajectory, int] | None = None,
        seed: int = 0,
    ) -> None:
        harness = config.agent.harness or AirHarnessConfig()
        if not isinstance(harness, AirHarnessConfig):
            raise ConfigError("only air's own harness plays here", where="env.agent.harness.id")
        self._harness = AirHarness(harness)
        self._stack = AsyncExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory("-air-shell")))
        self.config = config.model_copy(update={"record_dir": self._folder})
        self._env = ResearchEnv(self.config)
        self._origin, self._seed = origin, seed
        self._id = uuid.uuid4().hex
        self.record = Draft(self._id)
        self._points: list[Point] = []
        self._running: asyncio.Task[Any] | None = None
        self._stopped = False
        self.outside = False
        """Whether anything other than the recorded steps may have changed the box or the prompt. If so, a
        replay of the saved trajectory may have other results than the record."""

    async def __aenter__(self) -> ManualEpisode:
        """Starts the episode: takes a box from the pool, and puts the task's files into it.

        If `origin` was given, repeats the first steps of that recorded episode.

        Returns this object.

        Raises:
            UsageError: the task or the recorded episode cannot be played.
            InfrastructureError: the box failed.
        """
        try:
            await self._open()
        except BaseException:  # also at a cancellation, so that no box remains
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def _open(self) -> None:
        settings = self._harness.config
        with boundary(ConfigError, "env.agent.harness.tokenizer", ImportError, OSError, ValueError):
            self._tokens = await asyncio.to_thread(counter_for, settings.tokenizer)
        task = await asyncio.to_thread(self._task)
        await self._stack.enter_async_context(self._serving())
        self._boxes = await self._stack.enter_async_context(AsyncExitStack())
        box = await self._boxes.enter_async_context(self._env.lease(task))
        world, play = self._env.world(task, box), None
        if self._origin is None:
            await world.reset(self._seed)
        else:
            play = await self._played(world)
            world = play.world
        self.episode = self._episode(world, Counters())
        self._begin(play)
        if play is not None:
            await self._go(play)
        with world.times.as_recording():
            await self._watch(self.episode)
        self.shell = Shell(world.box)

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        try:
            await self._env.start()
            yield
        finally:
            await self._env.stop()

    def _task(self) -> TaskSpec:
        given = self.config.taskset
        if self._origin is None:
            return tasks.load(given.tasks[0], given.task_roots, mlgym_root=given.mlgym_root)
        trajectory = self._origin[0]
        assert trajectory.start is not None
        options = ReplayOptions(task_roots=tuple(given.task_roots), mlgym_root=given.mlgym_root)
        return load_task(trajectory.start, trajectory.path, options)

    async def _played(self, world: ResearchWorld) -> Play:
        """Puts the task's files into the box of `world`; returns the recorded episode before its first step.

        The recorded episode is the one in `origin`, an argument of this class.
        """
        assert self._origin is not None
        trajectory, start = self._origin[0], self._origin[0].start
        assert start is not None
        play = await begin(trajectory, start, world.task, world.box, world.grader)
        play.world.keep = world.keep
        return play

    def _episode(self, world: ResearchWorld, counters: Counters) -> Episode:
        return Episode(
            id=self._id,
            world=world,
            recorder=self.record,
            config=self.config,
            counters=counters,
            recorded=len(world.validations),
            format=actions.get(self._harness.config.format),
        )

    def _begin(self, play: Play | None) -> None:
        """Writes the first line of this episode's trajectory.

        Args:
            play: the recorded episode that is continued; None: a new episode.
        """
        episode, turns = self.episode, self.max_turns
        task = episode.world.task
        if play is not None and turns != play.start.max_turns:
            self.outside = True  # the recorded prompt may contain the recorded limit of turns
        self.record.write(
            "start",
            **recording.started(episode),
            task=task.id,
            task_hash=task.hash,
            seed=episode.world.seed,
            max_turns=turns,
            system=episode.system(None) if play is None else play.start.system,
            prompt=episode.prompt(describe(task), turns) if play is None else play.start.prompt,
            model="person",
            harness=self._harness.config.id,
            worker=os.getpid(),
        )

    async def _go(self, play: Play) -> None:
        """Repeats the first steps of a recorded episode, and copies their lines to the new trajectory."""
        assert self._origin is not None
        trajectory, steps = self._origin
        await play.go(steps)
        for step in trajectory.steps[:steps]:
            self._count(step)
            for line in (step, *trajectory.validations_of(step)):
                kind = "step" if line is step else "validate"
                self.record.write(kind, **line.model_dump(mode="json"))
        episode, left = self.episode, self.left
        episode.recorded = len(episode.world.validations)
        if episode.world.submitted:
            episode.why_ended = "submit"
        elif left is not None and left <= 0:
            episode.why_ended = "turns"

    def _count(self, step: Step) -> None:
        """Adds a repeated step to the episode's counters, as `AirHarness.act` would have done."""
        episode, used = self.episode, step.tokens or TokenRef()
        counters, limit = episode.counters, self._harness.config.max_context_tokens
        cut = step.problem == "length"
        full = cut and limit is not None and used.prompt + used.completion >= limit
        counters.turns = step.turn
        counters.cut_replies += cut
        counters.context_ends += full
        counters.format_errors += bool(step.problem) and not full
        if not cut:
            episode.malformed_in_a_row = (episode.malformed_in_a_row + 1) if step.problem else 0

    async def _watch(self, episode: Episode) -> None:
        """Reads all files of the workspace, so that the changes made by the next step can be found."""
        episode.differ = Differ(episode.world.box)
        await episode.differ.start()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of the trajectory so far, each as a dict."""
        return self.record.lines

    @property
    def max_turns(self) -> int | None:
        """The highest allowed number of turns in the episode, or None if there is no limit."""
        turns: int | None = self.config.agent.max_turns
        return turns

    @property
    def left(self) -> int | None:
        """The number of turns that the person may still play, or None if there is no limit."""
        return None if self.max_turns is None else self.max_turns - self.episode.counters.turns

    async def act(self, reply: str, seconds: float = 0.0) -> list[dict[str, Any]]:
        """Plays one turn with a person's reply; returns the lines that the turn added to the trajectory.

        If the turn is interrupted, or fails because of the infrastructure, this method undoes the turn before
        it raises the error. The error's text tells whether the undo succeeded.

        Args:
            reply: the person's reply, which is handled like the reply of a model.
            seconds: the number of seconds in which the person wrote the reply.

        Raises:
            UsageError: the episode is over.
            Interrupted: `interrupt` stopped the turn.
            InfrastructureError: a box or a grader failed.
        """
        if why := self.episode.why_ended:
            raise UsageError(f"the episode is over ({why})", remedy="`:undo` undoes the last step")
        with self.episode.world.times.as_recording():
            point = await self._interruptible(Point.of(self.episode, len(self.lines), self._folder))
        try:
            await self._interruptible(self._turn(reply, seconds))
        except InfrastructureError as error:
            raise InfrastructureError(f"{error} — {await self._give_up(point)}") from error
        except Interrupted:
            raise Interrupted(f"stopped; {await self._give_up(point)}") from None
        self._points.append(point)
        if len(self._points) > MOST_POINTS:
            self._points.pop(0).forget()
        return self.lines[point.lines :]

    async def _give_up(self, point: Point) -> str:
        """Undoes a turn that did not finish; returns one line of text.

        The text lists what was undone, or gives the reason why the undo failed.

        Args:
            point: the stored state of the episode before the turn.
        """
        del self.lines[point.lines :]
        self._points.append(point)
        try:
            return await self._back()
        except AirError as error:  # the caller raises the first error
            turn = self.episode.counters.turns
            return f"step {turn} is not undone: {error} — `:undo` tries again"

    async def _turn(self, reply: str, seconds: float) -> None:
        episode = self.episode
        episode.counters.turns += 1
        episode.counters.model_seconds += seconds
        episode.note_call(seconds, TokenRef())
        left = self.left
        typed = Reply(text=reply, cut=False, total_tokens=0, completion_tokens=0)
        await self._harness.act(episode, typed, self._tokens, left)
        if left is not None and left <= 0:
            episode.why_ended = episode.why_ended or "turns"
        if episode.why_ended:
            await episode.finish()
            await recording.ended(episode, None)

    async def undo(self) -> str:
        """Undoes the last step by starting a new box with the earlier workspace.

        Returns one line of text that lists what was restored.

        Raises:
            UsageError: there is no step to undo, or the workspace was not copied before the last step.
            MissingError: the container engine (Docker or Podman) or the box's image is missing.
            InfrastructureError: the new box failed. A further call of `undo` tries again.
        """
        if not self._points:
            raise UsageError("there is no step to undo")
        point = self._points[-1]
        if point.copy is None:
            turn = self.episode.counters.turns
            raise UsageError(f"step {turn} cannot be undone: {point.why_not}")
        return await self._back()

    async def bash(self, command: str) -> ExecResult:
        """Runs a command in the box.

        The command is not a step of the episode, and the trajectory does not contain it.

        Returns the command's result. The next call starts in the working directory in which this command
        ended, with the environment variables that the command exported.

        Raises:
            Interrupted: `interrupt` stopped the command.
            BoxDiedError: the box is gone.
        """
        self.outside = True
        limit = self.episode.world.task.limits.exec_seconds
        return await self._interruptible(self.shell.exec(command, timeout=limit))

    def interrupt(self) -> None:
        """Stops the call of `act` or `bash` that is running, which then raises `Interrupted`.

        This method must be called in the event loop of the episode.
        """
        if self._running is not None:
            self._stopped = True
            self._running.cancel()

    async def _interruptible(self, work: Coroutine[Any, Any, T]) -> T:
        running, self._stopped = asyncio.create_task(work), False
        self._running = running
        try:
            return await running
        except asyncio.CancelledError:
            if self._stopped:
                raise Interrupted("stopped") from None
            raise  # the caller was cancelled, not only the action
        finally:
            self._running = None

    async def _back(self) -> str:
        """Restores the last stored state in a new box; returns one line of text that lists what was restored.

        If this fails, the stored state remains, so that the caller can try again.
        """
        point, turn = self._points[-1], self.episode.counters.turns
        world = replace(point.world, grading=False)
        with world.times.as_recording():
            if point.copy is not None:
                world = await self._refilled(world, point.copy)
            episode = self._episode(world, replace(point.counters))
            episode.malformed_in_a_row = point.malformed
            await self._watch(episode)
        if point.copy is not None:
            self.shell = Shell(world.box)
        self.episode = episode
        del self.lines[point.lines :]
        self._points.pop().forget()
        self.outside = True
        if point.copy is None:
            return f"step {turn} is not recorded, but its effects stay: {point.why_not}"
        return (
            f"step {turn} is undone: workspace, scores, rewards, turns; not files elsewhere "
            "(/tmp and processes are gone) and not the time"
        )

    async def _refilled(self, world: ResearchWorld, kept: Path) -> ResearchWorld:
        """Closes the episode's box, and starts a new one; returns a copy of `world` that uses the new box.

        Args:
            world: the world of the episode, in its earlier state.
            kept: a file with a copy of the workspace, which is unpacked in the new box.
        """
        await self._boxes.aclose()  # before the new lease: the old box may hold the only GPU
        box = await self._boxes.enter_async_context(self._env.lease(world.task))
        await unpack(kept, box)
        tools = None if world.tools is None else world.tools.carried(box)
        return replace(world, box=box, tools=tools)

    def save(self, path: Path) -> None:
        """Writes the episode's trajectory to the file `path`, as `Draft.save` describes."""
        origin = [] if self._origin is None else [self._origin[0].path.parent]
        self.record.save(path, [self._folder, *origin])
