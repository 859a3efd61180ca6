"""Keeps track of the sessions that this process's episodes use on each server.

The number of sessions is limited, because each session needs memory on the server. The bookkeeping also shows
whether a server gives a new session the id of a session that another episode still uses. This happens in two
cases, which servers do not report: the server shares a few sessions among all clients (sqlgym), or it was
restarted and counts from 0 again. After a restart the other episode's session is lost.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary


class Holder:
    """A token that represents one episode's exclusive use of a session on a server. It has no methods; it is
    compared by identity."""

    def __init__(self) -> None:
        self.lost = False
        """Whether the server has given the session to another episode, so that this episode can no longer use
        it."""


class Sessions:
    """The sessions on one server that episodes of this process use. `most` is the maximum number of sessions
    that the episodes of one event loop use at the same time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )
        self._holders: dict[int, Holder] = {}

    @property
    def slots(self) -> asyncio.Semaphore:
        """The semaphore of the running event loop that limits how many sessions its episodes use at the same
        time."""
        return self._slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.most))

    @property
    def holders(self) -> int:
        """The number of sessions on the server that episodes of this process use now."""
        return len(self._holders)

    def used(self, session: int) -> bool:
        """Whether an episode of this process uses the session with this id."""
        return session in self._holders

    def take(self, session: int) -> Holder:
        """Records that an episode now uses the session with the id `session`. Returns a new `Holder` for this
        episode. If another episode still held a session with this id, marks that episode's `Holder` as
        `lost`."""
        if earlier := self._holders.get(session):
            earlier.lost = True
        holder = self._holders[session] = Holder()
        return holder

    def give_back(self, session: int, holder: Holder) -> None:
        """Records that the episode with the `Holder` object `holder` no longer uses the session with the id
        `session`. Does nothing if the session was assigned to another holder meanwhile."""
        if self._holders.get(session) is holder:
            del self._holders[session]


_ALL: dict[str, Sessions] = {}


def sessions_of(server: str, most: int) -> Sessions:
    """Returns the `Sessions` object of a server, which `server` identifies as `ENVIRONMENT@URL`. The first
    call for a server creates the object, which allows at most `most` sessions in use at the same time."""
    return _ALL.setdefault(server, Sessions(most))
