"""Another session on an episode's server, in which the calls of the episode are repeated."""

from __future__ import annotations

from typing import Any

from air.worlds.ors.options import OrsOptions
from air.worlds.ors.session import CallError, Session
from air.worlds.remote.attribution import Unanswered

REFUSED = "error event"
"""The kind of failure in which the server reports an error."""
Call = tuple[str, dict[str, Any]]
"""The name of a tool, and its arguments."""


class Attempt:
    """An attempt to repeat an episode's calls in another session, with the same task."""

    def __init__(self, url: str, options: OrsOptions, env: str, index: int, seed: int) -> None:
        self._session = Session(url, options)
        self._seconds, self._env, self._index, self._seed = options.timeout, env, index, seed

    async def begin(self) -> None:
        """Creates the session. If the server has no free place, waits as long as the setting `wait` says."""
        await self._session.open(self._env, self._index, self._seed)

    async def act(self, sent: Call) -> None:
        """Repeats an earlier call."""
        await self._call(sent, self._seconds)

    async def act_again(self, sent: Call) -> None:
        """Repeats the call that failed, with half the time limit, so that a call that just exceeded the limit
        is too slow again."""
        await self._call(sent, self._seconds / 2)

    async def check(self) -> None:
        """Asks for the prompt, a request that the agent did not choose."""
        await self._session.get(f"/{self._env}/prompt")

    async def close(self) -> None:
        """Deletes the session."""
        await self._session.close()

    async def _call(self, sent: Call, seconds: float) -> None:
        try:
            await self._session.call(self._env, *sent, seconds)
        except CallError as error:
            raise Unanswered(str(error), REFUSED) from error
