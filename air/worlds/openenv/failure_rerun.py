"""Repeats the actions of an episode in another environment of the same OpenEnv server, to find out whether
the agent or the server caused a failure (see `air.worlds.remote.attribution`)."""

from __future__ import annotations

from typing import Any

from air.errors import InfrastructureError
from air.worlds.openenv.connection import Connection, ServerError, send
from air.worlds.openenv.options import OpenEnvOptions
from air.worlds.openenv.result import Result, tools_of
from air.worlds.remote.attribution import PATIENCE, begin_patiently
from air.worlds.remote.conversion import observation_text


class Attempt:
    """Repeats an episode's actions in another environment on the OpenEnv server at `url`, to find out whether
    the agent or the server caused a failure. `reset` is the data of the message `reset` with which the
    episode began, and `seed` is the episode's seed. `tools` says whether the agent's actions are calls of the
    server's tools."""

    def __init__(
        self,
        url: str,
        options: OpenEnvOptions,
        reset: dict[str, Any],
        seed: int,
        *,
        tools: bool = False,
    ) -> None:
        self._url, self._options = url, options
        self._connection = Connection(url, options)
        self._seconds, self._reset, self._seed = options.timeout, reset, seed
        self._tools = tools

    async def begin(self) -> str:
        """Connects, starts the environment, and returns the first observation. If the server is full, waits
        up to `wait` seconds (a setting). If the server does not respond, tries again for `wait` seconds, but
        at most `PATIENCE` seconds. Then raises InfrastructureError."""
        return await begin_patiently(self._begin, min(PATIENCE, self._options.wait))

    async def _begin(self) -> str:
        await self._connection.close()  # of an earlier attempt
        self._connection = Connection(self._url, self._options)
        try:
            data = await self._connection.open(self._reset, self._seed)
        except ServerError as error:
            raise InfrastructureError(f"`reset` failed ({error.code}): {error}") from error
        return observation_text(data.get("observation"))

    async def act(self, sent: dict[str, Any]) -> Result:
        """Repeats an earlier action of the episode, and returns the action's result. `sent` is the data of
        the message `step` that contained the action. Raises Unanswered if the action gets no valid result, or
        if the server reports an error."""
        return await send(self._connection, sent, self._seconds)

    async def act_again(self, sent: dict[str, Any]) -> None:
        """Repeats the action `sent`, which exceeded the time limit in the episode, with half of that limit.
        So an action that took only slightly too long is too slow again, even if the server is a little faster
        now. Returns nothing if the action gets a result, and raises Unanswered if it gets none."""
        await send(self._connection, sent, self._seconds / 2)

    async def check(self) -> None:
        """Checks that the server works: requests the environment's state and, if the agent calls tools, the
        list of tools, which fails if the server cannot reach its tools. Raises InfrastructureError if a
        request fails."""
        try:
            await self._connection.ask("state")
            if self._tools:
                listed = await self._connection.ask("step", {"type": "list_tools"})
                tools_of(listed, self._connection.url)
        except ServerError as error:
            raise InfrastructureError(f"the check failed ({error.code}): {error}") from error

    async def close(self) -> None:
        """Closes the environment and the connection."""
        await self._connection.close()
