"""Defines `GuestBox`, the base class of all boxes. (A box is an isolated place for commands.) It implements
the methods of the interface `Box` by requests to the guest, air's program inside the box. Each provider (kind
of box: Docker container, or processes) has a subclass.

If a call of `exec` is cancelled, its command is killed. If the guest does not answer within `GRACE_SECONDS`
after a command's timeout, the box counts as dead.
"""

from __future__ import annotations

import asyncio
import math
import posixpath
import resource
import secrets
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from air.aio import wait_shielded
from air.errors import BoxCommandError, BoxDiedError, BoxFileError, ConfigError
from air.sandbox.contract import open_box
from air.sandbox.contract.box import (
    MAX_OUTPUT,
    MOST_CHANGES,
    WORKSPACE,
    Box,
    BoxSpec,
    Command,
    ExecResult,
)
from air.sandbox.contract.entries import BoxFile, FileInfo
from air.sandbox.contract.running_command import CommandInfo, RunningCommand
from air.sandbox.guest.files import deepest
from air.sandbox.guest.main import HOST_SILENT
from air.sandbox.ops.command_log import CommandLog, recorded
from air.sandbox.wire import file_transfer as files
from air.sandbox.wire.command_streams import RunningCommands, result_of
from air.sandbox.wire.connection import CLOSED, Connection, Reply
from air.sandbox.wire.port_relay import Handler, Relay, to

START_SECONDS = 60.0
GRACE_SECONDS = 30.0
PIECE = 1 << 20
PIPELINE = 64
GATHERED = 1000
"""The maximum number of paths in one `gather` request to the guest. For more paths, `Box.gather` sends
several requests."""
_GATHERED = ("path", "kind", "mode", "uid", "gid", "link")
MOST_FILES = 4096
"""The maximum number of files that one process in a box may have open at once."""
BOUNDS = [(resource.RLIMIT_NOFILE, MOST_FILES), (resource.RLIMIT_CORE, 0)]
"""Pairs of a resource and its limit. The guest (air's program) in a container sets these limits for itself,
and commands inherit them. They are not set through the container engine, because Podman before 5.5 would
ignore them."""
IPC = {"shm_rmid_forced": "1", "msgmni": "32", "sem": "250 32000 100 128"}
"""Kernel settings of a box for System V shared memory, message queues and semaphores. Such objects outlive
their processes, and could fill the box's memory for good. With these settings, shared memory ends with its
processes, and only few message queues and semaphores can exist."""
SECOND_UID = 65533
"""The user id under which a grader runs an agent's code. The grader itself runs under another user id."""
_SYSTEM_FOLDERS = {
    *("", ".air", "workspace", "tmp", "proc", "sys", "dev", "etc", "usr", "bin", "sbin", "lib"),
    "lib64",
}


Entries = list[files.Entry]


class GuestBox(Box):
    """A box in which the guest executes requests. Base class of the boxes of all providers, which are the
    kinds of boxes: Docker containers, and processes."""

    def __init__(self, spec: BoxSpec) -> None:
        self.spec = spec
        self.id = f"air-{secrets.token_hex(6)}"
        self._folders = {folder: folder for folder in (*folders(spec), "/tmp")}
        self._connection: Connection | None = None
        self._relay: Relay | None = None
        self._running: RunningCommands | None = None
        self._coming_reset = 0
        """The id of the request `reset` that the guest (air's program in the box) does by itself after the
        last command. 0 if there is none."""
        self._reset_answers: asyncio.Queue[Reply | None] = asyncio.Queue()
        """Receives the answer to the request `_coming_reset`."""
        self._execs = 0
        self._frozen = False
        self.born = time.monotonic()
        self.command_log = CommandLog(self.id)
        self._closing: asyncio.Task[None] | None = None
        self._home = self.workspace = home(spec)

    @property
    def seen_from_host(self) -> str:
        """The path of the box's workspace on the host (the machine outside the box); empty if the workspace
        has no path there."""
        return ""

    @property
    def alive(self) -> bool:
        """Whether the stream to the guest is open, so that the box can execute requests."""
        return self._connection is not None and not self._connection.reason

    async def wait_until_lost(self) -> None:
        """Returns when the stream to the guest has ended, so that `alive` is false."""
        await self._guest.lost.wait()

    @property
    def _guest(self) -> Connection:
        if self._connection is None:
            raise BoxDiedError(f"box {self.id} has no guest")
        return self._connection

    def note_use(self, **facts: str | int | None) -> None:
        self.command_log.use(facts)

    async def outside_cause(self) -> str:
        reason = self._connection.reason if self._connection else ""
        return reason if reason in (CLOSED, HOST_SILENT) else ""

    def path(self, absolute: str) -> str:
        folder = deepest(self._folders, absolute)
        return absolute if folder is None else self._folders[folder] + absolute[len(folder) :]

    def hand_out(self) -> None:
        """Starts the box's time to live: the box ends `BoxLimits.seconds` seconds later. Called when a pool
        gives the box to a caller."""
        self._guest.post_with_next({"op": "lease", "id": 0, "seconds": self.spec.limits.seconds})

    @recorded
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
        self._check_awake()
        files = await self._small(files or {})
        ident = self._guest.new_id()
        request = {"op": "exec", "id": ident, "max_bytes": max_bytes}
        request |= self._request(command, timeout, cwd, env)
        request["files"] = [[path, len(data)] for path, data in files.items()]
        if then_reset and self.spec.reusable:
            request["reset"] = self._coming_reset = self._guest.new_id()
            self._reset_answers = asyncio.Queue()
            self._guest.route(self._coming_reset, self._reset_answers)
        self._execs += 1
        try:
            async with asyncio.timeout(timeout + GRACE_SECONDS):
                header, body = await self._guest.request(
                    request, b"".join([*files.values(), stdin])
                )
        except ValueError as error:
            self._expect_no_reset()
            return ExecResult(126, b"", f"air: {error}\n".encode(), began=False)
        except BoxFileError as error:  # the guest no longer runs commands
            self._expect_no_reset()
            raise BoxDiedError(f"box {self.id}: {error}") from error
        except TimeoutError:
            reason = f"its guest did not answer {GRACE_SECONDS:.0f} s after a command's timeout"
            self._guest.lose(reason)
            raise BoxDiedError(f"box {self.id}: {reason}") from None
        except asyncio.CancelledError:
            self._guest.post({"op": "kill", "id": 0, "target": ident})
            raise
        finally:
            self._execs -= 1
        if "refused" in header:
            raise BoxFileError("{!r}: {}".format(*header["refused"]))
        return result_of(header, body)

    def _expect_no_reset(self) -> None:
        self._guest.unroute(self._coming_reset)
        self._coming_reset = 0

    async def _small(self, files: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Prepares the files of a command. If they have at most `PIECE` bytes together, returns all of them,
        to be sent within the command's request. Otherwise writes all of them now, and returns none."""
        if sum(map(len, files.values())) <= PIECE:
            return files
        for path, data in files.items():
            await self.write(path, data)
        return {}

    def _check_awake(self) -> None:
        if self._frozen:
            raise BoxCommandError(f"box {self.id} is frozen: thaw it first")

    async def freeze(self) -> None:
        if self._execs:
            raise BoxCommandError(f"box {self.id} does not freeze while `exec` runs a command")
        before, self._frozen = self._frozen, True
        try:
            await self._guest.request({"op": "stop"})
        except BaseException as error:  # cancellation too: nobody would thaw the box
            if not before:
                self._guest.post({"op": "continue", "id": 0})
                self._frozen = False
            if isinstance(error, BoxFileError):
                raise BoxCommandError(f"box {self.id} does not freeze: {error}") from None
            raise

    async def thaw(self) -> None:
        await self._guest.request({"op": "continue"})
        self._frozen = False

    def _request(
        self,
        command: Command,
        timeout: float | None,
        cwd: str | None,
        env: Mapping[str, str] | None,
    ) -> dict[str, Any]:
        """Returns the fields that the requests `exec` and `start` to the guest have in common: the command,
        its timeout in seconds, its working directory (relative to the workspace unless `cwd` is absolute) and
        its environment variables."""
        folder = self.path(posixpath.join(self._home, cwd or ""))
        what = {"script": command} if isinstance(command, str) else {"argv": list(command)}
        return {"timeout": timeout, "env": dict(env or {}), "cwd": folder, **what}

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
        self._check_awake()
        info = CommandInfo(
            0,
            command,
            self.path(posixpath.join(self._home, cwd or "")),
            dict(env or {}),
            user or "",
            stdin and not terminal,
            bool(terminal),
        )
        request = self._request(command, timeout, cwd, env) | self._as(user)
        return await self._started.start(request, info, terminal)

    async def commands(self) -> Sequence[CommandInfo]:
        return self._started.infos()

    async def attach(self, pid: int) -> RunningCommand:
        return self._started.attach(pid)

    @property
    def _started(self) -> RunningCommands:
        if self._running is None:
            self._running = RunningCommands(self._guest, self.id, self.command_log)
        return self._running

    def _as(self, user: str | None) -> dict[str, Any]:
        """Returns the field of a request that names the user for it: `{"user": user}`, or an empty dict if
        `user` is None. Raises ConfigError if a user is given although the box is not an open box; only in an
        open box can commands run as other users."""
        if user is None:
            return {}
        if self.spec.open is None:
            raise ConfigError(
                f"box {self.id} has one user, not {user!r}",
                remedy="leave out `user`, or open the box with `BoxSpec.open`",
            )
        return {"user": user}

    async def read(
        self, path: str, *, max_bytes: int = 16_000_000, user: str | None = None
    ) -> bytes:
        entries = await self._fetch(path, tree=False, max_bytes=max_bytes, user=user)
        return entries[0].data

    async def write(
        self, path: str, data: bytes, *, mode: int = 0o644, user: str | None = None
    ) -> None:
        with _about(path):
            await self._guest.upload({"path": path, "mode": mode, **self._as(user)}, _sliced(data))

    async def stat(self, path: str, *, user: str | None = None) -> FileInfo:
        return FileInfo(**(await self._ask("stat", path, user))["entry"])

    async def list(
        self, path: str, *, depth: int = 1, user: str | None = None
    ) -> Sequence[FileInfo]:
        request = {"op": "list", "path": path, "depth": depth, **self._as(user)}
        with _about(path):
            answers = [header async for header, _ in self._guest.stream(request)]
        found = [FileInfo(**entry) for answer in answers for entry in answer["entries"]]
        return sorted(found, key=lambda info: info.path.split("/"))

    async def make_folder(self, path: str, *, user: str | None = None) -> bool:
        return bool((await self._ask("make", path, user))["made"])

    async def remove(self, path: str, *, user: str | None = None) -> None:
        with _about(path):
            async for _ in self._guest.stream({"op": "remove", "path": path, **self._as(user)}):
                pass

    async def rename(self, source: str, dest: str, *, user: str | None = None) -> FileInfo:
        return FileInfo(**(await self._ask("rename", source, user, to=dest))["entry"])

    async def _ask(self, op: str, path: str, user: str | None, **more: str) -> dict[str, Any]:
        """Sends the guest a request of the kind `op` about the path `path`, with the fields `more`, and
        returns the header of the answer. The guest executes the request with the rights of `user`. Error
        messages name the path."""
        with _about(path):
            request = {"op": op, "path": path, **more, **self._as(user)}
            return (await self._guest.request(request))[0]

    async def put(self, source: Path, dest: str = ".", *, user: str | None = None) -> None:
        """Copies a host file, or the contents of a host folder, into the box; see `Box.put`.

        If `source` is a file and `dest` is an existing folder in the box, the copy lies in this folder under
        the name of `source`. If `dest` is no folder, the copy of the file has the path `dest`.
        """
        entries = await asyncio.to_thread(lambda: list(files.below(source)))
        for start in range(0, len(entries), PIPELINE):  # limits how many pieces are in memory
            batch = entries[start : start + PIPELINE]
            transfers = [self._send(entry, dest, source.name, user) for entry in batch]
            for outcome in await asyncio.gather(*transfers, return_exceptions=True):
                if outcome is not None:
                    raise outcome

    async def _send(self, entry: files.Entry, dest: str, name: str, user: str | None) -> None:
        path = posixpath.join(dest, entry.path) if entry.path else dest
        with _about(path):
            if entry.folder:
                await self._guest.request({"op": "mkdir", "path": path, **self._as(user)})
                return
            header: dict[str, Any] = {"path": path, "mode": entry.mode, **self._as(user)}
            header |= {} if entry.path else {"into": name}
            await self._guest.upload(header, _read(entry.source))

    async def gather(
        self,
        paths: Iterable[str],
        *,
        tree: bool = True,
        max_bytes: int = 64_000_000,
        max_entries: int = MOST_CHANGES,
        user: str | None = None,
    ) -> Sequence[BoxFile]:
        wanted, room = list(paths), max_bytes
        entries: list[dict[str, Any]] = []
        pieces: list[list[bytes]] = []
        request = {"op": "gather", "tree": tree, "all_bytes": max_bytes, **self._as(user)}
        for start in range(0, len(wanted), GATHERED):
            batch = wanted[start : start + GATHERED]
            limits = {"max_bytes": room, "max_entries": max_entries - len(entries)}
            with _about(batch[0] if len(batch) == 1 else f"{batch[0]} and others"):
                async for header, body in self._guest.stream(request | limits | {"paths": batch}):
                    if "path" in header:
                        entries.append({name: header[name] for name in _GATHERED if name in header})
                        pieces.append([])
                    pieces[-1].append(body)
                    room -= len(body)
        joined = zip(entries, pieces, strict=True)
        return [BoxFile(**fields, data=b"".join(data)) for fields, data in joined]

    async def end_processes(self) -> None:
        try:
            await self._guest.request({"op": "end"})
        except BoxFileError as error:
            raise BoxDiedError(f"box {self.id}: {error}") from error

    async def get(
        self, path: str, dest: Path, *, max_bytes: int = 64_000_000, user: str | None = None
    ) -> None:
        """Copies files from the box to a host folder; see `Box.get`. Writes nothing on the host if the guest
        refuses the request, for example because the files are too large."""
        entries = await self._fetch(path, tree=True, max_bytes=max_bytes, user=user)
        await asyncio.to_thread(files.lay, entries, dest, posixpath.basename(path.rstrip("/")))

    async def _fetch(
        self, path: str, *, tree: bool, max_bytes: int, user: str | None = None
    ) -> Entries:
        entries: Entries = []
        pieces: list[bytes] = []
        request = {
            "op": "get",
            "path": path,
            "tree": tree,
            "max_bytes": max_bytes,
            **self._as(user),
        }
        with _about(path):
            async for header, body in self._guest.stream(request):
                if "entry" in header:
                    _join(entries, pieces)
                    mode = header.get("mode", 0o755)
                    entries.append(files.Entry(header["entry"], "folder" in header, mode))
                pieces.append(body)
        _join(entries, pieces)
        return entries

    async def forward(self, port: int, target: Handler | tuple[str, int]) -> int:
        if self._relay is None:
            self._relay = Relay(self._guest, self.id)
        return await self._relay.listen(port, target if callable(target) else to(*target))

    async def close(self) -> None:
        """Kills all processes in the box and removes the box, even if the caller is cancelled meanwhile."""
        self._end((self._connection and self._connection.reason) or "closed")
        assert self._closing is not None
        await wait_shielded(self._closing)

    def _end(self, reason: str) -> None:
        """Starts to remove the box in the background, unless that has been started before. `reason` is
        written to the box's command log."""
        if self._closing is not None:
            return
        self.command_log.end(reason)
        self._closing = asyncio.create_task(self._close())

    @contextmanager
    def _ends_after_snapshot(self) -> Iterator[None]:
        """Context manager for a block that takes the box's final snapshot: starts the removal of the box
        after the block, even if the block fails."""
        try:
            yield
        except BaseException as error:  # cancellation too: a frozen box cannot be used
            self._end(f"its snapshot failed: {error or type(error).__name__}")
            if isinstance(error, BoxFileError):
                raise BoxDiedError(f"box {self.id}: {error}") from error
            raise
        self._end("its workspace is frozen in a snapshot")

    @abstractmethod
    async def _close(self) -> None:
        """Removes everything that belongs to the box. It is called only once per box. Each provider
        implements it."""


def folders(spec: BoxSpec) -> tuple[str, ...]:
    """Returns the writable folders of a box: the workspace first, then the folders of `BoxSpec.scratch`.

    Raises ConfigError if the path of a scratch folder is not absolute, or lies in the workspace or in a
    system folder.
    """
    for folder in spec.scratch:
        top = folder.split("/")[1] if folder.startswith("/") and len(folder) > 1 else ""
        if posixpath.normpath(folder) != folder or top in _SYSTEM_FOLDERS:
            raise ConfigError(
                f"`scratch`: {folder!r} cannot be a folder of a box",
                remedy="name an absolute path outside /workspace and the system's folders",
            )
    return (home(spec), *spec.scratch)


def home(spec: BoxSpec) -> str:
    """Returns the path of a box's workspace (the folder of its commands) as callers write it. Commands may
    see another path, into which `Box.path` translates it."""
    return (spec.open.workspace or open_box.WORKSPACE) if spec.open else WORKSPACE


def base_env(spec: BoxSpec) -> dict[str, str]:
    """Returns the environment variables that all commands of a box get: the locale, the number of threads for
    numeric libraries, and `BoxSpec.env`. PATH, HOME and TMPDIR are set elsewhere."""
    threads = str(max(1, math.floor(spec.limits.cpus)))
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {"LANG": "C.UTF-8"} | dict.fromkeys(names, threads) | spec.env


@contextmanager
def _about(path: str) -> Iterator[None]:
    try:
        yield
    except BoxFileError as error:
        raise BoxFileError(f"{path!r}: {error}") from None


async def _sliced(data: bytes) -> AsyncIterator[tuple[bytes, bool]]:
    """Yields the bytes `data` in the form that `Connection.upload` takes: pairs of a piece, and whether the
    piece is the last."""
    for start in range(0, max(1, len(data)), PIECE):
        yield data[start : start + PIECE], start + PIECE >= len(data)


async def _read(path: Path) -> AsyncIterator[tuple[bytes, bool]]:
    """Yields the contents of a host file in the form that `Connection.upload` takes: pairs of a piece, and
    whether the piece is the last."""
    with await asyncio.to_thread(files.opened, path) as file:
        last = False
        while not last:
            data = await asyncio.to_thread(file.read, PIECE)
            last = len(data) < PIECE
            yield data, last


def _join(entries: Entries, pieces: list[bytes]) -> None:
    """Called when the contents of the last of the `entries` (files that come from the box) have arrived.
    Joins `pieces`, stores the result as the contents of that entry, and empties the list `pieces`."""
    if entries:
        entries[-1].data = b"".join(pieces)
    pieces.clear()
