"""A session on an ORS server (Open Reward Standard): HTTP requests, and tool calls whose results are
streamed.

If the connection is lost during a call, the client requests the result again by the call's id, so that the
call runs only once. A call that was sent but has no id yet is never sent again, because the server may have
started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx

from air import json_lines
from air.errors import InfrastructureError
from air.worlds.ors.options import OrsOptions
from air.worlds.ors.result import Result, read
from air.worlds.remote.address import is_loopback
from air.worlds.remote.attribution import NoPlace, Unanswered
from air.worlds.remote.certificates import certificates

REQUEST_SECONDS = 120.0
HEARTBEAT_SECONDS = 60.0
"""The maximum time without data on a stream, in seconds. Servers send a comment every 10 seconds."""
PING_SECONDS = 30.0
RESUMES = 5
MOST_CHARACTERS = 100 << 20
"""The maximum length of a streamed response, in characters."""
REFUSED = "error event"
"""The kind of a failure (`Unanswered.kind`) in which the server reports an error for a tool call."""
Call = tuple[str, dict[str, Any]]
"""A tool call: the name of the tool, and the arguments."""
_FULL = (429, 503)
_WAITS = (0.2, 5.0)


class CallError(Exception):
    """Raised if the server reports an error instead of a call's result."""


class _Lost(Unanswered):
    """Raised for a tool call whose result cannot be recovered, so that requesting it again is useless."""


class Session:
    """A session on an ORS (Open Reward Standard) server, in which one episode runs. `open` creates the
    session. For requests that need no session, it is enough to call `connect`."""

    def __init__(self, url: str, options: OrsOptions) -> None:
        self.url, self._options = url, options
        self._client: httpx.AsyncClient | None = None
        self._headers: dict[str, str] = {}
        self._pings: asyncio.Task[None] | None = None

    def connect(self) -> None:
        """Creates the HTTP client. Requests that need no session are possible afterwards."""
        self._client = httpx.AsyncClient(
            base_url=self.url,
            timeout=REQUEST_SECONDS,
            headers=self._options.headers(),
            verify=certificates(),
            trust_env=not is_loopback(self.url),
        )

    async def open(self, env: str, index: int, seed: int) -> None:
        """Creates a session for the task with the index `index` (from 0) in the environment named `env`.
        While the server is full, tries again after pauses of random length, drawn from `seed`. Raises NoPlace
        if the server stays full for `wait` seconds (a setting), and InfrastructureError for any other
        failure."""
        self.connect()
        session_id = ""
        async for name, data in self._events("/create_session", {}):
            session_id = data.strip() if name == "task_id" else session_id
        if not session_id:
            raise InfrastructureError(f"{self.url}/create_session: no id of a session")
        self._headers = {"X-Session-ID": session_id}
        body = {"env_name": env, "split": self._options.split, "index": index}
        pause, longest = _WAITS
        jitter, loop = random.Random(seed), asyncio.get_running_loop()
        until = loop.time() + self._options.wait
        while (answer := await self._send("POST", "/create", body)).status_code in _FULL:
            if loop.time() + pause > until:
                raise NoPlace(
                    f"{self.url}: no free place within {self._options.wait:g} s: {answer.text:.200}"
                )
            await asyncio.sleep(pause * jitter.uniform(0.5, 1.0))
            pause = min(2 * pause, longest)
        self._json(answer, "/create")
        self._pings = asyncio.create_task(self._ping())

    async def get(self, path: str) -> Any:
        """Sends a GET request and returns the JSON of the response. Raises InfrastructureError if it
        fails."""
        return self._json(await self._send("GET", path), path)

    async def post(self, path: str, body: Any) -> Any:
        """Sends a POST request and returns the JSON of the response. Raises InfrastructureError if it
        fails."""
        return self._json(await self._send("POST", path, body), path)

    async def call(
        self, env: str, name: str, arguments: dict[str, Any], seconds: float | None = None
    ) -> dict[str, Any]:
        """Calls the tool `name` of the environment named `env`, and returns the JSON of the result. `seconds`
        is the time limit (None: the setting `timeout`). Raises CallError if the server reports an error, and
        Unanswered if there is no valid result."""
        seconds = seconds or self._options.timeout
        body: dict[str, Any] = {"name": name, "input": arguments}
        try:
            async with asyncio.timeout(seconds):
                return await self._called(f"/{env}/call", body)
        except TimeoutError:
            raise Unanswered(f"{self.url}: no result within {seconds:g} s", "slow") from None

    async def _called(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        for attempt in range(RESUMES + 1):
            pieces: list[str] = []
            try:
                async for event, data in self._events(path, body):
                    if event == "task_id":
                        body["task_id"] = data.strip()
                    elif event == "error" and data == "unknown task_id":  # the call is lost
                        raise _Lost(f"{self.url}{path}: {data}", "forgotten")
                    elif event == "error":
                        raise CallError(data)
                    elif event in ("chunk", "end"):
                        pieces.append(data)
                    if event == "end":
                        return _object("".join(pieces), self.url + path)
                raise Unanswered(
                    f"{self.url}{path}: the stream ended without a result", "no result"
                )
            except _Lost:
                raise
            except InfrastructureError:
                if "task_id" not in body or attempt == RESUMES:
                    raise
                await asyncio.sleep(min(0.2 * 2**attempt, 5.0))
        raise AssertionError("not reached")

    async def close(self) -> None:
        """Deletes the session. Failures are ignored, because the episode is over and the server discards
        idle sessions by itself."""
        if self._pings is not None:
            self._pings.cancel()
            await asyncio.gather(self._pings, return_exceptions=True)
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(httpx.HTTPError):
                if self._headers:
                    await client.post("/delete", headers=self._headers, timeout=5.0)
            await client.aclose()

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            with contextlib.suppress(InfrastructureError):  # the next call reports it
                await self._send("POST", "/ping")

    async def _send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        assert self._client is not None
        try:
            return await self._client.request(method, path, json=body, headers=self._headers)
        except httpx.HTTPError as error:
            raise self._lost(path, error) from error

    async def _events(self, path: str, body: Any) -> AsyncIterator[tuple[str, str]]:
        """Sends a POST request and yields the events (name and data) of the streamed response. Raises
        InfrastructureError if the request or the stream fails."""
        assert self._client is not None
        timeout = httpx.Timeout(REQUEST_SECONDS, read=HEARTBEAT_SECONDS)
        try:
            async with self._client.stream(
                "POST", path, json=body, headers=self._headers, timeout=timeout
            ) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    self._json(answer, path)
                event = ""
                data: list[str] = []
                async for line in _lines(answer):
                    name, _, value = line.partition(":")
                    if name == "event":
                        event = value.strip()
                    elif name == "data":
                        data.append(value.removeprefix(" "))
                    elif not line and event:
                        yield event, "\n".join(data)
                        event, data = "", []
        except httpx.HTTPError as error:
            raise self._lost(path, error) from error

    def _json(self, answer: httpx.Response, path: str) -> Any:
        try:
            answer.raise_for_status()
            return json_lines.decode(answer.content)
        except (httpx.HTTPError, ValueError) as error:
            text = f"{self.url}{path}: HTTP {answer.status_code}: {answer.text:.200}"
            raise Unanswered(text, f"status {answer.status_code}") from error

    def _lost(self, path: str, error: Exception) -> Unanswered:
        return Unanswered(f"{self.url}{path}: {str(error) or type(error).__name__}", "lost")


async def send(session: Session, env: str, sent: Call, seconds: float | None = None) -> Result:
    """Calls a tool of the environment named `env` and returns the result. `sent` is the tool call, and
    `seconds` the time limit (None: the setting `timeout`). Raises Unanswered if the call gets no result, or
    if the server reports an error."""
    try:
        return read(await session.call(env, *sent, seconds), session.url)
    except CallError as error:
        raise Unanswered(str(error), REFUSED) from error


async def _lines(answer: httpx.Response) -> AsyncIterator[str]:
    """Yields the lines of a streamed response, split only at line feeds: httpx would also split at
    characters such as U+2028, which a result may contain. Raises InfrastructureError if the response is too
    long."""
    rest, size = "", 0
    async for piece in answer.aiter_text():
        size += len(piece)
        if size > MOST_CHARACTERS:
            raise _Lost(f"{answer.url}: more than {MOST_CHARACTERS} characters", "long")
        *lines, rest = (rest + piece).split("\n")
        for line in lines:
            yield line.removesuffix("\r")


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        body = json_lines.decode(text)
    except ValueError as error:
        raise _Lost(f"{where}: a result that is no JSON: {error}", "unreadable") from error
    if not isinstance(body, dict):
        raise _Lost(f"{where}: a result that is no object", "form")
    return body
