"""The sessions that the episodes of this process have on each server.

Their number is bounded, because every session costs the server memory. The records also show two faults that
a server does not report. If a server gives out an id that another episode still uses, it either shares its
few sessions among all episodes (sqlgym), or it was restarted and counts from 0 again, so that the other
episode's session is gone.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary


class Holder:
    """An episode's right to one of a server's sessions."""

    def __init__(self) -> None:
        self.lost = False
        """Whether the server has given the session's id to another episode."""


class Sessions:
    """The sessions of one server that the episodes of this process use."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )
        self._holders: dict[int, Holder] = {}

    @property
    def slots(self) -> asyncio.Semaphore:
        """The semaphore that bounds the number of sessions in the running event loop."""
        return self._slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.most))

    @property
    def holders(self) -> int:
        """The number of sessions in use."""
        return len(self._holders)

    def used(self, session: int) -> bool:
        """Whether an episode uses the session."""
        return session in self._holders

    def take(self, session: int) -> Holder:
        """Gives a session to a new holder. An earlier holder has lost it."""
        if earlier := self._holders.get(session):
            earlier.lost = True
        holder = self._holders[session] = Holder()
        return holder

    def give_back(self, session: int, holder: Holder) -> None:
        """Ends the right of `holder`."""
        if self._holders.get(session) is holder:
            del self._holders[session]


_ALL: dict[str, Sessions] = {}


def of(server: str, most: int) -> Sessions:
    """Returns the sessions of a server; its name `server` consists of its environment and its address."""
    return _ALL.setdefault(server, Sessions(most))
