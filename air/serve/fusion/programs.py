"""Runs the programs in requests of SandboxFusion's clients, each in a box (container) of its own, and
converts the results to SandboxFusion's form."""

from __future__ import annotations

import base64
import posixpath
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from air.errors import AirError, BoxEndedError, BoxFileError, InfrastructureError, MissingError
from air.sandbox.contract.box import Box, BoxSpec, Command, ExecResult
from air.serve.fusion.languages import LANGUAGES, Language, source
from air.serve.fusion.messages import (
    Answer,
    CommandResult,
    FilesRequest,
    RunCodeAnswer,
    RunCodeRequest,
    status_of,
)
from air.serve.http.app import Server

OUTPUT_BYTES = 8 << 20
"""The maximum number of bytes that are kept of a command's standard output, and likewise of its standard
error. The middle of a longer output is replaced by a line that says how much was removed."""
LEAST_MEMORY = 32
MARGIN_SECONDS = 1.0
"""Seconds by which the server plans to respond before the end of the time for which the client waits. It
needs them for its own work on the request."""
FOLDERS = ("/mnt",)
"""Folders in a box that are writable in addition to the workspace. Programs for SandboxFusion write files
into /mnt."""
TRIES = 2
A = TypeVar("A", bound=Answer)
T = TypeVar("T")


class BadRequest(AirError):
    """Error: the request is invalid. `field` is the name of the wrong field, and `status` the HTTP status of
    the response."""

    def __init__(self, message: str, field: str, status: int = 422) -> None:
        super().__init__(message)
        self.field, self.status = field, status


class Programs:
    """Runs the programs of SandboxFusion's clients in the boxes (containers) of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.languages: tuple[str, ...] = ()
        """The languages that the server's container image supports. If Python is one of them, a Python
        interpreter is started in each box in advance."""

    def spec(self, memory_mb: int = -1) -> BoxSpec:
        """Returns the settings of the box for a request with the memory limit `memory_mb` in MiB (0 or less:
        the server's own limit).

        Raises BadRequest if the request wants more memory than the server allows.
        """
        spec = self._server.config.spec.model_copy(update={"scratch": FOLDERS})
        if not self._server.config.fresh_boxes:
            python = LANGUAGES["python"].run if "python" in self.languages else ()
            spec = spec.model_copy(update={"reusable": True, "prestart": python})
        most = spec.limits.memory_mb
        if memory_mb > most:
            raise BadRequest(
                f"the server gives a program at most {most} MiB: start it with a larger --memory-mb",
                "memory_limit_MB",
            )
        if memory_mb <= 0:
            return spec
        limits = spec.limits.model_copy(update={"memory_mb": max(memory_mb, LEAST_MEMORY)})
        return spec.model_copy(update={"limits": limits})

    def language(self, name: str) -> Language:
        """Returns the commands for the language `name`. Raises BadRequest if the server's image does not
        support this language."""
        if name in self.languages:
            return LANGUAGES[name]
        raise BadRequest(
            f"the image {self._server.config.image} does not have the language {name!r}; it has "
            f"{', '.join(self.languages)}",
            "language",
        )

    async def run(self, request: RunCodeRequest) -> RunCodeAnswer:
        """Compiles (if needed) and runs a request's program in a box, and returns the result. Raises
        BadRequest if the server cannot run such a request, and NoBoxInTime if no box becomes free in time."""
        language = self.language(request.language)
        self.check_seconds(request.compile_timeout, "compile_timeout")
        self.check_seconds(request.run_timeout, "run_timeout")
        asked = request.compile_timeout + request.run_timeout
        needed = asked if language.compile else request.run_timeout

        async def work(box: Box) -> RunCodeAnswer:
            return await _run(box, language, request)

        return await self.answered(
            self.spec(request.memory_limit_MB), asked, needed, work, failed=RunCodeAnswer
        )

    async def answered(
        self,
        spec: BoxSpec,
        asked: float,
        needed: float,
        work: Callable[[Box], Awaitable[A]],
        failed: type[A],
    ) -> A:
        """Calls `work` with a box, in which `work` runs the client's program, and returns the response that
        `work` builds. If the program ended the box, or the server failed, returns a response of the class
        `failed` that says so. `spec` has the box's settings; `asked` is the sum of the request's time limits
        in seconds, and `needed` the part of it that the program can use.

        Raises BadRequest, and NoBoxInTime if no box becomes free in time.
        """
        try:
            return await self.in_box(spec, asked, needed, work)
        except BoxEndedError as error:  # the program did it, for instance by using all memory
            text = f"the program ended its sandbox: {error}"
            ended = CommandResult(
                status="Finished", execution_time=0.0, return_code=137, stdout="", stderr=text
            )
            name = "run_result" if "run_result" in failed.model_fields else "driver"
            return failed.model_validate({"status": "Failed", name: ended})
        except (InfrastructureError, MissingError) as error:  # e.g. the container engine is gone
            return failed(status="SandboxError", message=str(error))

    def check_seconds(self, seconds: float, name: str) -> None:
        """Raises BadRequest if `seconds`, the time limit in the request's field `name`, is longer than half
        of the lifetime of a box."""
        most = self._server.config.limits.seconds / 2
        if seconds > most:
            raise BadRequest(f"must be at most {most:.0f} seconds on this server", name)

    async def in_box(
        self, spec: BoxSpec, asked: float, needed: float, work: Callable[[Box], Awaitable[T]]
    ) -> T:
        """Runs a client's program: takes a box with the settings `spec`, awaits `work(box)`, and returns its
        result. If the box fails through no fault of the program, tries once more with another box, if there
        is time. Raises InfrastructureError if there is no time for this, or if the second box fails, too.

        `asked` is the sum of the time limits in the request, in seconds. `needed` is the part of this sum
        that the program can use: a compiler's time limit, for example, is not used if the language has no
        compiler. The client waits for `asked` plus the setting `queue_seconds`. So the request may wait for a
        box until only `needed` seconds of this time remain; then raises the error of the pool, such as
        NoBoxInTime.
        """
        config = self._server.config
        until = time.monotonic() + asked + config.queue_seconds - MARGIN_SECONDS
        for attempt in range(1, TRIES + 1):
            within = until - time.monotonic() - needed
            try:
                async with self._server.boxes.lend(spec, within=within) as box, box.attributing():
                    return await work(box)
            except InfrastructureError as error:
                self._server.log.event("box failed", attempt=attempt, error=str(error))
                if attempt == TRIES or until - time.monotonic() < needed:
                    raise
        raise AssertionError("unreachable")


async def exec_first(
    box: Box,
    request: FilesRequest,
    own: Mapping[str, bytes],
    command: Command,
    *,
    timeout: float,  # noqa: ASYNC109 — kept by the guest, which kills the command
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    then_reset: bool = False,
) -> ExecResult:
    """Writes the request's files and then the server's `own` files (content by path) into a box, runs
    `command` there, and returns its result. No other command may have run in this box before. `then_reset`
    says that nothing more will be done in the box (see `Box.exec`).

    Raises BadRequest if the files cannot be written, for instance because they do not fit into the workspace.
    """
    try:
        return await box.exec(
            command,
            timeout=timeout,
            env=env,
            stdin=stdin,
            files=request.contents() | dict(own),
            max_bytes=OUTPUT_BYTES,
            then_reset=then_reset,
        )
    except BoxFileError as error:
        is_own = any(str(error).startswith(f"{path!r}: ") for path in own)
        raise BadRequest(str(error), "code" if is_own else "files") from None


async def fetch_all(box: Box, paths: Iterable[str]) -> dict[str, str]:
    """Reads the files `paths` in a box. Returns a dict that maps each path to the content as base64; files
    that cannot be read are left out. Relative paths are relative to the workspace.

    Raises BadRequest if the contents are together larger than the workspace. This is possible, because
    several paths can name the same file.
    """
    most = box.spec.limits.disk_mb << 20
    size, files = 0, {}
    for path in dict.fromkeys(paths):
        try:
            data = await box.read(posixpath.normpath(path), max_bytes=most)
        except (BoxFileError, ValueError):
            continue
        size += len(data)
        if size > most:
            limit = box.spec.limits.disk_mb
            raise BadRequest(f"the files exceed {limit} MiB together", "fetch_files")
        files[path] = base64.b64encode(data).decode()
    return files


async def _run(box: Box, language: Language, request: RunCodeRequest) -> RunCodeAnswer:
    own = {language.file: source(request.language, request.code).encode()}
    stdin = (request.stdin or "").encode()
    compiled = ran = None
    if language.compile:
        seconds = request.compile_timeout
        outcome = await exec_first(
            box, request, own, language.compile, timeout=seconds, env=language.env
        )
        compiled = result_of(outcome, first=True)
    seconds, then_reset = request.run_timeout, not request.fetch_files
    if compiled is None:
        outcome = await exec_first(
            box,
            request,
            own,
            language.run,
            timeout=seconds,
            env=language.env,
            stdin=stdin,
            then_reset=then_reset,
        )
        ran = result_of(outcome, first=True)
    elif compiled.return_code == 0:
        outcome = await box.exec(
            language.run,
            timeout=seconds,
            env=language.env,
            stdin=stdin,
            max_bytes=OUTPUT_BYTES,
            then_reset=then_reset,
        )
        ran = result_of(outcome, first=False)
    status, message = status_of(compiled, ran)
    return RunCodeAnswer(
        status=status,
        message=message,
        compile_result=compiled,
        run_result=ran,
        files=await fetch_all(box, request.fetch_files),
    )


def result_of(result: ExecResult, *, first: bool) -> CommandResult:
    """Converts the result of a command to SandboxFusion's form.

    `first` says whether the command was the first one in its box. If such a command could not be started, the
    status is `Error`: no code of the client has run yet, so the server is the cause.
    """
    stdout, stderr = (data.decode("utf-8", "replace") for data in (result.stdout, result.stderr))
    if first and not result.began:
        return CommandResult(status="Error", stderr=stderr)
    return CommandResult(
        status="TimeLimitExceeded" if result.timed_out else "Finished",
        execution_time=result.seconds,
        return_code=None if result.timed_out else result.code,
        stdout=stdout,
        stderr=stderr,
    )
