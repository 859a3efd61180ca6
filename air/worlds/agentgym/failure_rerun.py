"""Repeats the actions of an episode in another session on the same AgentGym server, to find out whether the
agent or the server caused a failure (see `air.worlds.remote.attribution`)."""

from __future__ import annotations

from air.worlds.agentgym.environment import ActionResult
from air.worlds.agentgym.session import Session
from air.worlds.remote.attribution import begin_patiently


class Attempt:
    """Repeats an episode's actions in `session`, on the task with the id `data`, to find out whether the
    agent or the server caused a failure.

    `session` is normally a new session. If the server cannot provide another one, `session` is the episode's
    own session, which `close` leaves open. `seconds` is the time limit of a request in the episode. `begin`
    tries for `patience` seconds, with pauses of `pause` seconds.
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

    async def begin(self) -> str:
        """Creates the session if it does not exist, starts the task, and returns the first observation. If
        this fails, tries again for `patience` seconds, because the server may be busy or restarting. Then
        raises InfrastructureError."""
        begin = self._session.restart if self._own else self._session.begin
        return await begin_patiently(lambda: begin(self._data), self._patience, self._pause)

    async def act(self, sent: str) -> ActionResult:
        """Repeats an earlier action of the episode, and returns the action's result. `sent` is the action as
        the text that the episode sent. Raises Unanswered if the action gets no result."""
        return await self._session.act(sent)

    async def act_again(self, sent: str) -> None:
        """Repeats the action `sent`, which exceeded the time limit in the episode, with half of that limit.
        So an action that took only slightly too long is too slow again, even if the server is a little faster
        now. Returns nothing if the action gets a result, and raises Unanswered if it gets none."""
        await self._session.act(sent, self._seconds / 2)

    async def check(self) -> None:
        """Sends the actions in `Environment.known`, which a working server answers in every session. Raises
        InfrastructureError if one of them gets no result."""
        for known in self._session.environment.known:
            await self._session.act(known)

    async def close(self) -> None:
        """Closes the session, unless it is the episode's own session."""
        if not self._own:
            await self._session.close()
