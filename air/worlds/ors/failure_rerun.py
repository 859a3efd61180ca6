"""Repeats the tool calls of an episode in another session on the same ORS (Open Reward Standard) server, to
find out whether the agent or the server caused a failure (see `air.worlds.remote.attribution`)."""

from __future__ import annotations

from air.worlds.ors.options import OrsOptions
from air.worlds.ors.result import Result, prompt_text
from air.worlds.ors.session import Call, Session, send
from air.worlds.remote.attribution import PATIENCE, begin_patiently


class Attempt:
    """Repeats an episode's tool calls in another session on the server at `url`, to find out whether the
    agent or the server caused a failure. The task is the same: task number `index` (from 0) of the
    environment named `env`. `seed` is the episode's seed."""

    def __init__(self, url: str, options: OrsOptions, env: str, index: int, seed: int) -> None:
        self._url, self._options = url, options
        self._session = Session(url, options)
        self._seconds, self._env, self._index, self._seed = options.timeout, env, index, seed

    async def begin(self) -> str:
        """Creates the session and returns the task's prompt. If the server is full, waits up to `wait`
        seconds (a setting). If the server does not respond, tries again for `wait` seconds, but at most
        `PATIENCE` seconds. Then raises InfrastructureError."""
        return await begin_patiently(self._begin, min(PATIENCE, self._options.wait))

    async def _begin(self) -> str:
        await self._session.close()  # of an earlier attempt
        self._session = Session(self._url, self._options)
        await self._session.open(self._env, self._index, self._seed)
        return prompt_text(await self._session.get(f"/{self._env}/prompt"))

    async def act(self, sent: Call) -> Result:
        """Repeats `sent`, an earlier tool call of the episode, and returns the call's result. Raises
        Unanswered if the call gets no result, or if the server reports an error."""
        return await send(self._session, self._env, sent, self._seconds)

    async def act_again(self, sent: Call) -> None:
        """Repeats the tool call `sent`, which exceeded the time limit in the episode, with half of that
        limit. So a call that took only slightly too long is too slow again, even if the server is a little
        faster now. Returns nothing if the call gets a result, and raises Unanswered if it gets none."""
        await send(self._session, self._env, sent, self._seconds / 2)

    async def check(self) -> None:
        """Checks that the server works, by a harmless request for the task's prompt. Raises
        InfrastructureError if the request fails."""
        await self._session.get(f"/{self._env}/prompt")

    async def close(self) -> None:
        """Deletes the session on the server."""
        await self._session.close()
