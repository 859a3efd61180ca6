"""Another session on an episode's server, in which the actions of a failed episode are repeated."""

from __future__ import annotations

import asyncio

from air.errors import InfrastructureError
from air.worlds.agentgym.session import Session

PATIENCE = 300.0
"""The seconds within which a server must answer again after an action that stalled or ended it."""


class Attempt:
    """An attempt to repeat the actions of an episode in `session`, with the task `data`.

    If the server has no other session to give, `session` is the episode's own, which is not closed here.
    """

    def __init__(
        self,
        session: Session,
        data: int,
        *,
        seconds: float,
        patience: float,
        pause: float,
    ) -> None:
        self._session, self._data = session, data
        self._seconds, self._patience, self._pause = seconds, patience, pause
        self._own = session.begun

    async def begin(self) -> None:
        """Starts the task. Waits for the server, which may have been restarted or be busy."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience
        while True:
            try:
                await (self._session.restart if self._own else self._session.begin)(self._data)
                return
            except InfrastructureError:
                if loop.time() >= until:
                    raise
            await asyncio.sleep(self._pause)

    async def act(self, sent: str) -> None:
        """Repeats an action that was answered."""
        await self._session.act(sent)

    async def act_again(self, sent: str) -> None:
        """Repeats the action that failed, with half the time limit, so that an action that just exceeded the
        limit is too slow again."""
        await self._session.act(sent, self._seconds / 2)

    async def check(self) -> None:
        """Carries out the actions that every session answers."""
        for known in self._session.environment.known:
            await self._session.act(known)

    async def close(self) -> None:
        """Closes the session, unless it is the episode's own."""
        if not self._own:
            await self._session.close()
