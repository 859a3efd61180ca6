"""Plays an episode of a world other than a research task (such as a game) in which a person or a script
writes the replies instead of a model. Used by the commands `air shell` and `air demos`.

`air.env.chat.harness.AirHarness` processes the replies in the same way as a model's replies, so rewards and
the trajectory (the record of the episode) are the same. An undo repeats all replies except the last in a new
world with the same seed. So it works only in worlds that replay exactly: the same seed and replies always
give the same observations and rewards.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from air import json_lines
from air.actions import Action, ToolCall
from air.env import recording
from air.env.chat.harness import AirHarness, Reply
from air.env.config import AirHarnessConfig, ResearchEnvConfig
from air.env.environment import ResearchEnv
from air.env.observation_truncation import counter_for
from air.env.world_episode import WorldEpisode
from air.errors import BoxEndedError, ConfigError, UsageError
from air.manual.draft import Draft
from air.replay import world_replay
from air.sandbox.contract.box import Box
from air.sandbox.contract.result import ExecResult
from air.trajectories import TokenRef, Trajectory
from air.worlds import sources

BASH_SECONDS = 600.0
"""The time limit, in seconds, of a command that the person runs in the box without recording it as a step
(see `ManualWorld.bash`)."""


class ManualWorld:
    """One episode of a world (such as a game) in which a person or a script writes the replies instead of a
    model. `async with` starts and ends it.

    All methods must be called in the same event loop. `config` must name exactly one task. The world is reset
    with `seed`. `replies` are played at the start, for example those of a recorded episode. The record names
    `player` as the model. Raises ConfigError if `config` has another harness than air's own (the harness
    drives the conversation between model and world).
    """

    def __init__(
        self,
        config: ResearchEnvConfig,
        *,
        seed: int = 0,
        replies: Sequence[str] = (),
        player: str = "person",
    ) -> None:
        harness = config.agent.harness or AirHarnessConfig()
        if not isinstance(harness, AirHarnessConfig):
            raise ConfigError("only air's own harness plays here", where="env.agent.harness.id")
        self.task = sources.load(config.taskset.tasks[0])
        self.config, self._harness = config, AirHarness(harness)
        self._env = ResearchEnv(config)
        self._seed, self._replies, self._player = seed, list(replies), player
        self.record = Draft(uuid.uuid4().hex)
        self.episode: WorldEpisode
        self._world = AsyncExitStack()
        self._running: asyncio.Task[None] | None = None
        self.outside = False
        """Whether something that is not recorded as a step, such as a command of `bash`, may have changed the
        episode."""

    @classmethod
    def of(cls, config: ResearchEnvConfig, origin: Trajectory, steps: int) -> ManualWorld:
        """Returns an episode that starts by repeating the first `steps` steps of the recorded episode
        `origin`. Raises ConfigError if the world has changed since the recording, or does not replay exactly:
        the same seed and actions must always give the same results (`WorldTask.replays`)."""
        start = origin.start
        assert start is not None
        manual = cls(config, seed=start.seed, replies=[step.reply for step in origin.steps[:steps]])
        world_replay.check(start, manual.task, origin.path)
        return manual

    async def __aenter__(self) -> ManualWorld:
        try:
            await self._env.start()
            await self._begin()
            replies, self._replies = self._replies, []
            for reply in replies:
                await self.act(reply)
        except BaseException:  # cancellation too: no box stays
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._world.aclose()
        await self._env.stop()

    async def _begin(self) -> None:
        """Creates and resets a new world, and writes the first line of the record (trajectory)."""
        self.record.lines.clear()
        world = await self._world.enter_async_context(self._env.lend_world(self.task.id))
        self._world.push_async_callback(world.close)
        self.episode = self._env.world_episode(self.task.id, world, self.record)
        await self.episode.reset(self._seed)
        self.record.write(
            "start",
            **recording.started(self.episode),
            task=self.task.id,
            task_hash=self.task.digest,
            seed=self._seed,
            max_turns=self.episode.max_turns,
            system=self.episode.system(None),
            prompt=self.episode.prompt(self.task.instructions),
            model=self._player,
            harness=self._harness.config.id,
            worker=os.getpid(),
        )

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of the trajectory (the record of the episode) so far, each as a dict."""
        return self.record.lines

    @property
    def turns_left(self) -> int | None:
        """The number of turns that the person may still play, or None if there is no limit."""
        turns = self.episode.max_turns
        return None if turns is None else turns - self.episode.counters.turns

    def written(self, text: str) -> str:
        """Converts a person's text to a reply in the action format, as a model would write it. In a world
        without tools, the text is the action itself. In a world with tools, the text is a call `NAME
        {"argument": value}`; if the world also accepts answers in words, a text that does not begin with a
        tool's name is an answer. Raises UsageError if the text is malformed, or if the action format cannot
        express the action."""
        assert self.episode.format is not None
        try:
            calls = self.task.tools and not (self.task.answers and self._is_answer(text))
            action = call_of(text) if calls else Action(answer=text)
            return self.episode.format.render("", action)
        except ValueError as error:
            raise UsageError(str(error), remedy="type a whole reply after :reply") from None

    def _is_answer(self, text: str) -> bool:
        names = {tool.get("function", tool).get("name") for tool in self.task.tools}
        return text.split(maxsplit=1)[:1] not in [[name] for name in names]

    async def act(self, reply: str, seconds: float = 0.0) -> list[dict[str, Any]]:
        """Plays one turn with a person's reply. Returns the lines that this turn added to the trajectory (the
        record of the episode), each as a dict.

        `reply` is the whole reply in the action format, as a model would write it. `seconds` is the time that
        the person took to write the reply. Raises UsageError if the episode is over, and InfrastructureError
        if the world failed.
        """
        if why := self.episode.why_ended:
            raise UsageError(f"the episode is over ({why})", remedy="`:undo` undoes the last step")
        before = len(self.lines)
        self._running = asyncio.create_task(self._turn(reply, seconds))
        await self._running
        self._replies.append(reply)
        return self.lines[before:]

    async def _turn(self, reply: str, seconds: float) -> None:
        episode, settings = self.episode, self._harness.config
        tokens = await asyncio.to_thread(counter_for, settings.tokenizer)
        episode.counters.turns += 1
        episode.counters.model_seconds += seconds
        episode.note_call(seconds, TokenRef())
        answer = Reply(text=reply, cut=False, total_tokens=0, completion_tokens=0)
        await self._harness.act(episode, answer, tokens, self.turns_left)
        if self.turns_left is not None and self.turns_left <= 0:
            episode.why_ended = episode.why_ended or "turns"
        if episode.why_ended:
            await episode.finish()
            await recording.ended(episode, None)

    async def undo(self) -> str:
        """Undoes the last step: starts a new world with the same seed, and repeats all replies except the
        last. Returns one line of text that says which step was undone.

        Raises UsageError if there is no step to undo, or if the same seed and replies do not always give the
        same results in this world (`WorldTask.replays` is false).
        """
        if not self._replies:
            raise UsageError("there is no step to undo")
        if not self.task.replays:
            raise UsageError(f"{self.task.id} does not replay exactly, so no step can be undone")
        replies, self._replies = self._replies[:-1], []
        await self._world.aclose()
        await self._begin()
        for reply in replies:
            await self.act(reply)
        return f"step {len(replies) + 1} is undone: a new world repeated the steps before it"

    async def bash(self, script: str) -> ExecResult:
        """Runs a shell script of the person in the episode's box (sandbox), for at most `BASH_SECONDS`. The
        script is not an action of the agent and is not recorded. Raises UsageError if the world has no box,
        or if commands in the box ended it. Raises BoxDiedError if the box is gone for another reason."""
        box, self.outside = self.box, True
        try:
            async with box.attributing():
                return await box.exec(script, timeout=BASH_SECONDS)
        except BoxEndedError as error:
            raise UsageError(f"the box has ended: {error}", where=":bash") from None

    @property
    def box(self) -> Box:
        """The episode's box, in which the agent's commands run. Raises UsageError if the world has no box."""
        if self.episode.world.box is None:
            raise UsageError(f"{self.task.id} has no box", where=":bash")
        return self.episode.world.box

    def interrupt(self) -> None:
        """Cancels the running `act`, which then raises CancelledError. Does nothing if no `act` runs. Must be
        called in the event loop."""
        if self._running is not None:
            self._running.cancel()

    def save(self, path: Path) -> None:
        """Writes the record of the episode (trajectory) to the file `path`. Raises ConfigError if `path` does
        not end in `.jsonl`, or exists and was not saved by this object. Raises InfrastructureError if the
        disk is full or the folder is not writable."""
        self.record.save(path, [])


def call_of(text: str) -> Action:
    """Parses a tool call such as `search {"query": "x"}`, and returns it as an action. A call without
    arguments may be the tool's name alone. Raises ValueError if the arguments are not a JSON object."""
    name, _, arguments = text.strip().partition(" ")
    try:
        values = json_lines.decode(arguments or "{}")
    except ValueError as error:
        raise ValueError(f"the arguments of {name!r} are no JSON object: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"the arguments of {name!r} are no JSON object")
    return Action(tool=ToolCall(name, arguments=values))
