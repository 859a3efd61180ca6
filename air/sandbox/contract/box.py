"""The contract of a box: an isolated place to run commands, with one writable workspace.

Every provider (`docker`, `process`) implements it and passes the same conformance suite. Each command
runs in a new process group, in the workspace; only files remain from earlier commands. A command that
fails, times out or floods its output is a result, not an error; only a box that is gone raises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from air.config import BaseConfig
from air.sandbox.contract.network_rules import Names

if TYPE_CHECKING:
    from air.sandbox.wire.port_relay import Handler

Command = Sequence[str] | str
Isolation = Literal["container", "process"]
WORKSPACE = "/workspace"
SECOND_UID_ENV = "AIR_SECOND_UID"
MAX_OUTPUT = 64_000
NOT_ISOLATED = (
    "WARNING: boxes are processes, which are NOT isolated as containers are: agents' code shares this "
    "machine's kernel, is held by no CPU limit and by a memory limit only per process, and unless the "
    "kernel allows namespaces it runs as this user and sees this machine's files, network and processes"
)
"""The warning that a person sees once before episodes are played in process boxes."""


class BoxLimits(BaseConfig):
    """The resource limits of a box. Beyond them it is killed or refused, never slowed silently."""

    cpus: float = Field(1.0, gt=0)
    """CPU cores."""
    memory_mb: int = Field(1024, ge=32)
    """Memory in MiB; swap is not added."""
    pids: int = Field(128, ge=8)
    """Processes and threads at once."""
    shm_mb: int = Field(64, ge=1)
    """Size of /dev/shm in MiB."""
    disk_mb: int = Field(256, ge=1)
    """Size of the workspace in MiB."""
    seconds: float = Field(7200, gt=0)
    """Time to live in seconds, counted from hand-out; the guest ends the box by itself."""


class BoxSpec(BaseConfig):
    """The kind of a box. Unused boxes of equal specs are interchangeable."""

    provider: Literal["docker", "process"] = "docker"
    """`docker` isolates; `process` only separates, for machines without Docker."""
    image: str = "air-base"
    """The Docker image; the process box has none."""
    limits: BoxLimits = BoxLimits()
    """Resource limits."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of every command."""
    gpus: int = Field(0, ge=0)
    """The number of GPUs of the box; a pool's lease decides which ones (`air.sandbox.pool.gpus`)."""
    scratch: tuple[str, ...] = ()
    """Additional writable folders by absolute path (e.g. `/grader`); see `Box.path`."""
    network: Names = ()
    """The hosts that commands may reach over HTTP and HTTPS (see `air.sandbox.contract.network_rules`).
    The box itself has no network: the harness runs an egress proxy for it, which `http_proxy` and similar
    variables name. A process box without namespaces has the machine's network, whatever this lists."""
    second_user: bool = False
    """Grader boxes only: commands run as root with SETUID, SETGID and KILL so that a grader can run
    an agent's code as the uid in `AIR_SECOND_UID`. Never set for a box in which an agent acts."""

    @model_validator(mode="after")
    def _closed_graders(self) -> BoxSpec:
        if self.second_user and self.network:
            raise ValueError("a grader's box (second_user) has no network: leave `network` empty")
        return self


@dataclass(frozen=True)
class ExecResult:
    """The result of one command."""

    code: int
    """Exit status; 128 + N after signal N; 137 after a timeout."""
    stdout: bytes
    """Standard output; head and tail if it was longer than the cap."""
    stderr: bytes
    """Standard error, capped likewise."""
    timed_out: bool = False
    """Whether it ran past its timeout; its whole process group was killed."""
    truncated: bool = False
    """Whether output was cut; the cut is marked in the text."""
    seconds: float = 0.0
    """Wall time inside the box, in seconds."""
    began: bool = True
    """Whether its program ran at all. False if it cannot be executed (`code` 126 or 127, reason in
    `stderr`), or if the limit of processes was reached."""

    @property
    def ok(self) -> bool:
        """Whether it exited with status 0 before the timeout."""
        return self.code == 0 and not self.timed_out

    @property
    def text(self) -> str:
        """stdout then stderr, decoded; bytes that are not UTF-8 become U+FFFD."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")


class Snapshot(ABC):
    """A frozen workspace, from which any number of boxes can start. Use through `async with`.

    Boxes that started from it stay alive after it is closed.
    """

    id: str

    @abstractmethod
    async def close(self) -> None:
        """Releases the workspace. Calling it twice is harmless."""

    async def __aenter__(self) -> Snapshot:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class Box(ABC):
    """A live box. Use through `async with`; closing twice is harmless.

    Every method but `path` and `close` raises `BoxDiedError` when the box is gone, or goes
    while it is waited for: that is a failure of ours.
    """

    id: str
    spec: BoxSpec
    isolation: Isolation
    workspace: str
    """Absolute path of the workspace, as a command in the box sees it."""
    shell: str = "bash"
    """The shell that runs strings: `bash`; `sh` if the box has no bash; empty if it has neither."""
    queue_seconds: float = 0.0
    """Seconds that its user waited for a place on this host and for its GPUs; set by the pool."""
    gpus: tuple[str, ...] = ()
    """UUIDs of its GPUs."""
    image_digest: str = ""
    """The engine's id of the image that it started from; empty for a process box."""

    def path(self, absolute: str) -> str:
        """The path by which commands see `absolute`, a path in the workspace or in a scratch folder."""
        return absolute

    @abstractmethod
    async def exec(
        self,
        command: Command,
        *,
        timeout: float,  # noqa: ASYNC109 — kept by the guest, which kills the command
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        max_bytes: int = MAX_OUTPUT,
    ) -> ExecResult:
        """Runs one command: a string by `bash -c`, or `sh -c` if there is no bash; a sequence as it is.

        Args:
            timeout: seconds after which its whole process group is killed.
            cwd: working directory, absolute or relative to the workspace.
            max_bytes: cap on stdout and on stderr, each.

        Raises:
            BoxDiedError: the box is gone. Every outcome of the command itself is a result.
        """

    @abstractmethod
    async def read(self, path: str, *, max_bytes: int = 16_000_000) -> bytes:
        """The bytes of a regular file, relative to the workspace or in a writable folder.

        Raises:
            BoxFileError: the path is absent, is not a regular file, is too large, or leads out of the box.
            BoxDiedError: the box is gone.
        """

    @abstractmethod
    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Writes a file, and creates its folders; replaces a file, and follows no link.

        Raises:
            BoxFileError: the path leads out of the box or names a folder, or the disk is full.
            BoxDiedError: the box is gone.
        """

    @abstractmethod
    async def put(self, source: Path, dest: str = ".") -> None:
        """Copies a host file or the contents of a host folder to `dest`; follows no links.

        Raises:
            BoxFileError: as `write`; or `source` is absent, is a link, or holds a link.
            BoxDiedError: the box is gone.
        """

    @abstractmethod
    async def get(self, path: str, dest: Path, *, max_bytes: int = 64_000_000) -> None:
        """Copies a file or the contents of a folder to the host folder `dest`: regular files and
        folders only; links, devices and FIFOs are refused.

        Raises:
            BoxFileError: the path is absent, larger than `max_bytes` in total, or holds anything else.
            BoxDiedError: the box is gone.
        """

    @abstractmethod
    async def forward(self, port: int, target: Handler | tuple[str, int]) -> int:
        """Opens a loopback port of the box, which the host answers while the box lives; the box needs
        no network for it. In a process box without namespaces it is a loopback port of the machine.

        Args:
            port: 0 takes any free one.
            target: an async function of a reader and a writer, called for every connection, or the
                host and port to connect to.

        Returns:
            The port.

        Raises:
            BoxStartError: the port is taken or may not be opened.
            BoxDiedError: the box is gone.
        """

    @abstractmethod
    async def snapshot(self) -> Snapshot:
        """Freezes the workspace, without other folders, and ends the box with every process in it.
        To continue, start a box from the snapshot.

        Raises:
            BoxStartError: the snapshot service could not be started. The box is closed after any error.
        """

    @abstractmethod
    async def restore(self, snapshot: Snapshot) -> None:
        """Replaces the unused workspace of this box by a copy of a frozen one.

        `BoxLimits.disk_mb` bounds the later writes. They never show in the snapshot, nor in other
        boxes that start from it.

        Raises:
            ConfigError: the snapshot was taken from another kind of box.
            BoxDiedError: the snapshot is gone.
        """

    @abstractmethod
    async def close(self) -> None:
        """Kills everything in the box and removes it, without a grace period.

        Raises:
            BoxDiedError: a part of it could not be removed; no process of it runs any more.
        """

    async def __aenter__(self) -> Box:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


@dataclass
class BoxStats:
    """Counters of a pool, for metrics and leak tests."""

    started: int = 0
    failed: int = 0
    closed: int = 0
    live: int = 0
    queue_seconds: float = 0.0
    by_image: dict[str, int] = field(default_factory=dict)
