"""Lends a box of air to verifiers, as a verifiers `Runtime`.

verifiers accepts only its own runtime types, so each type that air uses has a subclass here. A lent runtime
only passes calls to its box: the environment that leased the box starts and closes it.
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
    """What both lent runtimes have in common; it precedes the verifiers class in their bases."""

    box: Box
    episode: Episode
    gateway: Gateway | None
    prepared: dict[str, str]

    async def start(self) -> None:
        """Does nothing: the lent box runs already."""

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Runs the command `argv` in the box.

        Raises:
            SandboxError: the box is gone.
        """
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
        """Runs a program that plays the episode inside the box, connected by the gateway."""
        if self.gateway is None:
            return await self.run(argv, env)
        return await self.gateway.play(self.run(self.gateway.command(argv), env))

    async def prepare_uv_script(
        self, script: str | bytes, env: dict[str, str] | None = None, *, activate: bool = True
    ) -> list[str]:
        """Writes a harness program into the box; returns the command that runs it.

        The packages come from a Python environment of the image; `uv` is not used. The environment is never
        activated, whatever `activate` says: tasks need the box's own `python3`.
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
        """Writes a file into the box.

        Raises:
            SandboxError: the path cannot be written, or the box is gone.
        """
        with boundary(SandboxError, f"write {path!r}", BoxFileError, BoxDiedError):
            await self.box.write(path, data)

    async def prepare_execution(self, routes: list[str] | None) -> None:
        """Does nothing: the box's network rules were fixed when the box started."""

    def host_url(self, url: str) -> str:
        """Returns the address at which the harness reaches the model endpoint `url`.

        It is `url` itself for a harness on this machine, and a loopback port of the box for a program there.
        """
        return url if self.gateway is None else self.gateway.model_url(url)

    async def teardown(self) -> None:
        """Does nothing: the environment that leased the box closes it."""

    def cleanup(self) -> None:
        """Does nothing: the environment that leased the box closes it."""


class LentDocker(_Lent, DockerRuntime):
    """A lent runtime whose box is a container."""


class LentProcess(_Lent, SubprocessRuntime):
    """A lent runtime whose box is a plain process, not a container."""


def lend(box: Box, episode: Episode, gateway: Gateway | None = None) -> Runtime:
    """Returns a verifiers runtime that runs its commands in `box` and carries the state `episode`.

    Args:
        gateway: connects a program that plays inside the box; None if air's own harness plays.
    """
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
    """Returns the gateway of a lent runtime, or None if air's own harness plays (outside the box)."""
    gateway: Gateway | None = getattr(runtime, "gateway", None)
    return gateway
