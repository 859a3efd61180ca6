"""The WebSocket connection of one episode to an OpenEnv server.

If the connection is lost, the episode cannot continue, because a new connection would lead to another
environment. There is one exception: with the setting `attach`, a connection that was lost between two steps
is opened again and leads to the same environment.

Each message is answered before the next one is sent. No message is sent a second time after a lost connection
or a time-out, because the server may have carried out the step.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from air import json_lines
from air.errors import InfrastructureError
from air.worlds.openenv.options import OpenEnvOptions
from air.worlds.openenv.result import Result, read
from air.worlds.remote.address import is_loopback
from air.worlds.remote.attribution import NoPlace, Unanswered
from air.worlds.remote.certificates import certificates

CONNECT_SECONDS = 30.0
CLOSE_SECONDS = 5.0
MOST_BYTES = 100 << 20
"""The maximum size of a message in bytes, the same as in OpenEnv's own client."""
_WAITS = (0.1, 5.0)
"""The first and the longest pause between attempts to start an episode on a full server, in seconds."""


class ServerError(Exception):
    """Raised if the server answers a message with a message of the type `error`. `code` is the server's error
    code, which decides whether the connection can still be used."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Connect(connect):
    """A WebSocket client that follows no redirects, because a redirect could send the token to another
    server."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class Connection:
    """The WebSocket connection of one episode to the OpenEnv server at `url`. Call `open` before any other
    method."""

    def __init__(self, url: str, options: OpenEnvOptions) -> None:
        self.url, self._options = url, options
        self._socket: ClientConnection | None = None
        self._session = ""
        self._busy = False
        self.lost = ""
        """The reason why the connection can no longer be used; empty if it can be used."""

    async def open(self, reset: dict[str, Any], seed: int) -> dict[str, Any]:
        """Connects, sends a message of the type `reset` with `reset` as its data, and returns the data of the
        response. While the server is full, tries again after pauses of random length, drawn from `seed`.

        Raises NoPlace if the server stays full for `wait` seconds (a setting), ServerError if the server
        reports another error, and InfrastructureError for any other failure.
        """
        pause, longest = _WAITS
        jitter = random.Random(seed)
        loop = asyncio.get_running_loop()
        until = loop.time() + self._options.wait
        while True:
            try:
                await self._connect()
                return await self.ask("reset", reset)
            except ServerError as error:
                if error.code != "CAPACITY_REACHED":
                    raise
                await self._drop()
                if loop.time() + pause > until:
                    text = f"{self.url}: no free place within {self._options.wait:g} s: {error}"
                    raise NoPlace(text) from error
                await asyncio.sleep(pause * jitter.uniform(0.5, 1.0))
                pause = min(2 * pause, longest)

    async def ask(
        self, kind: str, data: dict[str, Any] | None = None, seconds: float | None = None
    ) -> dict[str, Any]:
        """Sends a message of the type `kind` and returns the data of the response. `seconds` is the time
        limit (None: the setting `timeout`). Raises ServerError if the server reports an error, Unanswered if
        there is no valid response, and InfrastructureError if the connection can no longer be used."""
        seconds = seconds or self._options.timeout
        if self.lost:
            raise InfrastructureError(self.lost)
        if (
            self._busy
        ):  # its caller was cancelled: the next answer would be that to the earlier message
            # The caller's doing: there is nothing to find out about the action.
            raise InfrastructureError(
                str(await self._failed("an earlier message was not answered"))
            )
        message = {"type": kind} if data is None else {"type": kind, "data": data}
        self._busy = True
        try:
            async with asyncio.timeout(seconds):
                answer = await self._exchange(json.dumps(message))
        except TimeoutError:
            raise await self._failed(f"no answer within {seconds:g} s", "slow") from None
        except (ConnectionClosed, OSError) as error:
            raise await self._failed(f"the connection was lost: {error}", "lost") from error
        except ValueError as error:
            raise await self._failed(f"an answer that is no JSON: {error}", "form") from error
        if not isinstance(answer, dict) or not isinstance(answer.get("data"), dict):
            raise await self._failed(f"an answer without data: {str(answer)!r:.200}", "form")
        self._busy = False
        if answer.get("type") == "error":
            raise ServerError(str(answer["data"].get("code")), _message(answer["data"]))
        expected = "observation" if kind in ("reset", "step") else kind
        if answer.get("type") != expected:
            raise await self._failed(f"the answer to `{kind}` has the type {answer.get('type')!r}")
        result: dict[str, Any] = answer["data"]
        return result

    async def close(self) -> None:
        """Ends the episode on the server and closes the connection. Failures are ignored, because the
        episode is over."""
        if self._socket is not None and not self.lost and not self._busy:
            with contextlib.suppress(ConnectionClosed, OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._socket.send(json.dumps({"type": "close"}))
        self.lost = self.lost or "the episode is over"
        await self._drop()
        if self._session:
            with contextlib.suppress(InfrastructureError):
                await self._rpc("openenv/session/close", session_id=self._session)
            self._session = ""

    async def _exchange(self, message: str) -> Any:
        assert self._socket is not None
        if self._session and self._socket.close_code is not None:
            await self._connect()  # between two steps: the session keeps its environment
        try:
            await self._socket.send(message)
        except ConnectionClosed:
            if self._session:
                raise
            # The server's reason for closing, such as CAPACITY_REACHED, may wait to be read.
        return json_lines.decode(await self._socket.recv())

    async def _connect(self) -> None:
        if self._options.attach and not self._session:
            await self._create_session()
        address = "ws" + self.url.removeprefix("http") + "/ws"
        if self._session:
            address += f"?session_id={self._session}"
        try:
            self._socket = await _Connect(
                address,
                additional_headers=self._options.headers(),
                open_timeout=CONNECT_SECONDS,
                close_timeout=CLOSE_SECONDS,
                max_size=MOST_BYTES,
                # A server whose step blocks its event loop answers no ping meanwhile.
                ping_timeout=max(CONNECT_SECONDS, self._options.timeout),
                proxy=None if is_loopback(self.url) else True,
            )
        except InvalidStatus as error:
            raise await self._failed(_refused(error.response.status_code)) from error
        except (OSError, TimeoutError, WebSocketException) as error:
            text = str(error) or type(error).__name__
            raise await self._failed(f"no connection: {text}") from error

    async def _create_session(self) -> None:
        pause, longest = _WAITS
        loop = asyncio.get_running_loop()
        until = loop.time() + self._options.wait
        while True:
            answer = await self._rpc("openenv/session/create")
            result, error = answer.get("result"), answer.get("error")
            if isinstance(result, dict) and isinstance(result.get("session_id"), str):
                self._session = result["session_id"]
                return
            data = error.get("data") if isinstance(error, dict) else None
            full = isinstance(data, dict | str) and "max_sessions" in data
            if not full or loop.time() + pause > until:
                raise InfrastructureError(f"{self.url}: no session to attach to: {error!s:.200}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def _rpc(self, method: str, **params: str) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = await request(self.url, self._options, "POST", "/mcp", body)
        return answer if isinstance(answer, dict) else {}

    async def _drop(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            with contextlib.suppress(OSError, WebSocketException):
                await socket.close()

    async def _failed(self, text: str, kind: str = "other") -> Unanswered:
        """Closes the connection permanently. Returns an Unanswered error of the kind `kind`, whose message is
        `text` with the server's URL; the caller raises it."""
        self.lost = f"{self.url}: {text}"
        await self._drop()
        return Unanswered(self.lost, kind)


async def send(
    connection: Connection, sent: dict[str, Any], seconds: float | None = None
) -> Result:
    """Sends an action, whose data is `sent`, over `connection`, and returns the action's result. `seconds` is
    the time limit (None: the setting `timeout`). Raises Unanswered if the action gets no valid result, or if
    the server reports an error."""
    try:
        return read(await connection.ask("step", sent, seconds), connection.url)
    except ServerError as error:
        raise Unanswered(str(error), error.code) from error


async def request(
    url: str, options: OpenEnvOptions, method: str, path: str, body: Any = None
) -> Any:
    """Sends an HTTP request to the address `url` + `path`, with `body` as JSON (None: no body). Returns the
    JSON of the response. Raises InfrastructureError if the request fails."""
    try:
        async with httpx.AsyncClient(
            timeout=CONNECT_SECONDS,
            headers=options.headers(),
            verify=certificates(),
            trust_env=not is_loopback(url),
        ) as client:
            answer = await client.request(method, url + path, json=body)
            answer.raise_for_status()
            return json_lines.decode(answer.content)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        text = str(error) or type(error).__name__
        raise InfrastructureError(f"{url}{path}: {text}") from error


def _message(data: dict[str, Any]) -> str:
    details = data.get("errors")
    return str(data.get("message")) + (f": {json.dumps(details)}" if details else "")


def _refused(status: int) -> str:
    if status == 401:
        return "the token was refused (HTTP 401): set #token_env=NAME"
    if 300 <= status < 400:
        return f"the server redirects to another address (HTTP {status}): name that address instead"
    if status in (403, 404, 405):
        return (
            f"there is no WebSocket at /ws (HTTP {status}): OpenEnv 0.1 speaks only HTTP, "
            "which cannot play episodes; the server needs OpenEnv 0.2 or later"
        )
    return f"the connection was refused with HTTP {status}"
