"""The contract of a box: an isolated place to run commands, with one writable workspace.

Every provider (`docker`, `process`) keeps it and passes the same conformance suite. Commands run
fresh: each in its own process group, in the workspace, with no state kept from the one before
except files. A command that fails, times out or floods its output is a result, not an error;
only a box that is gone raises.
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
"""What a person must see once before anything is played in process boxes."""


class BoxLimits(BaseConfig):
    """What a box may use; the box is killed or refused beyond it, never slowed silently."""

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
    """What kind of box is wanted. Boxes of equal specs are interchangeable while untouched."""

    provider: Literal["docker", "process"] = "docker"
    """`docker` isolates; `process` only separates, for machines without Docker."""
    image: str = "air-base"
    """The Docker image; the process box has none."""
    limits: BoxLimits = BoxLimits()
    """Resource limits."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of every command."""
    gpus: int = Field(0, ge=0)
    """GPUs of the box; which ones, a pool's lease decides (`air.sandbox.pool.gpus`)."""
    scratch: tuple[str, ...] = ()
    """More writable folders by absolute path (e.g. `/grader`); see `Box.path`."""
    network: Names = ()
    """What commands may reach, by name (see `air.sandbox.contract.network_rules`), over HTTP and HTTPS:
    a container has no network, and the harness answers a proxy's port in it, which `http_proxy` and its like
    name. A process box has the machine's network, whatever stands here."""
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
    """What became of one command."""

    code: int
    """Exit status; 128 + N after signal N; 137 after a timeout."""
    stdout: bytes
    """Standard output, head and tail kept where it was longer than the cap."""
    stderr: bytes
    """Standard error, likewise."""
    timed_out: bool = False
    """Whether it ran past its timeout; its whole process group was killed."""
    truncated: bool = False
    """Whether output was cut; the cut is marked in the text."""
    seconds: float = 0.0
    """Wall time inside the box, in seconds."""
    began: bool = True
    """Whether its program ran at all; False where it cannot be executed (`code` 126 or 127, `stderr` says
    why), or where there was no process left for it."""

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.code == 0 and not self.timed_out

    @property
    def text(self) -> str:
        """stdout then stderr, decoded; bytes that are not UTF-8 become U+FFFD."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")


class Snapshot(ABC):
    """A frozen workspace, from which any number of boxes can start. Use through `async with`.

    Boxes that started from it live on when it is closed.
    """

    id: str

    @abstractmethod
    async def close(self) -> None:
        """Gives up what it holds. Calling it twice is harmless."""

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
    """Seconds that its user waited for it, for a place on this host and for its GPUs; set by the
    pool."""
    gpus: tuple[str, ...] = ()
    """UUIDs of its GPUs."""
    image_digest: str = ""
    """The engine's id of the image that it started from; empty for a process box."""

    def path(self, absolute: str) -> str:
        """Where commands see `absolute`, a path in the workspace or in a scratch folder."""
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
        """Runs one command: a string through `bash -c`, or `sh -c` if there is no bash; a sequence as it is.

        Args:
            timeout: seconds after which its whole process group is killed.
            cwd: working directory, absolute or relative to the workspace.
            max_bytes: cap on stdout and on stderr, each.

        Raises:
            BoxDiedError: the box is gone. Nothing else: whatever becomes of the command is a result.
        """

    @abstractmethod
    async def read(self, path: str, *, max_bytes: int = 16_000_000) -> bytes:
        """The bytes of a regular file, relative to the workspace or in a writable folder.

        Raises:
            BoxFileError: absent, not a regular file, too large, or leads out through a link.
            BoxDiedError: the box is gone.
        """

    @abstractmethod
    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Writes a file, making its folders; replaces a file, never follows a link out.

        Raises:
            BoxFileError: the path leads out, names a folder, or the disk is full.
            BoxDiedError: the box is gone.
        """

    @abstractmethod
    async def put(self, source: Path, dest: str = ".") -> None:
        """Copies a host file or the contents of a host folder to `dest`, following no links.

        Raises:
            BoxFileError: as `write`; or `source` is absent, a link, or holds one.
            BoxDiedError: the box is gone.
        """

    @abstractmethod
    async def get(self, path: str, dest: Path, *, max_bytes: int = 64_000_000) -> None:
        """Copies a file or the contents of a folder out to the host folder `dest`: regular files and
        folders only; links, devices and FIFOs are refused.

        Raises:
            BoxFileError: absent, larger than `max_bytes` in all, or holds something not copied.
            BoxDiedError: the box is gone.
        """

    @abstractmethod
    async def forward(self, port: int, target: Handler | tuple[str, int]) -> int:
        """Opens a loopback port of the box, answered on the host as long as the box lives; the box
        needs no network for it. In a process box it is a loopback port of the machine.

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
        """Freezes the workspace, without other folders, and ends the box: every process in it is
        killed. To go on, start a box from the snapshot.

        Raises:
            BoxStartError: what keeps snapshots could not be started. Whatever it raises, the box is closed.
        """

    @abstractmethod
    async def restore(self, snapshot: Snapshot) -> None:
        """Puts a copy of a frozen workspace in place of this box's, in which nothing was done yet.

        `BoxLimits.disk_mb` bounds what is written on top of it. What either writes later never
        shows in the other, nor in the snapshot.

        Raises:
            ConfigError: it was taken from another kind of box.
            BoxDiedError: the snapshot is gone.
        """

    @abstractmethod
    async def close(self) -> None:
        """Kills everything in the box and removes it. Never waits for a grace period.

        Raises:
            BoxDiedError: something of it could not be removed; nothing runs in it any more.
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
