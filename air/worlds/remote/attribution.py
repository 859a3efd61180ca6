"""Determines whether the agent or the server is the cause if an action on a remote server gets no result.

If every episode with such an action were left out of training, an agent could avoid a bad reward with an
action that is slow or that makes the server crash. If every such episode counted, network failures would
affect rewards. Therefore the action is repeated under the same conditions: in another environment of the same
server, with the same task, after the same actions. If this action fails again in the same way, and the server
answers everything else, the agent is the cause.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar
from weakref import WeakKeyDictionary

from air import aio
from air.errors import InfrastructureError

T = TypeVar("T")
SLOW = "slow"
"""The kind of a failure (`Unanswered.kind`) in which no response came within the time limit."""
BY_CHANCE = frozenset(
    {"lost", SLOW, "unreadable", "status 429", "status 502", "status 503", "status 504"}
)
"""The kinds of failure (`Unanswered.kind`) that the network or a busy server can cause for any action, so
that the agent is not necessarily the cause."""


PATIENCE = 300.0
"""The maximum number of seconds to wait until a server responds again after an action that made it hang or
crash."""
RETRY_SECONDS = 1.0
"""The pause between two attempts to start an episode on a server that does not respond, in seconds."""
REPETITIONS = 3
"""The maximum number of inconclusive repetitions of an episode. If the server reported an error for the
action, a repetition is inconclusive if the new environment differs from the episode's environment. After any
other failure, a repetition is inconclusive if it fails at an earlier action."""


class Unanswered(InfrastructureError):
    """Raised for a request that gets no usable result. `kind` is a string that says how the request failed,
    such as `slow` or `status 503`."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Acted:
    """The record of one action of an episode: `sent`, the action in the form in which the client sends it,
    and its failure or a digest (hash) of its result."""

    sent: Any
    kind: str = ""
    """The kind of failure; empty if the action succeeded."""
    result: str = ""
    """The digest of the result; empty if the action failed."""


class History:
    """The record of one episode on a remote server: its actions in order, each with a digest (hash) of its
    result or the kind of its failure. With it, the actions can be repeated in another environment of the
    server, and the results compared. The results themselves are not stored, because they may not fit into
    memory."""

    def __init__(self) -> None:
        self.first = ""
        """The digest (hash) of the first observation."""
        self.actions: list[Acted] = []

    def began(self, first: Any) -> None:
        """Records `first`, the observation that the environment showed at the start of the episode."""
        self.first = _digest(first)

    def answered(self, sent: Any, result: Any) -> None:
        """Records an action that succeeded: `sent`, the action as it was sent, and the digest of `result`."""
        self.actions.append(Acted(sent, result=_digest(result)))

    def refused(self, sent: Any, kind: str) -> None:
        """Records an action for which the server reported an error. `sent` is the action as it was sent, and
        `kind` is the kind of the failure."""
        self.actions.append(Acted(sent, kind))


@dataclass(frozen=True)
class _Failed:
    """An action that got no result in an episode, and whose cause is to be found by repeating the episode."""

    history: History
    """The episode's actions before the failed action, with their results."""
    sent: Any
    """The failed action, in the form in which the client sends it."""
    kind: str
    """The kind of the action's failure, such as `slow`."""


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode("utf-8", "surrogatepass")).hexdigest()


class NoPlace(InfrastructureError):
    """Raised if a server is full and cannot create another environment."""


class ServerLock(asyncio.Lock):
    """A lock for one server, so that an episode can act on the server while no other one does. It counts in
    `taken` how often it was acquired."""

    taken = 0

    async def acquire(self) -> Literal[True]:
        """Waits until the lock is free, takes it, and returns True."""
        await super().acquire()
        self.taken += 1
        return True


class Attempt(Protocol):
    """The interface of an object that repeats the actions of an episode in another environment of the same
    server, with the same task, to find out whether the agent or the server caused a failure."""

    async def begin(self) -> Any:
        """Creates the environment, starts the task, and returns the first observation. Raises
        InfrastructureError if that fails."""
        ...

    async def act(self, sent: Any) -> Any:
        """Repeats an earlier action of the episode, and returns its result. Raises Unanswered if the action
        gets no result."""
        ...

    async def act_again(self, sent: Any) -> None:
        """Repeats, in this new environment, the action that was too slow in the episode, to see whether the
        action is the cause. `sent` is the action in the form in which the client sends it. Returns nothing if
        the action gets a result now, and raises Unanswered if it gets none again."""
        ...

    async def check(self) -> None:
        """Sends a harmless request, which the agent did not choose, to see whether the server works. Raises
        InfrastructureError if the request fails."""
        ...

    async def close(self) -> None:
        """Closes the environment."""
        ...


async def caused_by_agent(
    attempt: Callable[[], Attempt],
    history: History,
    sent: Any,
    kind: str,
    *,
    alone: ServerLock,
    repeats: bool = True,
) -> bool:
    """Returns whether the agent caused the failure of the action `sent`. `kind` is the kind of the failure.

    The episode is repeated twice, with the earlier actions in `history`, up to the failed action, which must
    fail with the same kind both times. `attempt` makes a new `Attempt` for each repetition. The first
    repetition rules out failures by chance. During the second one, the lock `alone` is held, so that no
    action of another episode can be the cause. Afterwards a harmless request must show that the server works.

    If `repeats` is false, nothing is repeated and only the harmless request decides. A failure of a kind in
    `BY_CHANCE` then never counts as caused by the agent.
    """
    if not repeats and kind in BY_CHANCE:
        return False
    failed = _Failed(history, sent, kind)
    try:
        if not repeats:
            async with alone:
                await _checked(attempt())
            return True
        failure = await _failure(attempt(), failed, alone=alone)
        if failure not in (kind, None):
            return False
        # None says nothing: another episode's action may have crashed the server meanwhile.
        times = 1 if failure == kind else 2
        return await _fails_alone(attempt, failed, alone, times=times)
    except InfrastructureError:
        return False


async def _fails_alone(
    attempt: Callable[[], Attempt], failed: _Failed, alone: ServerLock, *, times: int
) -> bool:
    """Returns whether the action `failed` fails again in `times` repetitions of the episode, while the lock
    `alone` keeps the actions of other episodes away, and the server works afterwards. A repetition that fails
    at an earlier action is inconclusive, and is made again, up to `REPETITIONS` times. Raises
    InfrastructureError if the server does not work.

    The first environment is created before the lock is taken: on a full server this waits until another
    episode ends, and that episode may wait for the lock before its next action. If a repetition of another
    episode held the lock meanwhile, it may have crashed the server, and this environment with it. Then the
    environment is closed and replaced by a new one.
    """
    second, held, taken = attempt(), alone.locked(), alone.taken
    try:
        first = await second.begin()
        async with alone:
            stale, inconclusive = held or alone.taken > taken + 1, 0
            while times:
                if stale:
                    await second.close()
                    second = attempt()
                    first = await second.begin()
                stale = True
                failure = await _repeat(second, first, failed)
                if failure == failed.kind:
                    times -= 1
                elif failure is None and inconclusive < REPETITIONS:
                    inconclusive += 1
                else:
                    return False
            await second.close()  # its place may be the only free one
            await _checked(attempt())
    finally:
        await second.close()
    return True


async def begin_patiently(
    begin: Callable[[], Awaitable[T]], patience: float, pause: float = RETRY_SECONDS
) -> T:
    """Calls `begin`, which starts a repetition of an episode, and returns its result. If `begin` fails, calls
    it again for `patience` seconds, with pauses of `pause` seconds, because the action that is being examined
    may have crashed the server, and the server may need time to restart. After that time, raises the last
    InfrastructureError. If the server is full, raises NoPlace at once."""
    loop = asyncio.get_running_loop()
    until = loop.time() + patience
    while True:
        try:
            return await begin()
        except NoPlace:
            raise
        except InfrastructureError:
            if loop.time() + pause > until:
                raise
        await asyncio.sleep(pause)


class SlowAction:
    """Runs an action of an episode and observes whether the server works meanwhile, for episodes whose
    actions may not be repeated later. If the action has no result after `seconds` seconds, a harmless request
    is sent in another environment, which `attempt` makes."""

    def __init__(self, attempt: Callable[[], Attempt], seconds: float) -> None:
        self._attempt, self._seconds = attempt, seconds
        self.server_worked = False
        """Whether the harmless request succeeded before the action ended."""

    async def during(self, act: Coroutine[Any, Any, T], *, repeats: bool) -> T:
        """Runs the action `act` and returns its result. `repeats` says whether the episode's actions may be
        repeated. If so, no harmless request is sent, because `caused_by_agent` can repeat the action later,
        which is more conclusive."""
        if repeats:
            return await act
        acting = asyncio.create_task(act)
        try:
            if not (await asyncio.wait([acting], timeout=self._seconds))[0]:
                await self._check(acting)
            return await acting
        finally:
            await aio.cancel_and_wait(acting)

    async def _check(self, acting: asyncio.Task[Any]) -> None:
        checking = asyncio.create_task(_checked(self._attempt()))
        try:
            await asyncio.wait([acting, checking], return_when=asyncio.FIRST_COMPLETED)
            self.server_worked = (
                checking.done() and not acting.done() and checking.exception() is None
            )
        finally:
            await aio.cancel_and_wait(checking)


async def error_comes_again(
    attempt: Callable[[], Attempt] | None,
    history: History,
    sent: Any,
    kind: str,
    *,
    again: Callable[[], Awaitable[None]],
) -> bool:
    """Returns whether the agent caused the error that the server reported for the action `sent`, although the
    environment still works. `kind` is the kind of the error.

    The episode is repeated, with the earlier actions in `history`, in another environment, which `attempt`
    makes. If the action gets the same kind of error there, the agent is the cause. If it does not, the agent
    is not the cause, provided that both environments gave the same observations before this action. If they
    gave different ones, the repetition decides nothing, and the episode is repeated again, in up to
    `REPETITIONS` environments.

    If no repetition decides, if the server is full, or if `attempt` is None, `again` sends the action once
    more in the episode's own environment: the agent is the cause if the same kind of error comes again.
    Without this, on a server whose environments differ, any action with an error could end the episode
    without its reward.
    """
    failed = _Failed(history, sent, kind)
    try:
        failure = None if attempt is None else await _failure_elsewhere(attempt, failed)
        if failure is None:
            failure = await _kind(again())
    except InfrastructureError:
        return False
    return failure == kind


async def _failure_elsewhere(attempt: Callable[[], Attempt], failed: _Failed) -> str | None:
    """Repeats an episode in other environments, up to `REPETITIONS` times, until a repetition is conclusive
    (see `_repeat`). Returns the kind of the failure of the action `failed` in that repetition; an empty
    string if the action succeeds there; None if no repetition is conclusive or the server is full."""
    for _ in range(REPETITIONS):
        try:
            failure = await _failure(attempt(), failed, compare=True)
        except NoPlace:
            return None
        if failure is not None:
            return failure
    return None


async def _failure(
    attempt: Attempt, failed: _Failed, *, compare: bool = False, alone: asyncio.Lock | None = None
) -> str | None:
    """Starts the episode's task in `attempt` (another environment on the server), repeats the episode up to
    the action `failed`, and closes `attempt`. Returns the kind of the failure of this action now; an empty
    string if it succeeds; None if the repetition is inconclusive. `_repeat` describes `compare` and `alone`.
    Raises InfrastructureError if the task cannot be started."""
    try:
        first = await attempt.begin()
        return await _repeat(attempt, first, failed, compare=compare, alone=alone)
    finally:
        await attempt.close()


async def _repeat(
    attempt: Attempt,
    first: Any,
    failed: _Failed,
    *,
    compare: bool = False,
    alone: asyncio.Lock | None = None,
) -> str | None:
    """Repeats in `attempt` the actions before the action `failed`, then this action. Returns the kind of its
    failure now; an empty string if it succeeds; None if the repetition is inconclusive.

    A repetition is inconclusive if the result of an earlier action is now a failure, or a failure of another
    kind, or no failure any more. With `compare`, it is also inconclusive if the action `failed` does not fail
    in the same way and an observation before it differs from the episode's. `first` is the first observation
    in `attempt`. If the lock `alone` is given, waits before the last action until nobody holds it.
    """
    same = _digest(first) == failed.history.first
    for acted in failed.history.actions:
        repeated = await _repeated(attempt, acted.sent)
        if repeated.kind != acted.kind:
            return None
        same = same and repeated.result == acted.result
    if alone is not None:
        await _released(alone)
    # Only an action that was too slow gets less time. Others may take long before they fail.
    act = attempt.act_again if failed.kind == SLOW else attempt.act
    failure = await _kind(act(failed.sent))
    return None if compare and failure != failed.kind and not same else failure


async def _repeated(attempt: Attempt, sent: Any) -> Acted:
    try:
        return Acted(sent, result=_digest(await attempt.act(sent)))
    except Unanswered as failure:
        return Acted(sent, failure.kind)


async def _kind(act: Awaitable[Any]) -> str:
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


async def _released(lock: asyncio.Lock) -> None:
    """Waits until the lock is free: until its present holder, and all who already wait for it, have released
    it."""
    if lock.locked():
        async with lock:
            pass


class Locks:
    """One lock for each server. While `caused_by_agent` repeats an episode for the second time, it holds the
    server's lock, so that no other episode acts on this server."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, ServerLock]] = (
            WeakKeyDictionary()
        )

    def of(self, server: str) -> ServerLock:
        """Returns the lock of the server at the URL `server`, for the running event loop. While an episode is
        repeated under this lock, no other episode of this process acts on the server."""
        locks = self._of.setdefault(asyncio.get_running_loop(), {})
        return locks.setdefault(server, ServerLock())

    async def wait(self, server: str) -> None:
        """Waits until nobody holds the lock of the server at the URL `server`. An episode calls this before
        it acts on the server, so that it does not disturb an episode that is being repeated there."""
        await _released(self.of(server))


SERVER_LOCKS = Locks()
"""The locks of all servers with which this process's episodes communicate."""
