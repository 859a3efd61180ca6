"""A client for servers that run programs and return their results. The servers speak the HTTP protocol of
SandboxFusion; `air serve sandbox` starts such a server.

If the program fails, that is a result. If the server or the network fails, InfrastructureError is raised, so
that the failure does not count as the agent's. The client repeats a request only after the HTTP status 504,
which means that all boxes (isolated places for programs) of the server are in use.
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Annotated, Any, Literal, Self

import httpx
from pydantic import Base64Bytes, BaseModel, BeforeValidator

from air import json_lines
from air.config import is_server
from air.errors import ConfigError, InfrastructureError, UsageError

ATTEMPTS = 5
EXTRA_SECONDS = 20.0
"""The number of seconds that the client waits for an answer, in addition to the time limits of the program
and its compiler. They allow for waiting in the server's queue and for the network."""
KEEP_SECONDS = 2.0
"""An idle connection is not used again after this number of seconds, because servers close idle connections
after 5 seconds or more."""
MOST_BYTES = 1 << 30
_BUSY, _TOO_LARGE = 504, 413
_OUR_FAULT = {401, 403, 404, 405, 422}
"""HTTP statuses that mean that this client's request is wrong: its URL, its token or its contents."""


class TooLargeError(UsageError):
    """Raised if the server refuses a request because the request is too large, or if the server's answer is
    too large for this client."""


def _without_surrogates(value: Any) -> Any:
    """Returns `value` with `?` in place of lone surrogates (halves of Unicode characters). On some servers a
    program can print them, and pydantic would refuse them."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


_Text = Annotated[str, BeforeValidator(_without_surrogates)]


class _Run(BaseModel):
    status: str
    execution_time: float | None = None
    return_code: int | None = None
    stdout: _Text | None = None
    stderr: _Text | None = None


class _Answer(BaseModel):
    """The server's answer to a request to run a program (`/run_code`): those of its fields that this client
    reads."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: _Text | None = None
    compile_result: _Run | None = None
    run_result: _Run | None = None
    files: dict[str, Base64Bytes] | None = None


@dataclass(frozen=True)
class ProgramResult:
    """The result of one program that the server ran."""

    succeeded: bool
    """Whether the program was compiled, if its language needs that, and ended with status 0 within its time
    limit."""
    stdout: str
    """Standard output of the program, or of its compiler if the program did not run."""
    stderr: str
    """Standard error of the program, or of its compiler if the program did not run."""
    code: int | None
    """Exit status of the program, or of its compiler if the program did not run. None if the time limit was
    exceeded."""
    timed_out: bool
    """Whether the program or its compiler exceeded its time limit."""
    compiled: bool
    """Whether the program ran. False if only its compiler ran."""
    seconds: float
    """The run time of the program in seconds, or the run time of its compiler if the program did not run."""
    files: Mapping[str, bytes]
    """The files that the caller requested and that exist: path -> contents."""


class CodeServer:
    """A client that runs programs on the server at `url` (`http://HOST:PORT`), which speaks SandboxFusion's
    protocol. Use the client with `async with`.

    `token` authorises requests; empty if the server needs none. The token can also be the password in `url`:
    it is then sent instead, by HTTP Basic authentication, which `air serve` accepts. If all boxes of the
    server are in use, the client repeats the request, with at most `attempts` attempts and growing pauses;
    the first pause takes about `pause` seconds. An answer may have at most `most_bytes` bytes. Raises
    ConfigError if `url` is not the URL of a server.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        attempts: int = ATTEMPTS,
        pause: float = 1.0,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.url = base_url(url)
        self._attempts, self._pause, self._most_bytes = attempts, pause, most_bytes
        # A redirect would send the program and the token to another server.
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # A server may close a connection that was idle for some seconds just when a request is sent.
        limits = httpx.Limits(keepalive_expiry=KEEP_SECONDS)
        self._http = httpx.AsyncClient(follow_redirects=False, headers=headers, limits=limits)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections to the server."""
        await self._http.aclose()

    async def run(
        self,
        code: str,
        language: str = "python",
        *,
        stdin: str = "",
        compile_seconds: float = 10.0,
        run_seconds: float = 10.0,
        memory_mb: int | None = None,
        files: Mapping[str, bytes] | None = None,
        fetch: Sequence[str] = (),
    ) -> ProgramResult:
        """Runs a program on the server and returns its result, even if the program fails.

        `code` is the program's source code, and `language` its language by the server's name for it. `stdin`
        is the program's standard input. `compile_seconds` and `run_seconds` are the time limits of the
        compiler and of the program. `memory_mb` is the memory limit in MiB; None or 0 means the server's own
        limit. `files` are written before the program starts: contents by path, relative to the program's
        working directory. `fetch` contains the paths of the files to return after the program's end.

        Raises:
            InfrastructureError: the server cannot be reached, failed, or was busy at all attempts.
            UsageError: the server refuses the request, because the language, the token or the URL is wrong.
            TooLargeError: the request or the answer is too large.
        """
        body = {
            "code": code,
            "language": language,
            "stdin": stdin,
            "compile_timeout": compile_seconds,
            "run_timeout": run_seconds,
            "memory_limit_MB": memory_mb or -1,
            "files": {
                path: base64.b64encode(data).decode() for path, data in (files or {}).items()
            },
            "fetch_files": list(fetch),
        }
        answer = await self._post("/run_code", body, compile_seconds + run_seconds + EXTRA_SECONDS)
        return self._result(answer)

    async def _post(self, path: str, body: dict[str, Any], seconds: float) -> _Answer:
        for attempt in range(1, self._attempts + 1):
            status, data = await self._exchange(path, body, seconds)
            if status != _BUSY:
                return self._checked(status, data)
            if attempt < self._attempts:  # at random, so that clients do not retry together
                await asyncio.sleep(self._pause * attempt * random.uniform(0.5, 1.5))
        raise InfrastructureError(f"{self._shown} was busy at {self._attempts} attempts")

    async def _exchange(self, path: str, body: dict[str, Any], seconds: float) -> tuple[int, bytes]:
        """Sends the JSON object `body` to the URL path `path`, and returns the HTTP status and the body of
        the response. Raises InfrastructureError if the connection fails or the response is not complete
        within `seconds` seconds, and TooLargeError if the response is too large."""
        data = bytearray()
        try:
            # httpx limits the time of each read alone, so a slow server could answer for ever.
            async with (
                asyncio.timeout(seconds),
                self._http.stream("POST", f"{self.url}{path}", json=body, timeout=None) as response,
            ):
                async for chunk in response.aiter_bytes():
                    data += chunk
                    if len(data) > self._most_bytes:
                        message = f"the answer has more than {self._most_bytes} bytes"
                        raise TooLargeError(message, where=self._shown)
        except TimeoutError:
            message = f"{self._shown}: no complete answer within {seconds:g} s"
            raise InfrastructureError(message) from None
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise InfrastructureError(f"{self._shown}: {reason}") from error
        return response.status_code, bytes(data)

    def _checked(self, status: int, data: bytes) -> _Answer:
        text = " ".join(data[:2000].decode("utf-8", "replace").split())[:300]
        if status in _OUR_FAULT or status == _TOO_LARGE:
            kind = TooLargeError if status == _TOO_LARGE else UsageError
            message = f"the server refuses the request with status {status}: {text}"
            raise kind(message, where=self._shown)
        if status != 200:
            raise InfrastructureError(f"{self._shown}: status {status}: {text}")
        try:
            answer = _Answer.model_validate(json_lines.decode(data))
        except ValueError:  # not JSON, or of another form
            message = f"{self._shown} is not a SandboxFusion server: {text}"
            raise InfrastructureError(message) from None
        if answer.status == "SandboxError":
            raise InfrastructureError(f"{self._shown}: {answer.message}")
        return answer

    @property
    def _shown(self) -> str:
        """The URL without its user name and password, for messages."""
        return str(httpx.URL(self.url).copy_with(username=None, password=None))

    def _result(self, answer: _Answer) -> ProgramResult:
        run = answer.run_result or answer.compile_result
        if run is None:
            raise InfrastructureError(f"{self._shown}: an answer without a result")
        return ProgramResult(
            succeeded=answer.status == "Success",
            stdout=run.stdout or "",
            stderr=run.stderr or "",
            code=run.return_code,
            timed_out=run.status == "TimeLimitExceeded",
            compiled=answer.run_result is not None,
            seconds=run.execution_time or 0.0,
            files=answer.files or {},
        )


def base_url(url: str) -> str:
    """Returns `url`, the URL of a server, without a final slash or `/run_code`. Raises ConfigError if `url`
    is not the URL of a server."""
    base = url.rstrip("/").removesuffix("/run_code")
    if not is_server(base):
        raise ConfigError(
            f"{url!r} is not the URL of a server", where="server", remedy="write http://HOST:PORT"
        )
    return base


def longest_run(seconds: float) -> float:
    """Returns the longest time, in seconds, that `CodeServer.run` can take with the default number of
    attempts. `seconds` is the sum of the time limits of the compiler and of the program."""
    pauses = sum(1.5 * number for number in range(1, ATTEMPTS))
    return ATTEMPTS * (seconds + EXTRA_SECONDS) + pauses
