"""A client for servers that speak SandboxFusion's HTTP protocol, such as `air serve sandbox`: a server runs a
program and returns its result.

A failure of the program is a result. A failure of the server or the network raises InfrastructureError, so
that it becomes neither a reward nor an observation. The client repeats a request only after the status 504,
which means that all boxes of the server are in use.
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from air.errors import ConfigError, InfrastructureError, UsageError

ATTEMPTS = 5
EXTRA_SECONDS = 20.0
"""Seconds that the client waits for an answer in addition to the program's time limits. The server's queue
and the network may take this time."""
_BUSY = 504
_OUR_FAULT = {401, 403, 404, 405, 413, 422}
"""HTTP statuses that mean that this client's request is wrong: its URL, its token or its contents."""


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

    A password in the URL is sent with each request by HTTP Basic authentication. `air serve` takes it as the
    token. While all boxes of the server are in use, the client repeats a request: it makes at most `attempts`
    attempts, with growing pauses, the first of about `pause` seconds. Raises ConfigError if `url` does not
    begin with `http://` or `https://`.
    """

    def __init__(self, url: str, *, attempts: int = ATTEMPTS, pause: float = 1.0) -> None:
        self.url = url.rstrip("/").removesuffix("/run_code")
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"{url!r} is not a URL", where="server", remedy="write http://HOST:PORT"
            )
        self._attempts, self._pause = attempts, pause
        # A redirect would send the program and the token to another server.
        self._http = httpx.AsyncClient(follow_redirects=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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

    async def _post(self, path: str, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        for attempt in range(1, self._attempts + 1):
            try:
                response = await self._http.post(f"{self.url}{path}", json=body, timeout=seconds)
            except httpx.HTTPError as error:
                reason = str(error) or type(error).__name__
                raise InfrastructureError(f"{self._shown}: {reason}") from error
            if response.status_code != _BUSY:
                return self._checked(response)
            if attempt < self._attempts:  # at random, so that clients do not retry together
                await asyncio.sleep(self._pause * attempt * random.uniform(0.5, 1.5))
        raise InfrastructureError(f"{self._shown} was busy at {self._attempts} attempts")

    def _checked(self, response: httpx.Response) -> dict[str, Any]:
        text = " ".join(response.text.split())[:300]
        if response.status_code in _OUR_FAULT:
            raise UsageError(
                f"the server refuses the request with status {response.status_code}: {text}",
                where=self._shown,
            )
        if response.status_code != 200:
            raise InfrastructureError(f"{self._shown}: status {response.status_code}: {text}")
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or answer.get("status") not in (
            "Success",
            "Failed",
            "SandboxError",
        ):
            raise InfrastructureError(f"{self._shown} is not a SandboxFusion server: {text}")
        if answer["status"] == "SandboxError":
            raise InfrastructureError(f"{self._shown}: {answer.get('message')}")
        return answer

    @property
    def _shown(self) -> str:
        """The URL without its user name and password, for messages."""
        return str(httpx.URL(self.url).copy_with(username=None, password=None))

    def _result(self, answer: dict[str, Any]) -> ProgramResult:
        run = answer.get("run_result") or answer.get("compile_result")
        if not isinstance(run, dict):
            raise InfrastructureError(f"{self._shown}: an answer without a result")
        return ProgramResult(
            succeeded=answer["status"] == "Success",
            stdout=run.get("stdout") or "",
            stderr=run.get("stderr") or "",
            code=run.get("return_code"),
            timed_out=run.get("status") == "TimeLimitExceeded",
            compiled=bool(answer.get("run_result")),
            seconds=float(run.get("execution_time") or 0.0),
            files={
                path: base64.b64decode(data) for path, data in (answer.get("files") or {}).items()
            },
        )
