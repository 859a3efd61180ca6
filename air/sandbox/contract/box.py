"""The interface of a box: an isolated place to run commands, with one writable workspace.

Both providers (`docker` and `process`) implement `Box` and are tested by the same conformance suite. Each
command starts in the workspace, in a process group of its own. Of earlier commands only the files remain. A
command that fails, times out or prints too much yields a result, not an error. `exec` raises an error only if
the box is gone.
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
"""The warning that users see once before episodes run in boxes that are plain processes, not containers."""


class BoxLimits(BaseConfig):
    """The resource limits of a box. A command that exceeds a limit is killed or gets an error.

    The limit `cpus` is an exception, because it only slows commands down.
    """

    cpus: float = Field(1.0, gt=0)
    """Number of CPU cores that the commands of the box may use together, e.g. 0.5."""
    memory_mb: int = Field(1024, ge=32)
    """Maximum memory in MiB. There is no swap space in addition."""
    pids: int = Field(128, ge=8)
    """Maximum number of processes and threads in the box at the same time."""
    shm_mb: int = Field(64, ge=1)
    """Size in MiB of `/dev/shm`, the folder for shared memory."""
    disk_mb: int = Field(256, ge=1)
    """Size of the workspace in MiB."""
    seconds: float = Field(7200, gt=0)
    """Time to live in seconds, counted from when the box is handed to its user. After this time the box
    ends."""


class BoxSpec(BaseConfig):
    """Settings of a box: provider, image, limits, GPUs and network. Equal settings give equivalent boxes."""

    provider: Literal["docker", "process"] = "docker"
    """`docker`: the box is a container. `process`: the box is a plain process of this machine, which needs no
    Docker."""
    image: str = "air-base"
    """The Docker image from which the box starts. The provider `process` uses no image."""
    limits: BoxLimits = BoxLimits()
    """The resource limits of the box."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables that every command of the box gets."""
    gpus: int = Field(0, ge=0)
    """The number of GPUs that the box gets. The box pool chooses GPUs that are free."""
    scratch: tuple[str, ...] = ()
    """Absolute paths of writable folders in addition to the workspace, such as `/grader`; see `Box.path`."""
    network: Names = ()
    """The hosts that commands may reach over HTTP and HTTPS (see `air.sandbox.contract.network_rules`). The
    box itself has no network. Its commands use a proxy, which runs in the process that started the box;
    environment variables such as `http_proxy` contain its address. Exception: a box of provider `process`
    without namespaces can use the machine's whole network, whatever this field lists."""
    second_user: bool = False
    """Only for boxes in which a grader computes scores. If true, commands run as root with the capabilities
    SETUID, SETGID and KILL, so that a grader can run an agent's code as another user. The environment
    variable `AIR_SECOND_UID` contains the uid of that user. Never set this field for an agent's own box."""

    @model_validator(mode="after")
    def _closed_graders(self) -> BoxSpec:
        if self.second_user and self.network:
            raise ValueError("a grader's box (second_user) has no network: leave `network` empty")
        return self


@dataclass(frozen=True)
class ExecResult:
    """The result of one command that ran in a box."""

    code: int
    """Exit status of the command. It is 128 + N if signal N ended the command, and 137 after a timeout."""
    stdout: bytes
    """Standard output of the command. Only its beginning and its end if it was longer than `max_bytes` of
    `Box.exec`."""
    stderr: bytes
    """Standard error of the command. Only its beginning and its end if it was longer than `max_bytes` of
    `Box.exec`."""
    timed_out: bool = False
    """Whether the command ran longer than its timeout, so that it was killed with all processes that it had
    started."""
    truncated: bool = False
    """Whether the middle of `stdout` or `stderr` was left out. A line in that output marks where."""
    seconds: float = 0.0
    """Wall time of the command in seconds, measured inside the box."""
    began: bool = True
    """Whether the command's program ran at all. It did not if it cannot be executed, or if the box had
    reached its limit of processes. Then `code` is 126 or 127, and `stderr` contains the reason."""

    @property
    def ok(self) -> bool:
        """Whether the command exited with status 0 before its timeout."""
        return self.code == 0 and not self.timed_out

    @property
    def text(self) -> str:
        """Standard output followed by standard error, decoded as UTF-8. Invalid bytes become U+FFFD."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")


class Snapshot(ABC):
    """The frozen workspace of a box, from which any number of boxes can start. Use it with `async with`.

    The end of the `async with` block closes the snapshot. Boxes that started from it stay alive.
    """

    id: str

    @abstractmethod
    async def close(self) -> None:
        """Releases the frozen workspace, so no further box can start from it. Closing twice is harmless."""

    async def __aenter__(self) -> Snapshot:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class Box(ABC):
    """A running box. Use it with `async with`, which closes the box at the end. Closing twice is harmless.

    If the box is gone, or dies during a call, every method except `path` and `close` raises `BoxDiedError`.
    That error counts as a failure of the infrastructure, not of the agent.
    """

    id: str
    spec: BoxSpec
    isolation: Isolation
    workspace: str
    """Absolute path of the workspace, as the commands in the box see it."""
    shell: str = "bash"
    """The shell that runs commands which are given as strings: `bash`, or `sh` if the box has no bash. Empty
    if the box has neither."""
    queue_seconds: float = 0.0
    """Seconds that the caller waited until this machine had room for the box and enough free GPUs. The box
    pool sets this value."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that the box has."""
    image_digest: str = ""
    """The id by which the container engine knows the image of the box. Empty for the provider `process`."""

    def path(self, absolute: str) -> str:
        """Returns the path that commands in the box must use for `absolute`.

        `absolute` is a path in a writable folder of the box. In a container the two paths are equal. In a box
        that is a plain process, the folder may lie elsewhere on the machine.
        """
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
        """Runs one command in the box, waits until it ends, and returns its result.

        Args:
            command: a string is a script, run by `bash -c`, or by `sh -c` if the box has no bash; a sequence
                is a program and its arguments, run without a shell.
            timeout: seconds after which the command is killed, with all processes that it has started.
            cwd: working directory, absolute or relative to the workspace; by default the workspace.
            env: environment variables in addition to those of `BoxSpec.env`.
            stdin: the bytes that the command reads from its standard input.
            max_bytes: the maximum size of standard output and of standard error, each.

        Raises:
            BoxDiedError: the box is gone. A command that fails or times out raises nothing.
        """

    @abstractmethod
    async def read(self, path: str, *, max_bytes: int = 16_000_000) -> bytes:
        """Reads a regular file in a writable folder of the box and returns its bytes.

        A `path` that is not absolute is relative to the workspace.

        Raises:
            BoxFileError: there is no such file, it is not a regular file, it is larger than `max_bytes`, or
                the path leads out of the box.
            BoxDiedError: the box is gone.
        """

    @abstractmethod
    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Writes `data` to a file in the box, and creates missing parent folders.

        An existing file is replaced. Links are not followed.

        Raises:
            BoxFileError: the path leads out of the box or names a folder, or the disk is full.
            BoxDiedError: the box is gone.
        """

    @abstractmethod
    async def put(self, source: Path, dest: str = ".") -> None:
        """Copies a file, or the contents of a folder, from this machine to the path `dest` in the box.

        Raises:
            BoxFileError: `dest` cannot be written (see `write`), or `source` is absent, is a link, or
                contains a link.
            BoxDiedError: the box is gone.
        """

    @abstractmethod
    async def get(self, path: str, dest: Path, *, max_bytes: int = 64_000_000) -> None:
        """Copies a file, or the contents of a folder, from the box into the folder `dest` on this machine.

        Raises:
            BoxFileError: the path is absent, is larger than `max_bytes` in total, or holds anything but
                regular files and folders, such as a link.
            BoxDiedError: the box is gone.
        """

    @abstractmethod
    async def forward(self, port: int, target: Handler | tuple[str, int]) -> int:
        """Opens a loopback port in the box. Network connections to this port are forwarded to `target`.

        The target is outside of the box. The box needs no network for this. The port stays open as long as
        the box lives. If the box is a plain process without namespaces, the port is a loopback port of the
        machine.

        Args:
            port: the port's number; 0 takes any free port.
            target: an async function that is called with a reader and a writer for every connection, or the
                host and port of a server, to which every connection is passed on.

        Returns:
            The number of the opened port.

        Raises:
            BoxStartError: the port is in use already, or the box must not open it.
            BoxDiedError: the box is gone.
        """

    @abstractmethod
    async def snapshot(self) -> Snapshot:
        """Ends this box with every process in it, and returns its frozen workspace as a snapshot.

        The contents of other writable folders are lost. To continue the work, start another box and `restore`
        the snapshot in it.

        Raises:
            BoxStartError: the snapshot service could not be started. The box is closed after any error.
        """

    @abstractmethod
    async def restore(self, snapshot: Snapshot) -> None:
        """Replaces the workspace of this box by a copy of the workspace in `snapshot`.

        This box must be new, so that no command has run in it. `BoxLimits.disk_mb` limits how much commands
        can write to the copy. Neither the snapshot nor other boxes that start from it see such writes.

        Raises:
            ConfigError: the snapshot was taken from a box of another provider.
            BoxDiedError: the snapshot is gone.
        """

    @abstractmethod
    async def close(self) -> None:
        """Kills every process in the box immediately and removes the box.

        Raises:
            BoxDiedError: a part of the box could not be removed, although all its processes have ended.
        """

    async def __aenter__(self) -> Box:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


@dataclass
class BoxStats:
    """Counters of a box pool.

    They count the boxes that were started, failed to start, were closed, and are live now. `by_image` counts
    the started boxes of each image. `queue_seconds` adds up the seconds that callers waited for a box.
    """

    started: int = 0
    failed: int = 0
    closed: int = 0
    live: int = 0
    queue_seconds: float = 0.0
    by_image: dict[str, int] = field(default_factory=dict)
