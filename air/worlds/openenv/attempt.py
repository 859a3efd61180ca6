"""Another environment on an episode's server, in which the actions of the episode are repeated."""

from __future__ import annotations

from typing import Any

from air.errors import InfrastructureError
from air.worlds.openenv.connection import Connection, ServerError
from air.worlds.openenv.options import OpenEnvOptions
from air.worlds.remote.attribution import Unanswered


class Attempt:
    """An attempt to repeat an episode's actions in another environment, which starts with `reset`."""

    def __init__(self, url: str, options: OpenEnvOptions, reset: dict[str, Any], seed: int) -> None:
        self._connection = Connection(url, options)
        self._seconds, self._reset, self._seed = options.timeout, reset, seed

    async def begin(self) -> None:
        """Connects and begins. If the server is full, waits as long as the setting `wait` says."""
        try:
            await self._connection.open(self._reset, self._seed)
        except ServerError as error:
            raise InfrastructureError(f"`reset` failed ({error.code}): {error}") from error

    async def act(self, sent: dict[str, Any]) -> None:
        """Repeats an earlier action."""
        await self._ask(sent, self._seconds)

    async def act_again(self, sent: dict[str, Any]) -> None:
        """Repeats the action that failed, with half the time limit, so that an action that just exceeded the
        limit is too slow again."""
        await self._ask(sent, self._seconds / 2)

    async def check(self) -> None:
        """Asks for the state, a request that the agent did not choose."""
        try:
            await self._connection.ask("state")
        except ServerError as error:
            raise InfrastructureError(f"`state` failed ({error.code}): {error}") from error

    async def close(self) -> None:
        """Ends the environment."""
        await self._connection.close()

    async def _ask(self, sent: dict[str, Any], seconds: float) -> None:
        try:
            await self._connection.ask("step", sent, seconds)
        except ServerError as error:
            raise Unanswered(str(error), error.code) from error
