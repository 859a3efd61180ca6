"""An HTTP client for the server of an AgentGym environment, with time limits. Failures of requests raise
`Unanswered`.

AgentGym servers report errors with status 200 and the body `{"error": TEXT}`; the client returns these as an
`ErrorBody`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from air import json_lines
from air.worlds.remote.attribution import Unanswered

MAX_ANSWER = 4 * 2**20
"""The maximum size of a response, in bytes."""


@dataclass(frozen=True)
class ErrorBody:
    """A response with status 200 that reports an error instead of a result."""

    text: str


class Client:
    """An HTTP client of an AgentGym server, for one episode. It connects at the first request. `url` is the
    server's base URL, without a final slash, and `seconds` is the time limit of a request."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url = url
        # No proxy from the environment: it would send the requests for this machine elsewhere.
        self._http = httpx.AsyncClient(
            timeout=seconds,
            verify=_tls() if url.startswith("https:") else False,
            trust_env=False,
            # An episode sends one request at a time. A cancelled one may leave its connection unusable: the
            # second is for the request that closes the session.
            limits=httpx.Limits(max_connections=2, max_keepalive_connections=1),
        )
        self._seconds = seconds

    async def post(
        self, path: str, body: Mapping[str, Any] | None, seconds: float | None = None
    ) -> Any:
        """Sends a POST request for `path`, which begins with a slash, and returns the response: a JSON value,
        or an ErrorBody. `body` is sent as JSON (None: no body). `seconds` is the time limit (None: the
        client's). Raises Unanswered if there is no response in time, or if the response is longer than
        `MAX_ANSWER`, has another status than 200 or is not valid JSON."""
        return await self._send("POST", path, seconds or self._seconds, json=body)

    async def get(self, path: str, query: Mapping[str, Any]) -> Any:
        """Sends a GET request for `path`, which begins with a slash, with the parameters `query`. Returns the
        response: a JSON value, or an ErrorBody if the server reports an error. Raises Unanswered if there is
        no usable response in time."""
        return await self._send("GET", path, self._seconds, params=query)

    async def close(self) -> None:
        """Closes the connection."""
        await self._http.aclose()

    async def _send(self, method: str, path: str, seconds: float, **content: Any) -> Any:
        where = f"{method} {self._url}{path}"
        content = {name: value for name, value in content.items() if value is not None}
        try:
            # httpx limits the time between two pieces of an answer; this limits the whole.
            async with asyncio.timeout(seconds):
                status, answer = await self._read(method, path, content)
        except (TimeoutError, httpx.TimeoutException):
            raise Unanswered(f"{where}: no answer within {seconds:g} s", "slow") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unanswered(f"{where}: {error or type(error).__name__}", "lost") from error
        if len(answer) > MAX_ANSWER:
            raise Unanswered(f"{where}: the answer exceeds {MAX_ANSWER} bytes", "long")
        if status != 200:
            text = f"{where}: status {status}: {_start_of(answer)}"
            raise Unanswered(text, f"status {status}")
        try:
            value = json_lines.decode(answer)
        except ValueError:
            raise Unanswered(f"{where}: not JSON: {_start_of(answer)}", "unreadable") from None
        if isinstance(value, dict) and set(value) == {"error"}:
            return ErrorBody(str(value["error"]))
        return value

    async def _read(self, method: str, path: str, content: dict[str, Any]) -> tuple[int, bytes]:
        async with self._http.stream(method, f"{self._url}{path}", **content) as response:
            pieces, size = [], 0
            async for piece in response.aiter_bytes():
                pieces.append(piece)
                size += len(piece)
                if size > MAX_ANSWER:
                    break
            return response.status_code, b"".join(pieces)


def number(value: Any) -> float:
    """Returns `value`, a number in a server's response, as a float. Raises ValueError if `value` is not a
    finite number."""
    with contextlib.suppress(OverflowError):  # an integer of hundreds of digits
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    raise ValueError(f"{value!r:.80} is no finite number")


def text(value: Any) -> str:
    """Returns `value`, a string in a server's response, with each lone surrogate (a character that UTF-8
    cannot encode) replaced by `?`. Raises ValueError if `value` is not a string."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.80} is no text")
    return clean(value)


def clean(value: str) -> str:
    """Returns a string with each lone surrogate replaced by `?`, because UTF-8 cannot encode surrogates."""
    return value.encode("utf-8", "replace").decode()


def flag(value: Any) -> bool:
    """Returns `value`, a boolean in a server's response. Raises ValueError if `value` is not a boolean."""
    if not isinstance(value, bool):
        raise ValueError(f"{value!r:.80} is neither true nor false")
    return value


@functools.cache
def _tls() -> ssl.SSLContext:
    """Returns Python's default TLS settings for HTTPS requests, by which servers' certificates are verified.
    They are made once and cached, because loading the certificates takes longer than a request."""
    return ssl.create_default_context()


def _start_of(answer: bytes) -> str:
    return " ".join(answer[:300].decode("utf-8", "replace").split()) or "(empty)"
