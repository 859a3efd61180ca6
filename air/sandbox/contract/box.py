"""The interface of a box: an isolated place to run commands, with one writable folder, the workspace.

Each command starts in the workspace, in its own process group. Changes to files remain for later commands;
changes to the working directory or to environment variables do not. A command that fails, times out or prints
too much still yields a result. If the box is gone, `exec` raises BoxDiedError.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from air.config import BaseConfig
from air.errors import BoxCommandError, BoxDiedError, BoxEndedError, ConfigError
from air.sandbox.contract.entries import BoxFile, Change, FileInfo
from air.sandbox.contract.network_rules import Names
from air.sandbox.contract.open_box import OpenBox as OpenBox
from air.sandbox.contract.result import Command as Command
from air.sandbox.contract.result import ExecResult as ExecResult

if TYPE_CHECKING:
    from air.sandbox.contract.running_command import CommandInfo, RunningCommand
    from air.sandbox.wire.port_relay import Handler

Isolation = Literal["container", "process"]
WORKSPACE = "/workspace"
SECOND_UID_ENV = "AIR_SECOND_UID"
MAX_OUTPUT = 64_000
MOST_CHANGES = 20_000
NOT_ISOLATED = (
    "WARNING: boxes are processes, which are NOT isolated as containers are: agents' code shares this "
    "machine's kernel, is held by no CPU limit and by a memory limit only per process, and unless the "
    "kernel allows namespaces it runs as this user and sees this machine's files, network and processes"
)
"""The warning that users see once before episodes run in process boxes (boxes that are no containers)."""


class BoxLimits(BaseConfig):
    """The resource limits of a box. A process box (ordinary processes instead of a container) enforces only
    some of them; see `docs/boxes.md`. A command that exceeds `cpus` only runs slower. A command that exceeds
    another limit is killed or gets an error."""

    cpus: float = Field(1.0, gt=0)
    """Number of CPU cores that all commands of the box may use together, such as 0.5."""
    memory_mb: int = Field(1024, ge=32)
    """Maximum memory in MiB of all processes of the box together, without swap space. A process box without a
    control group limits each process separately instead."""
    pids: int = Field(128, ge=8)
    """Maximum number of processes and threads in the box at the same time."""
    shm_mb: int = Field(64, ge=1)
    """Size in MiB of `/dev/shm`, the folder for shared memory."""
    disk_mb: int = Field(256, ge=1)
    """Maximum size in MiB of the workspace, and of each folder of `BoxSpec.scratch`."""
    seconds: float = Field(7200, gt=0)
    """Time to live of the box in seconds, counted from the time when the caller gets the box, not from the
    box's start. After this time, the box ends."""


class BoxSpec(BaseConfig):
    """Settings of a box: provider, image, limits, GPUs and network. Equal settings give equivalent boxes."""

    provider: Literal["docker", "process"] = "docker"
    """`docker`: the box is a container. `process`: the box is a group of ordinary processes of this machine,
    which need no Docker."""
    image: str = "air-base"
    """The Docker image from which the box starts. The provider `process` uses no image."""
    limits: BoxLimits = BoxLimits()
    """The resource limits of the box."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables that every command of the box gets."""
    gpus: int = Field(0, ge=0)
    """The number of GPUs that the box gets. The box pool chooses GPUs that are free."""
    scratch: tuple[str, ...] = ()
    """Absolute paths of further writable folders, such as `/grader`. The folders begin empty. `Box.path`
    returns the path by which commands reach such a folder."""
    network: Names = ()
    """The hosts that commands may reach over HTTP and HTTPS (see `air.sandbox.contract.network_rules`); none
    if empty. The box itself has no network. Its commands use a proxy, which runs in the process that started
    the box; environment variables such as `http_proxy` contain the proxy's address. Exception: a process box
    without namespaces can use the machine's whole network, whatever this field lists."""
    hidden: tuple[str, ...] = ()
    """Paths of folders of this machine that commands in a process box must not see. Needed because a process
    box with namespaces shows its commands some folders of this machine, read-only; this field hides folders
    that lie inside of those. Other boxes ignore this field: commands in a container see no folder of this
    machine, and commands in a process box without namespaces see all folders."""
    reusable: bool = False
    """Whether `Box.reset` can prepare the box for another caller. Allowed only for containers, and only if
    the fields `network`, `gpus`, `second_user` and `open` are not set."""
    prestart: tuple[str, ...] = ()
    """Only for reusable boxes: the program and the arguments of a command that runs a Python script in the
    workspace with the image's Python, such as `("python3", "main.py")`; empty for none. The box starts this
    Python interpreter in advance. If the first command of the box, or the first command after a reset, is
    exactly this command, it does not have to wait for the interpreter's start."""
    second_user: bool = False
    """Only for boxes in which a grader (a program that computes scores) runs. If true, commands run as root
    with the capabilities SETUID, SETGID and KILL (and SYS_RESOURCE if the container engine has it). So a
    grader can run an agent's code as another user, whose id the environment variable `AIR_SECOND_UID`
    contains. Never set this field for an agent's own box."""

    open: OpenBox | None = None
    """If set, the box is an open box: its commands may write outside of the workspace, and run as root or
    other users. Only the provider `docker` has such boxes, and graders do not use them."""

    @model_validator(mode="after")
    def _closed_for_reuse(self) -> BoxSpec:
        apart = self.network or self.gpus or self.second_user or self.open
        closed = self.provider == "docker" and not apart
        if self.reusable and not closed:
            raise ValueError(
                "`reusable` is only for containers without `network`, `gpus`, `second_user` and `open`"
            )
        if self.prestart and not self.reusable:
            raise ValueError("`prestart` is only for boxes that are `reusable`")
        return self

    @model_validator(mode="after")
    def _closed_graders(self) -> BoxSpec:
        if self.open and (self.second_user or self.provider != "docker"):
            raise ValueError(
                "`open` needs the provider `docker`, and no `second_user`: leave it out"
            )
        if self.second_user and self.network:
            raise ValueError("a grader's box (second_user) has no network: leave `network` empty")
        return self


class Snapshot(ABC):
    """The frozen workspace of a box, from which any number of boxes can start. Use it with `async with`.

    Closing the snapshot does not end the boxes that started from it.
    """

    id: str

    @abstractmethod
    async def close(self) -> None:
        """Releases the frozen workspace. No further box can start from it. Closing it twice is harmless."""

    async def __aenter__(self) -> Snapshot:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class Box(ABC):
    """A running box. Use it with `async with`, which closes the box. Closing twice is harmless.

    If the box is gone or dies during a call, every method except `path` and `close` raises `BoxDiedError`.
    `attributing` finds out whether the box's commands caused this.
    """

    id: str
    spec: BoxSpec
    isolation: Isolation
    workspace: str
    """Absolute path of the workspace, as the commands in the box see it."""
    shell: str = "bash"
    """The shell that runs commands given as strings: `bash`, or `sh` if the box has no bash. Empty if the box
    has neither."""
    resets: int = 0
    """The number of times that the box pool has reset this box for another caller (see `reset`)."""
    queue_seconds: float = 0.0
    """Seconds between the caller's request to the box pool and the moment when the caller got this box: the
    wait for room on this machine, for free GPUs and for the box's start. 0 if the box is not from a pool."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that the box has; empty if it has none."""
    image_digest: str = ""
    """The container engine's id of the box's image. Empty for the provider `process`."""
    image_user: str | None = None
    """The default user of the box's image (its setting `USER`), such as `agent` or `1000:1000`; `0` if the
    image sets none. `OpenBox.user` may be another user. None for the provider `process`."""

    @property
    def has_own_disk(self) -> bool:
        """Whether the folders of the box have size limits of their own (`BoxLimits.disk_mb`). If not, they
        share a disk with other boxes, so "no space left" in this box can have a cause outside of it."""
        return True

    def path(self, absolute: str) -> str:
        """Returns the path by which commands in the box reach `absolute`, a path in a writable folder.

        In a container, this is `absolute` itself. In a process box (a box without a container), the writable
        folders may have other paths on this machine. A path outside of them is returned unchanged.
        """
        return absolute

    def note_use(self, **facts: str | int | None) -> None:  # noqa: B027 — no log, no record
        """Records in the box's command log what the box is used for. `air box ls` shows this record.

        The keyword arguments, all optional, are `run` (the run's name), `folder` (the path of the run's
        folder), `task` and `episode` (ids), and `step` (the number of the training step).
        """

    async def outside_cause(self) -> str:
        """Returns text that says what ended this dead box, if the cause is known to lie outside of the box.

        Returns "" if no such cause is known. Then the commands that ran in the box count as the cause.
        """
        return ""

    @asynccontextmanager
    async def attributing(self) -> AsyncIterator[None]:
        """Context manager: if the block raises BoxDiedError, finds out whether the box's own commands ended
        the box. If so, raises BoxEndedError instead.

        Use it after untrusted commands ran in the box. If a cause outside of the box is known (see
        `outside_cause`), raises BoxDiedError again, with this cause in the text.
        """
        try:
            yield
        except BoxDiedError as error:
            if cause := await self.outside_cause():
                raise BoxDiedError(f"{error}: {cause}") from error
            raise BoxEndedError(str(error)) from error

    @abstractmethod
    async def exec(
        self,
        command: Command,
        *,
        timeout: float,  # noqa: ASYNC109 — kept by the guest, which kills the command
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        max_bytes: int = MAX_OUTPUT,
        then_reset: bool = False,
    ) -> ExecResult:
        """Runs one command in the box, waits until it ends, and returns its result, even if it fails.

        Args:
            command: a string is a script for `bash -c`, or `sh -c` if the box has no bash; a sequence is a
                program and its arguments, run without a shell.
            timeout: seconds after which the command is killed, with all processes that it has started.
            cwd: working directory, absolute or relative to the workspace; by default the workspace.
            env: environment variables in addition to those of `BoxSpec.env`.
            stdin: the bytes that the command reads from its standard input.
            files: a dict {path: contents} of files that are written before the command starts, as `write`
                does. If a file cannot be written, BoxFileError is raised, and the command does not run.
            max_bytes: the number of bytes of standard output that are kept, and likewise of standard error.
            then_reset: whether a box that can be reset begins its reset by itself as soon as the command has
                ended. The call does not wait for the reset. Afterwards, no method may be used but `reset`,
                which then only waits for the result, and `close`.
        """

    async def start(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bool = False,
        terminal: tuple[int, int] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 — kept by the guest, which kills the command
    ) -> RunningCommand:
        """Starts a command in the box, and returns a handle to it at once, while the command runs.

        `command`, `cwd` and `env` are as in `exec`. If the program cannot run, the command ends at once, and
        `ExecResult.began` is false. Raises BoxCommandError if the box is frozen, cannot start another
        process, or has no such user. Raises ConfigError if `user` is given and the box is no open box.

        Args:
            user: the name or id of the user who runs the command; only in an open box (`BoxSpec.open`). A
                group may follow, as in `me:staff`. None means the box's default user.
            stdin: whether `RunningCommand.write` can write to the command's standard input. If false, the
                standard input is empty.
            terminal: the size (rows, columns) of a new terminal, which becomes the command's standard input,
                output and error. If it is given, `stdin` is ignored.
            timeout: seconds after which the command is killed, with all processes that it has started. None
                means no timeout.
        """
        raise self._lacks("exchange data with a running command")

    async def commands(self) -> Sequence[CommandInfo]:
        """Returns the commands that `start` started and that still run, oldest first."""
        return []

    async def attach(self, pid: int) -> RunningCommand:
        """Returns a further handle to a running command. `pid` is its process id, which `start` and
        `commands` return.

        Raises BoxCommandError if no command with this process id runs.
        """
        raise BoxCommandError(f"no running command has the process id {pid}")

    @abstractmethod
    async def read(
        self, path: str, *, max_bytes: int = 16_000_000, user: str | None = None
    ) -> bytes:
        """Returns the contents of a regular file in a writable folder. A relative `path` starts at the
        workspace.

        In an open box (`BoxSpec.open`), all file operations follow links and reach every path that the user
        `user` may use. `user` is a name or id as in `start`; None means the box's default user. In other
        boxes, file operations follow no links, and raise ConfigError if `user` is given. Raises BoxFileError
        if there is no such regular file, if the file has more than `max_bytes`, or if the path leads out of
        the box's writable folders.
        """

    @abstractmethod
    async def write(
        self, path: str, data: bytes, *, mode: int = 0o644, user: str | None = None
    ) -> None:
        """Writes `data` to the file `path` in the box. Creates missing folders and replaces an existing file.

        `mode` is the new file's permission bits. In an open box, an existing file keeps its mode instead.
        `path` and `user` are as in `read`. Raises BoxFileError if the path leads out of the box's writable
        folders or names a folder, or if the disk is full.
        """

    async def stat(self, path: str, *, user: str | None = None) -> FileInfo:
        """Returns a description of the file, folder or link at `path`. `user` is as in `read`. Raises
        BoxFileError if `path` does not exist."""
        raise self._lacks("describe files")

    async def list(
        self, path: str, *, depth: int = 1, user: str | None = None
    ) -> Sequence[FileInfo]:
        """Returns descriptions of the entries of a folder and of its subfolders, sorted by path.

        `depth` is the number of levels: 1 means only the folder's own entries, 2 also the entries of its
        subfolders, and so on. Links to folders are not entered. `path` and `user` are as in `read`. Raises
        BoxFileError if there is no such folder, or if the answer would have more than 50,000 entries.
        """
        raise self._lacks("list folders")

    async def make_folder(self, path: str, *, user: str | None = None) -> bool:
        """Makes a folder and its missing parents. Returns true if the folder is new, false if it existed.

        `user` is as in `read`. Raises BoxFileError if `path` is an existing file.
        """
        raise self._lacks("make folders")

    async def remove(self, path: str, *, user: str | None = None) -> None:
        """Removes a file, a link, or a folder with its contents. `user` is as in `read`. Raises BoxFileError
        if `path` does not exist."""
        raise self._lacks("remove files")

    async def rename(self, source: str, dest: str, *, user: str | None = None) -> FileInfo:
        """Moves a file, link or folder to the path `dest`, and returns a description of the moved entry.
        Makes missing parent folders of `dest`, and replaces an existing file at `dest`.

        `user` is as in `read`. Raises BoxFileError if `source` does not exist, or if `dest` cannot be
        replaced (for example, because it is a folder with contents) or lies on another file system.
        """
        raise self._lacks("rename files")

    def _lacks(self, what: str) -> ConfigError:
        return ConfigError(
            f"a box of the kind {type(self).__name__} cannot {what}",
            remedy="use a box of another provider, such as docker",
        )

    async def changed(
        self, folder: str | None = None, *, most: int = MOST_CHANGES
    ) -> Sequence[Change]:
        """Returns the paths in `folder` (by default the workspace) that differ from the box's image, sorted.

        The container engine finds the differences, so programs in the box cannot falsify them. `folder` is an
        absolute path without links; its subfolders are included. The list leaves out mounted folders, and
        folders that differ only in their contents. Raises BoxFileError if there are more than `most`
        differences. Raises ConfigError if the box does not keep its image's files (`OpenBox.keep`), if the
        image declares a volume in `folder`, or if the container engine cannot see differences.
        """
        raise self._lacks("report which files were changed")

    async def gather(
        self,
        paths: Iterable[str],
        *,
        tree: bool = True,
        max_bytes: int = 64_000_000,
        max_entries: int = MOST_CHANGES,
        user: str | None = None,
    ) -> Sequence[BoxFile]:
        """Returns the entries (files, folders and links) at `paths`, with the contents of files. If `tree` is
        true, also returns everything in the folders among them. Sends only few requests to the box.

        Paths that do not exist are left out. Links in the middle of a path are followed as in `read`. A link
        at the end of a path, or inside a folder, is returned as a link. `user` is as in `read`. Raises
        BoxFileError if all files together have more than `max_bytes`, if there are more than `max_entries`
        entries, or if the user may not read a file.
        """
        raise self._lacks("return several files in one answer")

    async def end_processes(self) -> None:
        """Kills all commands in the box with their background processes, and returns when all are gone.

        The commands' results say that signal 9 ended them. The box lives on, and further commands can run.
        """
        raise self._lacks("end all processes")

    @abstractmethod
    async def put(self, source: Path, dest: str = ".", *, user: str | None = None) -> None:
        """Copies a file, or the contents of a folder, from this machine to the path `dest` in the box.

        A relative `dest` starts at the workspace. If `dest` is an existing folder, a file is copied into it;
        otherwise the copy of the file gets the path `dest`. `user` is as in `read`. Raises BoxFileError if
        `dest` cannot be written (see `write`), or if `source` does not exist, is a link, or contains a link.
        """

    @abstractmethod
    async def get(
        self, path: str, dest: Path, *, max_bytes: int = 64_000_000, user: str | None = None
    ) -> None:
        """Copies a file, or the contents of a folder, from the box into the folder `dest` on this machine.
        Makes `dest` if it does not exist. The copy of a file keeps the file's name.

        `path` and `user` are as in `read`. Raises BoxFileError if `path` does not exist, if all files
        together have more than `max_bytes`, or if `path` is or contains anything other than regular files and
        folders, such as a link. Raises InfrastructureError if this machine's disk is full.
        """

    @abstractmethod
    async def forward(self, port: int, target: Handler | tuple[str, int]) -> int:
        """Opens a loopback port in the box until the box ends, and returns the port's number.

        Each connection to the port goes to `target`: either the host and port of a server outside of the box,
        or an async function that gets an asyncio StreamReader and StreamWriter. The box needs no network for
        this. If `port` is 0, any free port is chosen. In a process box (a box without a container) without
        Linux namespaces, the port is a loopback port of this machine. Raises BoxStartError if the port is in
        use or the kernel forbids it.
        """

    async def freeze(self) -> None:
        """Stops every process in the box until `thaw` is called. The processes keep their memory, and the
        clocks of their timeouts stop.

        While the box is frozen, files can be read and written, but `exec` and `start` raise BoxCommandError.
        The box's time to live goes on. Raises BoxCommandError if an `exec` is running. Freezing twice is
        harmless.
        """
        raise self._lacks("freeze its processes")

    async def thaw(self) -> None:
        """Continues the processes that `freeze` stopped. Does nothing if the box is not frozen."""
        raise self._lacks("freeze its processes")

    async def copy(self) -> Snapshot:
        """Returns a snapshot of the workspace. Unlike `snapshot`, this method does not end the box.

        The processes stop while the workspace is copied, which takes longer for a larger workspace. Raises
        BoxCommandError if an `exec` is running, if the box is frozen, or if commands made the workspace
        impossible to copy, for instance by a folder that they may not read. Raises InfrastructureError if
        this machine cannot store the copy, ConfigError if the box keeps its image's files (`OpenBox.keep`).
        """
        raise self._lacks("be copied")

    @abstractmethod
    async def snapshot(self) -> Snapshot:
        """Ends this box with all its processes, and returns the frozen workspace. Other folders are lost.

        To continue the work, start another box and `restore` the snapshot there. Raises ConfigError if the
        box keeps its image's files (`OpenBox.keep`); then the box lives on. After any other error, the box is
        closed. Raises BoxStartError if the service that stores snapshots does not start.
        """

    @abstractmethod
    async def restore(self, snapshot: Snapshot) -> None:
        """Replaces the workspace of this new box by a copy of `snapshot`. No command may have run in the box
        before.

        `BoxLimits.disk_mb` limits how much commands can write to the copy. The snapshot and other boxes do
        not change. Raises ConfigError if the snapshot is from another provider, or if the box keeps its
        image's files (`OpenBox.keep`). Raises BoxDiedError if the snapshot is gone.
        """

    async def reset(self) -> str:
        """Restores this used box to its first state, for another caller. Returns "" on success, else the
        reason for the failure. After a failure, close the box.

        Only a box with `BoxSpec.reusable` can be reset, and only if no other methods than `exec`, `read`,
        `write`, `put` and `get` were used. A reset removes the box's files and processes. Then the guest
        (air's program in the box) compares everything else that commands can change with the state of the new
        box. If anything differs, the reset fails (see `air.sandbox.reuse.resets`). Counters of the kernel,
        such as the next process id, are not reset.
        """
        return "boxes of this kind serve only one user"

    @abstractmethod
    async def close(self) -> None:
        """Kills every process in the box and removes the box. Raises BoxDiedError if a part of it remains."""

    async def __aenter__(self) -> Box:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


@dataclass
class BoxStats:
    """Statistics of a box pool: the number of boxes that it has `started`, that `failed` to start, that it
    has `closed`, and that exist now (`live`)."""

    started: int = 0
    failed: int = 0
    closed: int = 0
    live: int = 0
    queue_seconds: float = 0.0
    """The total number of seconds that callers waited for a box."""
    reused: int = 0
    """The number of times that the pool reset a used box for another caller, over all of its boxes."""
    refused: Counter[str] = field(default_factory=Counter)
    """How many used boxes the pool removed instead of lending them again, as counts by reason. The reason
    says why the reset failed; it is "" if only the image was outdated or the pool was closing."""
