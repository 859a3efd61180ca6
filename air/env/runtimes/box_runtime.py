"""Runtimes (places where the library `verifiers` runs commands) that run commands in a box of air, a
container or process. Such a runtime is called lent, because air and not `verifiers` starts and closes the
box.

`verifiers` accepts only its own classes of runtimes. Therefore this module defines, for each kind of box, a
subclass of one of these classes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import signal
from typing import Any

from verifiers.v1.errors import SandboxError
from verifiers.v1.runtimes import (
    DockerConfig,
    DockerRuntime,
    ProgramResult,
    Runtime,
    SubprocessConfig,
    SubprocessRuntime,
)

from air.env.episode import Episode
from air.env.program import interpreters
from air.env.program.gateway import Gateway
from air.errors import (
    BoxCommandError,
    BoxDiedError,
    BoxEndedError,
    BoxFileError,
    UsageError,
    boundary,
)
from air.sandbox.contract.box import Box

PROGRAM_SECONDS = 24 * 3600.0
OUTPUT_BYTES = 1_000_000


class _Lent:
    """Base class with the methods that `LentDocker` and `LentProcess` have in common. They replace the
    methods of `verifiers`' runtimes, so that commands run in a box of air."""

    box: Box
    episode: Episode
    gateway: Gateway | None
    prepared: dict[str, str]

    async def start(self) -> None:
        """Does nothing, because the box is already running. `verifiers` calls this method."""

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Runs a command in the box with the environment variables `env`, for at most `PROGRAM_SECONDS`
        seconds. Returns its exit code, and at most `OUTPUT_BYTES` bytes of each output stream. Raises
        SandboxError if the box is gone."""
        try:
            async with self.box.attributing():
                result = await self.box.exec(
                    argv,
                    timeout=PROGRAM_SECONDS,
                    env=self.process_env(env),  # type: ignore[attr-defined]
                    max_bytes=OUTPUT_BYTES,
                )
        except (BoxDiedError, BoxEndedError) as error:
            raise SandboxError(str(error)) from error
        return ProgramResult(
            exit_code=result.code,
            stdout=result.stdout.decode("utf-8", "replace"),
            stderr=result.stderr.decode("utf-8", "replace"),
        )

    async def run_program(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Runs the command `argv`, a program that plays the agent, in the box, and returns its result. The
        gateway, if there is one, connects the program to the model and to the grader."""
        if self.gateway is None:
            return await self.run(argv, env)
        return await self.gateway.play(self._play(self.gateway.command(argv), env))

    async def _play(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Runs the program that plays the agent; returns its exit code and the end of its output. Uses
        `Box.start` instead of `Box.exec`, so that the box can be frozen (its processes stopped) while the
        program runs, as the grading of a Harbor task demands. Raises SandboxError if the box is gone."""
        output = {"stdout": b"", "stderr": b""}
        try:
            async with self.box.attributing():
                running = await self.box.start(
                    argv,
                    timeout=PROGRAM_SECONDS,
                    env=self.process_env(env),  # type: ignore[attr-defined]
                )
                try:
                    async for name, data in running.output():
                        output[name] = (output[name] + data)[-OUTPUT_BYTES:]
                    result = await running.wait()
                except asyncio.CancelledError:
                    with contextlib.suppress(BoxCommandError, BoxDiedError):  # it has ended
                        await running.signal(signal.SIGKILL)
                    raise
        except BoxCommandError as error:  # such as no room for another process
            return ProgramResult(exit_code=126, stdout="", stderr=str(error))
        except (BoxDiedError, BoxEndedError) as error:
            raise SandboxError(str(error)) from error
        texts = {name: data.decode("utf-8", "replace") for name, data in output.items()}
        return ProgramResult(exit_code=result.code, **texts)

    async def prepare_uv_script(
        self, script: str | bytes, env: dict[str, str] | None = None, *, activate: bool = True
    ) -> list[str]:
        """Writes the Python program `script` into the box, and returns the command that runs it: the path of
        an interpreter, and that of the program. A comment in the program lists the packages that it needs.
        `verifiers` would install them with `uv`; air installs nothing in boxes, but takes an interpreter in
        the box that has the packages, and raises MissingError if there is none. `env` and `activate`, which
        `verifiers` passes, are ignored."""
        data = script.encode() if isinstance(script, str) else script
        path = self.box.path(f"/tmp/vf-scripts/{hashlib.sha256(data).hexdigest()}.py")
        if path not in self.prepared:
            packages = interpreters.requirements(data.decode())
            self.prepared[path] = await interpreters.interpreter(self.box, packages)
            await self.write(path, data)
        return [self.prepared[path], path]

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        with boundary(SandboxError, f"read {path!r}", BoxFileError, BoxDiedError):
            return await self.box.read(path, max_bytes=max_bytes or 16_000_000)

    async def write(self, path: str, data: bytes) -> None:
        """Writes a file into the box. Raises SandboxError if it cannot be written, or the box is gone."""
        with boundary(SandboxError, f"write {path!r}", BoxFileError, BoxDiedError):
            await self.box.write(path, data)

    async def prepare_execution(self, routes: list[str] | None) -> None:
        """Does nothing, because the network rules of a box cannot change after its start. `verifiers` calls
        this method to set such rules."""

    def host_url(self, url: str) -> str:
        """Returns the URL at which the agent's harness reaches the model endpoint `url`. air's own harness
        (agent loop) runs in this process, so it uses `url` itself. A program that plays the agent in the box
        uses a loopback port of the box."""
        return url if self.gateway is None else self.gateway.model_url(url)

    async def teardown(self) -> None:
        """Does nothing, because `ResearchEnv`, which started the episode, closes the box."""

    def cleanup(self) -> None:
        """Does nothing, because `ResearchEnv`, which started the episode, closes the box."""


class LentDocker(_Lent, DockerRuntime):
    """A runtime of `verifiers` that runs commands in a box of air that is a container."""


class LentProcess(_Lent, SubprocessRuntime):
    """A runtime of `verifiers` that runs commands in a process box, which is a box of air without a
    container."""


def lend(box: Box, episode: Episode, gateway: Gateway | None = None) -> Runtime:
    """Returns a runtime of `verifiers` that runs commands in `box`, and has `episode` (the state of the
    running episode) as an attribute. `gateway` connects a program in the box that plays the agent to the
    model and to the grader; None if air's own harness plays the agent."""
    runtime: Any
    if box.isolation == "container":
        runtime = LentDocker(DockerConfig(image=box.spec.image, workdir=box.workspace), name=box.id)
    else:
        runtime = LentProcess(SubprocessConfig(), name=box.id)
    runtime.info.id = box.id
    runtime.info.borrowed = True
    runtime.box, runtime.episode = box, episode
    runtime.gateway, runtime.prepared = gateway, {}
    return runtime


def episode_of(runtime: Runtime) -> Episode:
    """Returns the state of the running episode, which is an attribute of `runtime`. Raises UsageError if
    `runtime` has no such attribute, because air did not make it."""
    episode = getattr(runtime, "episode", None)
    if not isinstance(episode, Episode):
        raise UsageError(
            f"a {type(runtime).__name__} that air did not lend cannot play a research task",
            remedy='play it through the `air` environment: env.taskset.id = "air", no other env.id',
        )
    return episode


def gateway_of(runtime: Runtime) -> Gateway | None:
    """Returns the gateway, which connects the program that plays the agent in the box to the model and the
    grader. Returns None if air's own harness (agent loop) plays the agent."""
    gateway: Gateway | None = getattr(runtime, "gateway", None)
    return gateway
