"""Runs one episode (one playthrough of a task) on an episode server. A client of the server plays the agent:
it sends actions, and gets observations and rewards."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from air.actions.base import Action
from air.aio import wait_shielded
from air.errors import InfrastructureError
from air.serve.episodes.offered_tasks import InvalidAction, OfferedTask
from air.worlds.base import Refusal, World

GRACE_SECONDS = 60.0
"""Seconds after an episode's time limit in which the client can still send one action, for which it gets the
final reward. If no action comes in this time, the server ends the episode, so that its box is freed."""
_LOG = logging.getLogger(__name__)


class NoRunningEpisode(Exception):
    """Error: the client sent an action when no episode of it was running: before the start, or after the
    end."""


class UnknownTool(InvalidAction):
    """Error: the agent called a tool that the task does not have."""


class EpisodeFailed(Exception):
    """Error: the server has ended the episode, because something that the agent did not cause failed, or
    because the time was over. There is no further reward."""


@dataclass(frozen=True)
class Turn:
    """The result of one action of the agent: the observation as text, the reward (None if this action has no
    reward), and whether the episode has ended."""

    text: str
    reward: float | None
    done: bool
    invalid_action: InvalidAction | None = None
    """The reason why the task rejected the action; None if it accepted the action."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


class ClientEpisode:
    """One episode (one playthrough of a task), in which a client of the server plays the agent. `start`
    begins the episode, and `close` ends it. The caller must not run two methods at the same time.

    When the episode ends, `note` is called with the task's id and the way in which the episode ended: `done`,
    `left` (the client went away), `expired` or `failed`. `on_end` is called after the episode's box has been
    freed. `grace` replaces `GRACE_SECONDS`.
    """

    def __init__(
        self,
        task: OfferedTask,
        seed: int,
        note: Callable[[str, str], None],
        on_end: Callable[[], None],
        grace: float = GRACE_SECONDS,
    ) -> None:
        self.task, self.seed = task, seed
        self.id = uuid.uuid4().hex
        self.turns = 0
        self.done = False
        self.failed = False
        """Whether the server ended the episode, because something that the agent did not cause failed, or
        because the client did not act for `GRACE_SECONDS` after the time limit."""
        self.over_since = math.inf
        """The time at which the episode ended, on the monotonic clock; infinity while it runs."""
        self._note, self._on_end, self._grace = note, on_end, grace
        self._world: World[Action] | None = None
        self._stack = AsyncExitStack()
        self._deadline = math.inf
        self._expiry: asyncio.TimerHandle | None = None
        self._expired: asyncio.Task[None] | None = None
        self._turn_runs = False

    async def start(self) -> str:
        """Starts the episode, and returns the first text for the agent: the task's description and perhaps
        the first observation. Raises EpisodeFailed if the start fails."""
        try:
            self._world, text = await self._stack.enter_async_context(self.task.open(self.seed))
        except BaseException as error:  # cancellation too: nobody else would end the episode
            expected = isinstance(error, Exception)
            await wait_shielded(self._end("failed" if expected else "left"))
            if expected:
                raise self._failure(error) from error
            raise
        self._deadline = time.monotonic() + self.task.seconds
        self._expire_in(self.task.seconds + self._grace)
        return text

    def _expire_in(self, seconds: float) -> None:
        self._expiry = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        if self._turn_runs:  # it has its own limits
            self._expire_in(self._grace)
        else:
            self._expired = asyncio.create_task(self._end("expired"))

    async def say(self, message: str) -> Turn:
        """Carries out the action that a text message of the agent contains, and returns the result. Raises
        NoRunningEpisode if the episode has not begun or has ended, and EpisodeFailed if something fails that
        the agent did not cause."""
        return await self._turn(lambda: self.task.action_of_text(message))

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Turn:
        """Carries out the agent's call of the tool `name`, and returns the result. Raises NoRunningEpisode if
        the episode has not begun or has ended, and EpisodeFailed if something fails that the agent did not
        cause."""

        def action() -> Action:
            names = [each["function"]["name"] for each in self.task.tools]
            if name not in names:
                raise UnknownTool(f"There is no tool {name!r}. Tools: {', '.join(names)}.")
            return self.task.action_of_call(name, arguments)

        return await self._turn(action)

    async def close(self) -> None:
        """Ends the episode, for instance because the client has gone away, and frees its box (if it has one).
        Does nothing if the episode has ended already."""
        await wait_shielded(self._end("left"))
        if self._expired is not None:
            await wait_shielded(self._expired)

    async def _turn(self, action: Callable[[], Action]) -> Turn:
        if self._world is None:
            raise NoRunningEpisode("the episode is over" if self.done else "no episode has begun")
        self._turn_runs = True
        try:
            turn = await self._step(self._world, action)
        except BaseException as error:  # cancellation too: nobody else would end the episode
            expected = isinstance(error, Exception)
            await wait_shielded(self._end("failed" if expected else "left"))
            if expected:
                raise self._failure(error) from error
            raise
        finally:
            self._turn_runs = False
        if turn.done:
            await wait_shielded(self._end("done"))
        return turn

    async def _step(self, world: World[Action], action: Callable[[], Action]) -> Turn:
        if time.monotonic() >= self._deadline:
            return await self._limit(
                world, "[the time of the episode is over]", self.task.no_reward
            )
        self.turns += 1
        invalid_action: InvalidAction | None = None
        text, reward, done = "", self.task.no_reward, False
        try:
            step = await world.step(action())
            text, reward, done = step.observation.text, self.task.reward(step), step.done
        except InvalidAction as error:
            invalid_action, text = error, str(error)
        except Refusal as error:
            text = str(error)
        if reward is not None and not math.isfinite(reward):
            raise InfrastructureError(f"the reward of {self.task.id} is {reward}")
        if done and reward is None:  # the agent has ended its box: its artefact counts as missing
            reward = await self.task.at_limit(world)
        if done or self.turns < self.task.max_turns:
            return Turn(text, reward, done, invalid_action, self._metadata(world))
        return await self._limit(world, f"{text}\n[no actions are left]", reward, invalid_action)

    async def _limit(
        self,
        world: World[Action],
        text: str,
        reward: float | None,
        invalid_action: InvalidAction | None = None,
    ) -> Turn:
        """Returns the last turn of an episode that has reached its limit of actions or time. The turn's
        reward is the sum of `reward` (that of the last action) and the reward that the task gives for such an
        end (`OfferedTask.at_limit`); None if both are None. `text` is the observation."""
        last = await self.task.at_limit(world)
        total = None if reward is None and last is None else (reward or 0.0) + (last or 0.0)
        return Turn(text, total, True, invalid_action, self._metadata(world) | {"truncated": True})

    def _metadata(self, world: World[Action]) -> dict[str, Any]:
        facts = {name: value for name, value in world.facts().items() if math.isfinite(value)}
        return {"task": self.task.id, "turn": self.turns, **facts}

    def _failure(self, error: BaseException) -> EpisodeFailed:
        if not isinstance(error, InfrastructureError):
            _LOG.error("task %s raised %r", self.task.id, error, exc_info=error)
        text = " ".join(str(error).split()) or type(error).__name__
        return EpisodeFailed(
            f"the server failed, the episode is over without further reward: {text}"
        )

    async def _end(self, how: str) -> None:
        if self.done:
            return
        self.done, self._world = True, None
        self.over_since = time.monotonic()
        self.failed = how in ("failed", "expired")
        if self._expiry is not None:
            self._expiry.cancel()
        self._note(self.task.id, how)
        try:
            await self._stack.aclose()
        except Exception as error:  # the client's episode is over in any case
            _LOG.warning("the end of an episode of %s: %s", self.task.id, error)
        finally:
            self._on_end()
