"""Plays an episode of a research task with a person in place of the model, and can undo the latest steps.
Used by the command `air shell`.

`air.env.chat.harness.AirHarness` processes a person's reply in the same way as a model's reply, so grades,
rewards and the trajectory (the record of the episode) are the same. The time for writing a reply counts as
the agent's time. The time for copying the workspace and for undoing does not count.

Before each reply, the workspace (the agent's folder) is copied out of the running box, the sandbox in which
the agent's commands run. (`Box.snapshot` would end the box's processes.) An undo starts a new box with that
copy. It restores the workspace, the state of the tools, the gradings that the agent asked for (validates)
with their scores, the rewards, the number of turns, and the trajectory. It does not restore files outside the
workspace, processes or the elapsed time. If an undo fails, the episode has no box until another undo
succeeds.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import tempfile
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from air import actions
from air.env import recording
from air.env.chat.harness import AirHarness, Reply
from air.env.config import RESEARCH_FORMAT, AirHarnessConfig, ResearchEnvConfig
from air.env.diffs import Differ
from air.env.environment import ResearchEnv
from air.env.episode import Counters
from air.env.observation_truncation import counter_for
from air.env.research_episode import ResearchEpisode
from air.errors import AirError, ConfigError, InfrastructureError, UsageError, boundary
from air.manual.draft import Draft
from air.manual.undo import UndoPoint, unpack
from air.manual.world_session import call_of
from air.replay.options import ReplayOptions
from air.replay.recorded_settings import format_of, load_task
from air.replay.restore import RestoredEpisode, begin
from air.rewards.terms import RewardSettings
from air.sandbox.contract.box import ExecResult
from air.sandbox.contract.kinds import OF_ISOLATION
from air.sandbox.contract.shell import Shell
from air.tasks import splits, stage
from air.tasks.spec import TaskSpec
from air.trajectories import Step, TokenRef, Trajectory
from air.worlds.research.observations import describe
from air.worlds.research.world import ResearchWorld

MOST_POINTS = 50
"""The maximum number of steps that can be undone one after another, the last step first."""
T = TypeVar("T")


def recorded_config(trajectory: Trajectory, provider: str | None = None) -> dict[str, Any]:
    """Returns the settings with which an episode was recorded, as nested dicts with the keys of an
    environment's table in a run file (`taskset`, `agent`, …).

    `provider` replaces the recorded kind of box: `docker` for containers, `subprocess` for process boxes
    (processes without a container). None keeps the recorded kind. Raises ConfigError if the trajectory (the
    record) was not written by air.
    """
    start, where = trajectory.start, str(trajectory.path)
    if (
        start is None
        or start.origin != "air"
        or not (start.world or start.isolation in OF_ISOLATION)
    ):
        raise ConfigError("is no episode that air itself recorded", where=where)
    harness = AirHarnessConfig.own_fields() & set(start.settings)
    settings = {name: start.settings[name] for name in harness}
    format_name = start.format or format_of(start, trajectory.path).name
    pay = {n: start.pay[n] for n in RewardSettings.model_fields if n in start.pay}
    return {
        "taskset": {
            "id": "air",
            "tasks": [start.task],
            "task_roots": list(start.task_roots),
            "mlgym_root": start.mlgym_root,
            "harbor": dict(start.harbor),
        },
        "agent": {
            "harness": {"id": "air", "format": format_name, **settings},
            "runtime": {"type": provider or _runtime(start.isolation)},
            "max_turns": start.max_turns,
        },
        "image": start.image or None,
        "max_validates": start.max_validates or None,  # 0: the task allows none
        "split_seed": splits.recorded(start.split, trajectory.path).secret,
        **pay,
    }


def _runtime(isolation: str) -> str:
    kind = OF_ISOLATION.get(isolation)
    return "docker" if kind is None else kind.runtime  # a world has no box


class Interrupted(AirError):
    """Raised by a running `ManualEpisode.act` or `ManualEpisode.bash` if `ManualEpisode.interrupt` stops it.
    In the case of `act`, the error's message says whether the turn was undone."""


class ManualEpisode:
    """One episode of a research task that a person plays in place of a model. `async with` starts and ends
    it.

    All methods must be called in the same event loop. `config` must name exactly one task. `origin` is a
    recorded episode to continue: a pair (trajectory, number of steps to repeat from the first step on). If
    `origin` is None, a new episode starts with `seed`. Raises ConfigError if `config` has another harness
    than air's own (the harness drives the conversation between model and task).
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
        self._points: list[UndoPoint] = []
        self._running: asyncio.Task[Any] | None = None
        self._stopped = False
        self.outside = False
        """Whether something that is not recorded as a step may have changed the box or the prompt, such as an
        undo or a command of `bash`. Then a replay of the trajectory may give different results."""

    async def __aenter__(self) -> ManualEpisode:
        """Starts the episode in a new box (sandbox), and repeats the first steps of `origin` if it is not
        None.

        Raises UsageError if the episode cannot be played, and InfrastructureError if the box failed.
        """
        try:
            await self._open()
        except BaseException:  # also at a cancellation, so that no box remains
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def _task_id(self) -> str:
        """Returns the id of the only task that the settings name. Raises ConfigError if they name several
        tasks."""
        first: str
        first, *others = self.config.taskset.members
        if others:
            raise ConfigError(
                f"names {1 + len(others)} tasks",
                where=self.config.taskset.tasks[0],
                remedy=f"name one, such as {first}",
            )
        return first

    async def _open(self) -> None:
        settings = self._harness.config
        with boundary(ConfigError, "env.agent.harness.tokenizer", ImportError, OSError, ValueError):
            self._tokens = await asyncio.to_thread(counter_for, settings.tokenizer)
        task = await asyncio.to_thread(
            self._recorded_task
        )  # before a box starts: it can be missing
        name = self._task_id()
        await self._stack.enter_async_context(self._serving())
        task = task or self._env.spec(name)
        self._boxes = await self._stack.enter_async_context(AsyncExitStack())
        box = await self._boxes.enter_async_context(self._env.lease(task))
        world, play = self._env.world(task, box), None
        if self._origin is None:
            await world.reset(self._seed)
            self._boxes.push_async_callback(world.abandon)
        else:
            play = await self._replay_of_origin(world)
            world = play.world
        self.episode = self._episode(world, Counters())
        self._begin(play)
        if play is not None:
            await self._repeat_steps(play)
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

    def _recorded_task(self) -> TaskSpec | None:
        """Returns the task of the recorded episode `origin`, loaded from this machine, or None if there is no
        `origin`."""
        if self._origin is None:
            return None
        taskset, trajectory = self.config.taskset, self._origin[0]
        assert trajectory.start is not None
        options = ReplayOptions(task_roots=tuple(taskset.task_roots), mlgym_root=taskset.mlgym_root)
        return load_task(trajectory.start, trajectory.path, options)

    async def _replay_of_origin(self, world: ResearchWorld) -> RestoredEpisode:
        """Prepares the box of `world` for the task, and returns an object that can repeat the steps of the
        recorded episode `origin` there. No step is repeated yet."""
        assert self._origin is not None
        trajectory, start = self._origin[0], self._origin[0].start
        assert start is not None
        play = await self._boxes.enter_async_context(
            begin(trajectory, start, world.task, world.box, world.grader)
        )
        play.world.keep = world.keep
        return play

    @property
    def _format(self) -> str:
        return self._harness.config.format or RESEARCH_FORMAT

    def _episode(self, world: ResearchWorld, counters: Counters) -> ResearchEpisode:
        return ResearchEpisode(
            id=self._id,
            world=world,
            recorder=self.record,
            config=self.config,
            counters=counters,
            recorded=len(world.validations),
            format=world.offered(actions.get(self._format)),
            format_name=self._format,
        )

    def _begin(self, play: RestoredEpisode | None) -> None:
        """Writes the first line of the new trajectory (the record of the episode). `play` is the prepared
        replay of the recorded episode `origin`, or None for a new episode."""
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
            prompt=episode.prompt(describe(task)) if play is None else play.start.prompt,
            model="person",
            harness=self._harness.config.id,
            worker=os.getpid(),
        )

    async def _repeat_steps(self, play: RestoredEpisode) -> None:
        """Repeats the first steps of the recorded episode `origin`, and copies their lines from its
        trajectory into the new trajectory. `play` is the prepared replay of `origin`."""
        assert self._origin is not None
        trajectory, steps = self._origin
        await play.repeat_steps(steps)
        for step in trajectory.steps[:steps]:
            self._count(step)
            for line in (step, *trajectory.validations_of(step)):
                kind = "step" if line is step else "validate"
                self.record.write(kind, **line.model_dump(mode="json"))
        episode, left = self.episode, self.turns_left
        episode.recorded = len(episode.world.validations)
        if episode.world.submitted:
            episode.why_ended = "submit"
        elif left is not None and left <= 0:
            episode.why_ended = "turns"

    def _count(self, step: Step) -> None:
        """Updates the episode's counters, such as those of turns and of format errors, for the repeated step
        `step` of a recorded episode. A new step would change them in the same way."""
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

    async def _watch(self, episode: ResearchEpisode) -> None:
        """Reads all files of the workspace of `episode`, to find out later which files the next step has
        changed."""
        episode.differ = Differ(episode.world.box)
        await episode.differ.start()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of the trajectory (the record of the episode) so far, each as a dict."""
        return self.record.lines

    @property
    def max_turns(self) -> int | None:
        """The maximum number of turns in the episode, or None if there is no limit."""
        turns: int | None = self.config.agent.max_turns
        return turns

    @property
    def turns_left(self) -> int | None:
        """The number of turns that the person may still play, or None if there is no limit."""
        return None if self.max_turns is None else self.max_turns - self.episode.counters.turns

    def written(self, text: str) -> str | None:
        """Converts a typed tool call, `NAME {"argument": value}`, to a reply in the action format, as a model
        would write it. Returns None if `text` does not call a tool of the task's MCP servers (Model Context
        Protocol). Raises UsageError if the arguments are not a JSON object."""
        servers, name = self.episode.world.servers, text.partition(" ")[0]
        if servers is None or name not in servers.names or not text[len(name) :].startswith(" {"):
            return None
        assert self.episode.format is not None
        with boundary(UsageError, "a call of a tool", ValueError):
            return self.episode.format.render("", call_of(text))

    async def act(self, reply: str, seconds: float = 0.0) -> list[dict[str, Any]]:
        """Plays one turn with a person's reply. Returns the lines that this turn added to the trajectory (the
        record of the episode), each as a dict.

        `reply` is the whole reply in the action format, as a model would write it. `seconds` is the time that
        the person took to write the reply. Raises UsageError if the episode is over, Interrupted if
        `interrupt` stopped the turn, and InfrastructureError if the turn failed. In the last two cases the
        turn is undone, and the error's message says whether the undo succeeded.
        """
        if why := self.episode.why_ended:
            raise UsageError(f"the episode is over ({why})", remedy="`:undo` undoes the last step")
        with self.episode.world.times.as_recording():
            point = await self._interruptible(
                UndoPoint.of(self.episode, len(self.lines), self._folder)
            )
        try:
            await self._interruptible(self._turn(reply, seconds))
        except InfrastructureError as error:
            raise InfrastructureError(f"{error} — {await self._undo_failed_turn(point)}") from error
        except Interrupted:
            raise Interrupted(f"stopped; {await self._undo_failed_turn(point)}") from None
        self._points.append(point)
        if len(self._points) > MOST_POINTS:
            self._points.pop(0).forget()
        return self.lines[point.lines :]

    async def _undo_failed_turn(self, point: UndoPoint) -> str:
        """Undoes a turn that failed. `point` is the undo point (saved state) from before the turn. Returns
        one line of text: what was undone, or why the undo failed."""
        del self.lines[point.lines :]
        self._points.append(point)
        try:
            return await self._restore_last_point()
        except AirError as error:  # the caller raises the first error
            turn = self.episode.counters.turns
            return f"step {turn} is not undone: {error} — `:undo` tries again"

    async def _turn(self, reply: str, seconds: float) -> None:
        episode = self.episode
        episode.counters.turns += 1
        episode.counters.model_seconds += seconds
        episode.note_call(seconds, TokenRef())
        left = self.turns_left
        answer = Reply(text=reply, cut=False, total_tokens=0, completion_tokens=0)
        await self._harness.act(episode, answer, self._tokens, left)
        if left is not None and left <= 0:
            episode.why_ended = episode.why_ended or "turns"
        if episode.why_ended:
            await episode.finish()
            await recording.ended(episode, None)

    async def undo(self) -> str:
        """Undoes the last step by starting a new box (sandbox). Returns one line of text about what was
        restored.

        Raises UsageError if no step can be undone, MissingError if the container engine or the image is
        missing, and InfrastructureError if the new box failed. After an InfrastructureError, another call
        tries again.
        """
        if not self._points:
            raise UsageError("there is no step to undo")
        point = self._points[-1]
        if point.copy is None:
            turn = self.episode.counters.turns
            raise UsageError(f"step {turn} cannot be undone: {point.why_not}")
        return await self._restore_last_point()

    async def bash(self, command: str) -> ExecResult:
        """Runs a command of the person in the box (sandbox). The command is not a step of the episode and is
        not recorded in the trajectory.

        The working directory and the exported variables carry over to the next call of `bash`. The time limit
        is the task's limit for a command (`limits.exec_seconds`). Raises Interrupted if `interrupt` stopped
        the command, and BoxDiedError if the box is gone.
        """
        self.outside = True
        limit = self.episode.world.task.limits.exec_seconds
        return await self._interruptible(self.shell.exec(command, timeout=limit))

    def interrupt(self) -> None:
        """Stops the running `act` or `bash`, which then raises `Interrupted`. Does nothing if neither runs.
        Must be called in the event loop."""
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

    async def _restore_last_point(self) -> str:
        """Restores the state of the episode at the last undo point, and removes the undo point if this
        succeeds. Returns a message about what was restored. If the undo point has no copy of the workspace,
        restores only the record, scores and counters; the box and its files stay as they are."""
        point, turn = self._points[-1], self.episode.counters.turns
        world = point.world
        await self.episode.world.abandon()
        with world.times.as_recording():
            if point.copy is not None:
                world = await self._restore_workspace(world, point.copy)
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

    async def _restore_workspace(self, world: ResearchWorld, archive: Path) -> ResearchWorld:
        """Closes the box, and starts a new one with the copy of the workspace in the file `archive`. Returns
        a copy of `world` (the state of the episode) that uses the new box."""
        await self._boxes.aclose()  # before the new lease: the old box may hold the only GPU
        box = await self._boxes.enter_async_context(self._env.lease(world.task))
        if world.task.rules is not None:
            await stage(world.task, box)
            for entry in await box.list(box.workspace, user="root"):
                await box.remove(posixpath.join(box.workspace, entry.path), user="root")
        await unpack(archive, box)
        world = world.fork(box)
        self._boxes.push_async_callback(world.abandon)
        return world

    def save(self, path: Path) -> None:
        """Writes the record of the episode (trajectory) to the file `path`, and copies the graded artefacts
        (archives of the agent's files) to its folder. Raises ConfigError if `path` does not end in `.jsonl`,
        or exists and was not saved by this object. Raises InfrastructureError if the disk is full or the
        folder is not writable."""
        origin = [] if self._origin is None else [self._origin[0].path.parent]
        self.record.save(path, [self._folder, *origin])
