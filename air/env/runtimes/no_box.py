"""A runtime of the library `verifiers` (a place where commands run) for episodes without a box, such as
games. It cannot run commands, but `verifiers` demands a runtime for every episode."""

from __future__ import annotations

from typing import NoReturn, Self

from verifiers.v1.errors import SandboxError
from verifiers.v1.runtimes import ProgramResult, SubprocessConfig, SubprocessRuntime

from air.env.world_episode import WorldEpisode


class NoBox(SubprocessRuntime):
    """A runtime of `verifiers` that cannot run commands, for an episode without a box. It only carries the
    episode's state, as an attribute."""

    episode: WorldEpisode

    @classmethod
    def of(cls, episode: WorldEpisode) -> Self:
        """Returns a new runtime for `episode`, the state of an episode without a box, which becomes its
        attribute."""
        # verifiers parses the type of a runtime in its traces, and accepts only its own types.
        runtime = cls(SubprocessConfig(), name=episode.id)
        runtime.info.id = episode.id
        runtime.info.borrowed = True
        runtime.episode = episode
        return runtime

    async def start(self) -> None:
        """Does nothing, because this runtime runs no commands."""

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Always raises SandboxError, because the episode has no box in which commands could run."""
        self._refuse(" ".join(argv))

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        self._refuse(f"read {path}")

    async def write(self, path: str, data: bytes) -> None:
        """Always raises SandboxError, because the episode has no box with files."""
        self._refuse(f"write {path}")

    def _refuse(self, what: str) -> NoReturn:
        raise SandboxError(f"{self.episode.task_id} has no box, so nothing can run there: {what}")

    async def prepare_execution(self, routes: list[str] | None) -> None:
        """Does nothing, because this runtime runs no commands."""

    async def teardown(self) -> None:
        """Does nothing, because nothing was started."""

    def cleanup(self) -> None:
        """Does nothing, because nothing was started."""
