"""Lends a box of air to verifiers, as a verifiers `Runtime` (its name for the place where commands run).

verifiers accepts only its own runtime types, so each type that air uses has a subclass here. A lent runtime
only passes calls on to its box. It neither starts nor closes the box, because `ResearchEnv`, which leased the
box, does both.
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
    """Mixin with the methods that both lent runtimes share.

    In their list of base classes it stands before the class of verifiers, so that its methods are used.
    """

    box: Box
    episode: Episode
    gateway: Gateway | None
    prepared: dict[str, str]

    async def start(self) -> None:
        """Does nothing, because the lent box is already running."""

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Runs the command `argv` in the box, with the variables `env`; returns its exit code and output.

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
        """Runs in the box a program that plays the agent; returns its exit code and output.

        If there is a gateway, it connects the program with the model and the grader.
        """
        if self.gateway is None:
            return await self.run(argv, env)
        return await self.gateway.play(self.run(self.gateway.command(argv), env))

    async def prepare_uv_script(
        self, script: str | bytes, env: dict[str, str] | None = None, *, activate: bool = True
    ) -> list[str]:
        """Writes a harness program (a program that plays the agent) into the box.

        Returns the command that runs the program. Its packages come from a Python environment of the image;
        `uv` is not used. The argument `activate` has no effect: the environment is never activated, because
        tasks need the box's own `python3`.

        Raises:
            MissingError: no Python in the box has the packages of the program.
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
        """Does nothing, because the network rules of the box were fixed when the box started."""

    def host_url(self, url: str) -> str:
        """Returns the URL at which the program that plays the agent reaches the model endpoint `url`.

        For air's own harness, which runs in this process, this is `url` itself. For a program in the box it
        is the URL of a loopback port of the box.
        """
        return url if self.gateway is None else self.gateway.model_url(url)

    async def teardown(self) -> None:
        """Does nothing, because `ResearchEnv`, which leased the box, closes it."""

    def cleanup(self) -> None:
        """Does nothing, because `ResearchEnv`, which leased the box, closes it."""


class LentDocker(_Lent, DockerRuntime):
    """A verifiers runtime that passes its calls on to a box that is a container."""


class LentProcess(_Lent, SubprocessRuntime):
    """A verifiers runtime that passes its calls on to a box that is a plain process, not a container."""


def lend(box: Box, episode: Episode, gateway: Gateway | None = None) -> Runtime:
    """Returns a verifiers runtime that runs its commands in `box`. Its attribute `episode` is `episode`.

    Args:
        gateway: the connection of a program that plays the agent inside the box; None if air's own harness
            plays the agent.
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
    """Returns the state of the episode to which a lent runtime belongs.

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
    """Returns the gateway of a lent runtime, or None if air's own harness plays the agent.

    A gateway connects a program that plays the agent inside the box.
    """
    gateway: Gateway | None = getattr(runtime, "gateway", None)
    return gateway
