"""`GuestBox`: the contract of `Box`, implemented by requests to the guest over a `Connection`.

A provider starts the guest, sets the connection and the folders, and implements the removal (`_close`).
A cancelled `exec` kills its command. A guest that stays silent past a command's timeout counts as dead.
"""

from __future__ import annotations

import asyncio
import math
import posixpath
import resource
import secrets
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from air.aio import to_the_end
from air.errors import BoxDiedError, BoxFileError, ConfigError
from air.sandbox.contract.box import (
    MAX_OUTPUT,
    WORKSPACE,
    Box,
    BoxSpec,
    Command,
    ExecResult,
)
from air.sandbox.guest.files import deepest
from air.sandbox.ops.command_log import Events, recorded
from air.sandbox.wire import folders as files
from air.sandbox.wire.connection import Connection
from air.sandbox.wire.port_relay import Handler, Relay, to

START_SECONDS = 60.0
GRACE_SECONDS = 30.0
PIECE = 1 << 20
PIPELINE = 64
MOST_FILES = 4096
"""The number of files that a process may have open."""
BOUNDS = [(resource.RLIMIT_NOFILE, MOST_FILES), (resource.RLIMIT_CORE, 0)]
"""Resource limits that a container's guest sets for itself, and so for every command. They are not set
through the engine, since Podman before 5.5 drops them."""
SECOND_UID = 65533
"""The uid as which a grader runs an agent's code."""
_TAKEN = (
    "",
    ".air",
    "workspace",
    "tmp",
    "proc",
    "sys",
    "dev",
    "etc",
    "usr",
    "bin",
    "lib",
    "lib64",
    "sbin",
)


class GuestBox(Box):
    """A box whose guest answers on a connection."""

    def __init__(self, spec: BoxSpec) -> None:
        self.spec = spec
        self.id = f"air-{secrets.token_hex(6)}"
        self._folders = {folder: folder for folder in (*folders(spec), "/tmp")}
        self._connection: Connection | None = None
        self._relay: Relay | None = None
        self.born = time.monotonic()
        self.events = Events(self.id)
        self._closing: asyncio.Task[None] | None = None
        self.workspace = WORKSPACE

    @property
    def seen_from_host(self) -> str:
        """The workspace as a path on the host; empty if the host cannot reach it as a folder."""
        return ""

    @property
    def alive(self) -> bool:
        """Whether the guest's stream is open."""
        return self._connection is not None and not self._connection.reason

    @property
    def _guest(self) -> Connection:
        if self._connection is None:
            raise BoxDiedError(f"box {self.id} has no guest")
        return self._connection

    def path(self, absolute: str) -> str:
        """The path at which commands in this box see `absolute`."""
        folder = deepest(self._folders, absolute)
        return absolute if folder is None else self._folders[folder] + absolute[len(folder) :]

    def hand_out(self) -> None:
        """Starts the box's time to live."""
        self._guest.post({"op": "lease", "id": 0, "seconds": self.spec.limits.seconds})

    @recorded
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
        """Runs one command; see `Box.exec`."""
        ident = self._guest.new_id()
        request: dict[str, Any] = {"op": "exec", "id": ident, "max_bytes": max_bytes}
        request |= {"timeout": timeout, "env": dict(env or {})}
        request["cwd"] = self.path(posixpath.join(WORKSPACE, cwd or ""))
        request |= {"script": command} if isinstance(command, str) else {"argv": list(command)}
        try:
            async with asyncio.timeout(timeout + GRACE_SECONDS):
                header, body = await self._guest.request(request, stdin)
        except ValueError as error:
            return ExecResult(126, b"", f"air: {error}\n".encode(), began=False)
        except BoxFileError as error:  # the guest no longer runs commands
            raise BoxDiedError(f"box {self.id}: {error}") from error
        except TimeoutError:
            reason = f"its guest did not answer {GRACE_SECONDS:.0f} s after a command's timeout"
            self._guest.lose(reason)
            raise BoxDiedError(f"box {self.id}: {reason}") from None
        except asyncio.CancelledError:
            self._guest.post({"op": "kill", "id": 0, "target": ident})
            raise
        return ExecResult(
            code=header["code"],
            stdout=body[: header["out"]],
            stderr=body[header["out"] :],
            timed_out=header["timed_out"],
            truncated=header["truncated"],
            seconds=header["seconds"],
            began=header["began"],
        )

    async def read(self, path: str, *, max_bytes: int = 16_000_000) -> bytes:
        """The bytes of a regular file; see `Box.read`."""
        entries = await self._fetch(path, tree=False, max_bytes=max_bytes)
        return entries[0].data

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Writes a file; see `Box.write`."""
        with _about(path):
            await self._guest.upload({"path": path, "mode": mode}, _sliced(data))

    async def put(self, source: Path, dest: str = ".") -> None:
        """Copies a file or a folder's contents in; see `Box.put`. A file goes into `dest` if that
        is a folder, and becomes `dest` otherwise."""
        entries = await asyncio.to_thread(lambda: list(files.below(source)))
        for start in range(0, len(entries), PIPELINE):  # at most so many pieces are in memory
            sent = [self._send(e, dest, source.name) for e in entries[start : start + PIPELINE]]
            for outcome in await asyncio.gather(*sent, return_exceptions=True):
                if outcome is not None:
                    raise outcome

    async def _send(self, entry: files.Entry, dest: str, name: str) -> None:
        path = posixpath.join(dest, entry.path) if entry.path else dest
        with _about(path):
            if entry.folder:
                await self._guest.request({"op": "mkdir", "path": path})
                return
            header: dict[str, Any] = {"path": path, "mode": entry.mode}
            header |= {} if entry.path else {"into": name}
            await self._guest.upload(header, _read(entry.source))

    async def get(self, path: str, dest: Path, *, max_bytes: int = 64_000_000) -> None:
        """Copies a file or a folder's contents out; see `Box.get`. Nothing is written if refused."""
        entries = await self._fetch(path, tree=True, max_bytes=max_bytes)
        await asyncio.to_thread(files.lay, entries, dest, posixpath.basename(path.rstrip("/")))

    async def _fetch(self, path: str, *, tree: bool, max_bytes: int) -> list[files.Entry]:
        entries: list[files.Entry] = []
        pieces: list[bytes] = []
        request = {"op": "get", "path": path, "tree": tree, "max_bytes": max_bytes}
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
        """Answers a loopback port of the box from the host; see `Box.forward`."""
        if self._relay is None:
            self._relay = Relay(self._guest, self.id)
        return await self._relay.listen(port, target if callable(target) else to(*target))

    async def close(self) -> None:
        """Kills everything in the box and removes it, even if the caller is cancelled."""
        self._end((self._connection and self._connection.reason) or "closed")
        assert self._closing is not None
        await to_the_end(self._closing)

    def _end(self, reason: str) -> None:
        """Starts the removal of the box, unless it has started."""
        if self._closing is not None:
            return
        self.events.end(reason)
        self._closing = asyncio.create_task(self._close())

    @contextmanager
    def _ends_after_snapshot(self) -> Iterator[None]:
        """Ends the box after the block, which freezes it and keeps its workspace, works or fails."""
        try:
            yield
        except BaseException as error:  # cancellation too: the box is frozen, and of no use
            self._end(f"its snapshot failed: {error or type(error).__name__}")
            if isinstance(error, BoxFileError):
                raise BoxDiedError(f"box {self.id}: {error}") from error
            raise
        self._end("its workspace is frozen in a snapshot")

    @abstractmethod
    async def _close(self) -> None:
        """Removes everything that belongs to the box; called once."""


def folders(spec: BoxSpec) -> tuple[str, ...]:
    """The writable folders of a box: the workspace first, then the scratch folders.

    Raises:
        ConfigError: a scratch folder is not an absolute path of its own.
    """
    for folder in spec.scratch:
        top = folder.split("/")[1] if folder.startswith("/") and len(folder) > 1 else ""
        if posixpath.normpath(folder) != folder or top in _TAKEN:
            raise ConfigError(
                f"`scratch`: {folder!r} cannot be a folder of a box",
                remedy="name an absolute path outside /workspace and the system's folders",
            )
    return (WORKSPACE, *spec.scratch)


def base_env(spec: BoxSpec) -> dict[str, str]:
    """The environment of every command, without PATH, HOME and TMPDIR, which the provider adds."""
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
    """Yields `data` as the pieces of a `Connection.upload`."""
    for start in range(0, max(1, len(data)), PIECE):
        yield data[start : start + PIECE], start + PIECE >= len(data)


async def _read(path: Path) -> AsyncIterator[tuple[bytes, bool]]:
    """Yields a host file as the pieces of a `Connection.upload`; reads each piece when it is sent."""
    with await asyncio.to_thread(files.opened, path) as file:
        last = False
        while not last:
            data = await asyncio.to_thread(file.read, PIECE)
            last = len(data) < PIECE
            yield data, last


def _join(entries: list[files.Entry], pieces: list[bytes]) -> None:
    """Sets the contents of the last entry to the pieces, and clears them."""
    if entries:
        entries[-1].data = b"".join(pieces)
    pieces.clear()
