"""Passes a box of air to verifiers as a `Runtime`, the place where verifiers runs commands.

Such a runtime is called a lent runtime. verifiers accepts only its own types of runtimes, so this module has
a subclass for each type that air uses. A lent runtime only passes calls on to its box. It neither starts nor
closes the box, because `ResearchEnv` does both.
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
    """Mixin with the methods that `LentDocker` and `LentProcess` share.

    It is the first of their base classes, so that its methods replace those of verifiers.
    """

    box: Box
    episode: Episode
    gateway: Gateway | None
    prepared: dict[str, str]

    async def start(self) -> None:
        """Does nothing, because the box is already running."""

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Runs a command in the box; returns its exit code and its output.

        Args:
            argv: the command and its arguments.
            env: the environment variables of the command.

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
        """Runs a program that plays the agent in the box; returns its exit code and output.

        If the runtime has a gateway, the gateway connects the program to the model and to the grader.
        """
        if self.gateway is None:
            return await self.run(argv, env)
        return await self.gateway.play(self.run(self.gateway.command(argv), env))

    async def prepare_uv_script(
        self, script: str | bytes, env: dict[str, str] | None = None, *, activate: bool = True
    ) -> list[str]:
        """Writes a Python program that plays the agent into the box.

        Returns the command that runs the program. The program uses the packages of a Python environment in
        the box's image, so `uv` is not used. The argument `activate` has no effect: the environment is never
        activated, because the agent must find the box's own `python3`.

        Raises:
            MissingError: no Python interpreter in the box has the packages that the program needs.
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
        """Does nothing, because the network rules of a box cannot change after its start."""

    def host_url(self, url: str) -> str:
        """Returns the URL at which the loop or program that plays the agent reaches the model endpoint `url`.

        air's own harness (its agent loop) runs in this process, so for it the result is `url` itself. For a
        program in the box, the result is the URL of a loopback port of the box.
        """
        return url if self.gateway is None else self.gateway.model_url(url)

    async def teardown(self) -> None:
        """Does nothing, because `ResearchEnv`, which started the episode, closes the box."""

    def cleanup(self) -> None:
        """Does nothing, because `ResearchEnv`, which started the episode, closes the box."""


class LentDocker(_Lent, DockerRuntime):
    """A verifiers runtime that passes its calls on to a box that is a container."""


class LentProcess(_Lent, SubprocessRuntime):
    """A verifiers runtime that passes its calls on to a box that is a plain process, not a container."""


def lend(box: Box, episode: Episode, gateway: Gateway | None = None) -> Runtime:
    """Returns a verifiers runtime that runs its commands in `box`.

    The runtime's attribute `episode` is the argument `episode`.

    Args:
        gateway: connects a program that plays the agent in the box to the model and to the grader. None if
            air's own harness (its agent loop) plays the agent.
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
    """Returns the state of the episode that runs in the box of `runtime`.

    Raises:
        UsageError: verifiers did not get the runtime from `ResearchEnv`.
    """
    episode = getattr(runtime, "episode", None)
    if not isinstance(episode, Episode):
        raise UsageError(
            f"a {type(runtime).__name__} that air did not lend cannot play a research task",
            remedy='play it through the `air` environment: env.taskset.id = "air", no other env.id',
        )
    return episode


def gateway_of(runtime: Runtime) -> Gateway | None:
    """Returns the gateway of a runtime, or None if air's own harness (its agent loop) plays the agent.

    A gateway connects a program that plays the agent in the box to the model and to the grader.
    """
    gateway: Gateway | None = getattr(runtime, "gateway", None)
    return gateway
