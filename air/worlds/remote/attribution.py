"""Finds out whether the agent or the server caused that an action got no result.

If every such episode were left out, an agent could escape from a bad reward: by an action that is slow, that
makes the server fail, or that kills it. If every such episode counted, failures of the network would become
rewards. So the action is repeated where nothing else differs: in another environment of the same server, with
the same task, after the same actions. If the server answers all the rest and fails at this action again, each
time in the same way, the agent caused it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from air import aio
from air.errors import InfrastructureError

T = TypeVar("T")
SLOW = "slow"
"""The kind of failure in which no answer came in time."""
BY_CHANCE = frozenset(
    {"lost", SLOW, "unreadable", "status 429", "status 502", "status 503", "status 504"}
)
"""The kinds of failure that a network or a busy server has now and then, whatever the action is."""


class Unanswered(InfrastructureError):
    """The error for a request that got no result. Failures of the same `kind` look alike to the client."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class NoPlace(InfrastructureError):
    """The error for a server that has no free place for another environment."""


class Attempt(Protocol):
    """Another environment of the server, with the task of the episode."""

    async def begin(self) -> None:
        """Creates the environment and starts the task. Raises InfrastructureError."""
        ...

    async def act(self, sent: Any) -> None:
        """Repeats an earlier action. Raises Unanswered if it gets no result."""
        ...

    async def act_again(self, sent: Any) -> None:
        """Repeats the action that got no result. Raises Unanswered if it gets none again."""
        ...

    async def check(self) -> None:
        """Carries out an action that the agent did not choose. Raises InfrastructureError if it fails."""
        ...

    async def close(self) -> None:
        """Ends the environment."""
        ...


async def caused_by_agent(
    attempt: Callable[[], Attempt],
    before: Sequence[tuple[Any, str]],
    sent: Any,
    kind: str,
    *,
    alone: asyncio.Lock,
    repeats: bool = True,
) -> bool:
    """Whether the agent caused that the action `sent` failed in the way `kind`.

    `before` has the earlier actions, each with the kind of its failure (empty if it did not fail). The action
    is repeated twice. The first repetition excludes failures by chance. The second repetition holds the lock
    `alone`, so that no action of another episode can be the cause. Then an action that the agent did not
    choose must show that the server is well.

    If `repeats` is false, nothing is repeated, and only this last test decides; a failure of a kind that may
    come by chance is then never the agent's.
    """
    if not repeats and kind in BY_CHANCE:
        return False
    try:
        if repeats and await _failure(attempt(), before, sent) != kind:
            return False
        async with alone:
            if repeats and await _failure(attempt(), before, sent) != kind:
                return False
            await _checked(attempt())
    except InfrastructureError:
        return False
    return True


class SlowAction:
    """Watches one action that may not be repeated. If it has no result after `seconds`, another environment
    must meanwhile carry out an action that the agent did not choose: it shows whether the server is well."""

    def __init__(self, attempt: Callable[[], Attempt], seconds: float) -> None:
        self._attempt, self._seconds = attempt, seconds
        self.well = False
        """Whether the other environment was well before the action ended."""

    async def during(self, act: Coroutine[Any, Any, T], *, repeats: bool) -> T:
        """Carries out the action. If it may be repeated, nothing is watched: later trials tell more."""
        if repeats:
            return await act
        acting = asyncio.create_task(act)
        try:
            if not (await asyncio.wait([acting], timeout=self._seconds))[0]:
                await self._check(acting)
            return await acting
        finally:
            await aio.ended(acting)

    async def _check(self, acting: asyncio.Task[Any]) -> None:
        checking = asyncio.create_task(_checked(self._attempt()))
        try:
            await asyncio.wait([acting, checking], return_when=asyncio.FIRST_COMPLETED)
            self.well = checking.done() and not acting.done() and checking.exception() is None
        finally:
            await aio.ended(checking)


async def broken_inside(attempt: Attempt, before: Sequence[tuple[Any, str]], sent: Any) -> bool:
    """Whether the episode's environment is broken, so that the agent is not the cause of its errors.

    It is broken if the server can begin no other environment, or if another environment carries out the
    action `sent` after the same earlier actions. It does not count as broken if the server has no free place,
    or if an earlier action has another result there: that shows nothing.
    """
    try:
        return await _failure(attempt, before, sent) == ""
    except NoPlace:
        return False
    except InfrastructureError:
        return True


async def _failure(attempt: Attempt, before: Sequence[tuple[Any, str]], sent: Any) -> str | None:
    """Returns the kind of failure of the action `sent` in an attempt, or "" if it succeeds. Returns None if
    an earlier action has another result than in the episode."""
    try:
        await attempt.begin()
        for each, kind in before:
            if await _kind(attempt.act(each)) != kind:
                return None
        return await _kind(attempt.act_again(sent))
    finally:
        await attempt.close()


async def _kind(act: Awaitable[None]) -> str:
    try:
        await act
    except Unanswered as failure:
        return failure.kind
    return ""


async def _checked(attempt: Attempt) -> None:
    try:
        await attempt.begin()
        await attempt.check()
    finally:
        await attempt.close()


SUSPICIOUS = 3
"""The number of consecutive errors after which the environment may be broken."""


class History:
    """The actions of an episode, each with the kind of its failure; the kind is empty if it did not fail."""

    def __init__(self) -> None:
        self.actions: list[tuple[Any, str]] = []
        self._errors = 0

    def answered(self, sent: Any) -> None:
        """Notes an action that had a result."""
        self.actions.append((sent, ""))
        self._errors = 0

    def refused(self, sent: Any, kind: str) -> None:
        """Notes an action for which the server reported an error."""
        self.actions.append((sent, kind))
        self._errors += 1

    def suspect(self, sent: Any) -> tuple[list[tuple[Any, str]], Any] | None:
        """Returns the actions before a series of errors, and the first action of the series. Returns None
        unless the error of the action `sent` makes the series `SUSPICIOUS` errors long."""
        if self._errors + 1 != SUSPICIOUS:
            return None
        first = len(self.actions) - self._errors
        return self.actions[:first], [*self.actions, (sent, "")][first][0]


class Locks:
    """One lock for each server. The second repetition of an action holds it."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Lock]] = (
            WeakKeyDictionary()
        )

    def of(self, server: str) -> asyncio.Lock:
        """Returns the lock of a server in the running event loop."""
        locks = self._of.setdefault(asyncio.get_running_loop(), {})
        return locks.setdefault(server, asyncio.Lock())

    async def wait(self, server: str) -> None:
        """Waits until no action is being repeated alone on a server."""
        if self.of(server).locked():
            async with self.of(server):
                pass


ALONE = Locks()
"""The locks of all servers that this process plays on."""
