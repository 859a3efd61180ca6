"""The lent runtime: a verifiers Runtime over one of our boxes.

verifiers' runtime union is closed and parsed on the wire, so there is one class for each `type`.
The classes only adapt: the owner of the lease starts and closes the box.
"""

from __future__ import annotations

import hashlib
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
from air.errors import BoxDiedError, BoxFileError, UsageError, boundary
from air.sandbox.contract.box import Box

PROGRAM_SECONDS = 24 * 3600.0


class _Lent:
    """The common part of both lent runtimes; a base class before the verifiers class."""

    box: Box
    episode: Episode
    gateway: Gateway | None
    prepared: dict[str, str]

    async def start(self) -> None:
        """Does nothing: the box runs already."""

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Runs `argv` in the box."""
        try:
            result = await self.box.exec(
                argv,
                timeout=PROGRAM_SECONDS,
                env=self.process_env(env),  # type: ignore[attr-defined]
                max_bytes=1_000_000,
            )
        except BoxDiedError as error:
            raise SandboxError(str(error)) from error
        return ProgramResult(
            exit_code=result.code,
            stdout=result.stdout.decode("utf-8", "replace"),
            stderr=result.stderr.decode("utf-8", "replace"),
        )

    async def run_program(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Runs a harness's program, which plays the episode."""
        if self.gateway is None:
            return await self.run(argv, env)
        return await self.gateway.play(self.run(self.gateway.command(argv), env))

    async def prepare_uv_script(
        self, script: str | bytes, env: dict[str, str] | None = None, *, activate: bool = True
    ) -> list[str]:
        """Returns the command of a harness's program, run with packages of the image instead of `uv`.

        The program's environment is never activated: `python3` stays the box's own, which tasks need.
        """
        data = script.encode() if isinstance(script, str) else script
        path = self.box.path(f"/tmp/vf-scripts/{hashlib.sha256(data).hexdigest()}.py")
        if path not in self.prepared:
            wanted = interpreters.requirements(data.decode())
            self.prepared[path] = await interpreters.interpreter(self.box, wanted)
            await self.write(path, data)
        return [self.prepared[path], path]

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        with boundary(SandboxError, f"read {path!r}", BoxFileError, BoxDiedError):
            return await self.box.read(path, max_bytes=max_bytes or 16_000_000)

    async def write(self, path: str, data: bytes) -> None:
        """Writes a file in the box."""
        with boundary(SandboxError, f"write {path!r}", BoxFileError, BoxDiedError):
            await self.box.write(path, data)

    async def prepare_execution(self, routes: list[str] | None) -> None:
        """Does nothing: the box's network rules are fixed."""

    def host_url(self, url: str) -> str:
        """Returns the URL as the harness reaches it: ours on this machine, a program in the box."""
        return url if self.gateway is None else self.gateway.model_url(url)

    async def teardown(self) -> None:
        """The lease closes the box."""

    def cleanup(self) -> None:
        """The lease closes the box."""


class LentDocker(_Lent, DockerRuntime):
    """A Docker box, lent."""


class LentProcess(_Lent, SubprocessRuntime):
    """A process box, lent."""


def lend(box: Box, episode: Episode, gateway: Gateway | None = None) -> Runtime:
    """Returns a runtime over `box` that carries `episode`, and the gateway if a program plays in the box."""
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
    """Returns the episode that a lent runtime carries.

    Raises:
        UsageError: the runtime was not lent by `ResearchEnv`.
    """
    episode = getattr(runtime, "episode", None)
    if not isinstance(episode, Episode):
        raise UsageError(
            f"a {type(runtime).__name__} that air did not lend cannot play a research task",
            remedy='play it through the `air` environment: env.taskset.id = "air", no other env.id',
        )
    return episode


def gateway_of(runtime: Runtime) -> Gateway | None:
    """Returns the gateway of a lent runtime; None if our own harness plays."""
    gateway: Gateway | None = getattr(runtime, "gateway", None)
    return gateway
