"""The lent runtime: a verifiers Runtime over one of our boxes.

verifiers' runtime union is closed and parsed on the wire, so there is one class for each `type` that
we lend under. It only adapts: the box was started, and will be closed, by whoever leased it.
"""

from __future__ import annotations

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
from air.errors import BoxDiedError, BoxFileError, UsageError, boundary
from air.sandbox.base import Box

PROGRAM_SECONDS = 24 * 3600.0


class _Lent:
    """What both lent runtimes share; mixed in before the verifiers class."""

    box: Box
    episode: Episode

    async def start(self) -> None:
        """The box is live already."""

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

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        with boundary(SandboxError, f"read {path!r}", BoxFileError, BoxDiedError):
            return await self.box.read(path, max_bytes=max_bytes or 16_000_000)

    async def write(self, path: str, data: bytes) -> None:
        """Writes a file in the box."""
        with boundary(SandboxError, f"write {path!r}", BoxFileError, BoxDiedError):
            await self.box.write(path, data)

    async def prepare_execution(self, routes: list[str] | None) -> None:
        """The box's network was decided when it was made."""

    def host_url(self, url: str) -> str:
        """Our harness runs beside the endpoint, not in the box."""
        return url

    async def teardown(self) -> None:
        """The lease closes the box."""

    def cleanup(self) -> None:
        """The lease closes the box."""


class LentDocker(_Lent, DockerRuntime):
    """A Docker box, lent."""


class LentProcess(_Lent, SubprocessRuntime):
    """A process box, lent."""


def lend(box: Box, episode: Episode) -> Runtime:
    """A live runtime over `box`, carrying `episode`."""
    runtime: Any
    if box.isolation == "container":
        runtime = LentDocker(DockerConfig(image=box.spec.image, workdir=box.workspace), name=box.id)
    else:
        runtime = LentProcess(SubprocessConfig(), name=box.id)
    runtime.info.id = box.id
    runtime.info.borrowed = True
    runtime.box, runtime.episode = box, episode
    return runtime


def episode_of(runtime: Runtime) -> Episode:
    """The episode that rides on a lent runtime.

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
