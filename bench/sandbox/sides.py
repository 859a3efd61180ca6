"""Defines the sides that `bench/sandbox` compares: ways to start a container or box, use it, and remove
it."""

from __future__ import annotations

import asyncio
import collections
import logging
import os
import re
import secrets
import select
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docker.errors import NotFound

from air.sandbox import open_box
from air.sandbox.contract.box import Box, BoxLimits, BoxSpec
from air.sandbox.docker import engine

IMAGE = "air-base"
LIMITS = BoxLimits(cpus=os.cpu_count() or 1)
"""The limits of air's boxes. The other sides' containers have no limits, so a box gets all CPU cores."""
SPEC = BoxSpec(image=IMAGE, limits=LIMITS)


class Live(ABC):
    """A started container, box or process runner of a side, in which commands run."""

    container = ""
    """The container's name or id in the container engine; empty if there is no container."""

    @abstractmethod
    async def true(self) -> None:
        """Runs the command `true`."""

    @abstractmethod
    async def end(self) -> None:
        """Removes the container or box. It may still exist for a while after the call; see `gone`."""

    async def gone(self) -> bool:
        """Whether the container no longer exists."""
        return not self.container or not await asyncio.to_thread(exists, self.container)


class WithFiles(Live):
    """A container or box into which, and out of which, a file can be copied."""

    @abstractmethod
    async def put(self, source: Path) -> None:
        """Copies the file `source` of this machine into the container or box."""

    @abstractmethod
    async def get(self, dest: Path) -> None:
        """Copies the file that `put` copied back to this machine, into the folder `dest`."""


@dataclass
class Cli(WithFiles):
    """A container that is used through the `docker` command."""

    container: str

    async def true(self) -> None:
        await cli("exec", self.container, "true")

    async def put(self, source: Path) -> None:
        await cli("cp", str(source), f"{self.container}:/tmp/copied")

    async def get(self, dest: Path) -> None:
        await cli("cp", f"{self.container}:/tmp/copied", str(dest))

    async def end(self) -> None:
        await cli("rm", "--force", self.container)


@dataclass
class Verifiers(WithFiles):
    """A container that is used through the Docker runtime of the library verifiers."""

    runtime: Any
    container: str = field(init=False)

    def __post_init__(self) -> None:
        self.container = self.runtime.info.id

    async def true(self) -> None:
        result = await self.runtime.run(["true"], {})
        assert result.exit_code == 0, result

    async def put(self, source: Path) -> None:
        await self.runtime.write("/tmp/copied", await asyncio.to_thread(source.read_bytes))

    async def get(self, dest: Path) -> None:
        data = await self.runtime.read("/tmp/copied")
        await asyncio.to_thread((dest / "copied").write_bytes, data)

    async def end(self) -> None:
        await self.runtime.stop()


@dataclass
class Ours(WithFiles):
    """A box of air."""

    box: Box
    container: str = field(init=False)

    def __post_init__(self) -> None:
        self.container = self.box.id if self.box.isolation == "container" else ""

    async def true(self) -> None:
        result = await self.box.exec(["true"], timeout=60)
        assert result.ok, result

    async def put(self, source: Path) -> None:
        await self.box.put(source, "copied")

    async def get(self, dest: Path) -> None:
        await self.box.get("copied", dest)

    async def end(self) -> None:
        await self.box.close()


@dataclass(eq=False)
class _Spawned:
    """A process that `Bare` has started: its id, its exit status (once known), its output so far, and the
    number of its pipes that are open."""

    pid: int
    status: asyncio.Future[int]
    printed: bytearray = field(default_factory=bytearray)
    open: int = 2


class Bare(Live):
    """Runs commands without a sandbox, as processes of this machine, with only the work that every harness
    must do: each process has a pipe for its output and one for its errors, both are read to their end, and
    the process is waited for."""

    def __init__(self) -> None:
        self._true = os.fspath(shutil.which("true") or "/bin/true")
        self._loop = asyncio.get_running_loop()
        # All that is awaited is in one epoll, of which asyncio watches no more than the one descriptor.
        self._epoll = select.epoll()
        self._of: dict[int, _Spawned] = {}
        self._asked: collections.deque[asyncio.Future[int]] = collections.deque()
        self._loop.add_reader(self._epoll.fileno(), self._serve)

    async def true(self) -> None:
        status = self._loop.create_future()
        self._asked.append(status)
        if len(self._asked) == 1:
            self._loop.call_soon(self._next)
        assert await status == 0

    def _next(self) -> None:
        """Starts the next process, one in each turn of the event loop, so that ended processes are handled in
        between."""
        status = self._asked[0]
        try:
            self._spawn(status)
        except OSError as error:
            status.set_exception(error)
        self._asked.popleft()
        if self._asked:
            self._loop.call_soon(self._next)

    def _spawn(self, status: asyncio.Future[int]) -> None:
        (out, out_end), (err, err_end) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        actions = ((os.POSIX_SPAWN_DUP2, out_end, 1), (os.POSIX_SPAWN_DUP2, err_end, 2))
        pid = os.posix_spawn(self._true, ("true",), {}, file_actions=actions)
        spawned = _Spawned(pid, status)
        for end, fd in ((out_end, out), (err_end, err)):
            os.close(end)
            self._watch(fd, spawned)

    def _watch(self, fd: int, spawned: _Spawned) -> None:
        self._of[fd] = spawned
        self._epoll.register(fd, select.EPOLLIN)

    def _serve(self) -> None:
        for fd, _ in self._epoll.poll(0):
            spawned = self._of[fd]
            if spawned.open:
                if data := os.read(fd, 1 << 16):
                    spawned.printed += data
                    continue
                spawned.open -= 1
            del self._of[fd]
            self._epoll.unregister(fd)  # a process that is just starting may still hold it open
            os.close(fd)
            if not spawned.open:
                self._reap(spawned)

    def _reap(self, spawned: _Spawned) -> None:
        """Stores the exit status of a process whose pipes are closed: at once if the process has ended,
        otherwise when it ends."""
        pid, status = os.waitpid(spawned.pid, os.WNOHANG)
        if pid:
            spawned.status.set_result(os.waitstatus_to_exitcode(status))
        else:
            self._watch(os.pidfd_open(spawned.pid), spawned)

    async def end(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()


@dataclass(frozen=True)
class Side:
    """One of the compared ways to start and use a container, box or process."""

    name: str
    start: Callable[[], Any]
    """Starts a container, box or process runner; returns it, a `Live`, when it is ready to run commands."""


async def run_detached(*options: str) -> Cli:
    """Starts a container in the way that is most common for a container that waits for commands: `docker run
    --detach` with `sleep infinity`."""
    name = f"air-bench-{secrets.token_hex(6)}"
    await cli("run", "--detach", "--name", name, *options, IMAGE, "sleep", "infinity")
    return Cli(name)


async def _verifiers() -> Verifiers:
    from verifiers.v1.runtimes import DockerConfig, DockerRuntime

    runtime = DockerRuntime(DockerConfig(image=IMAGE, workdir="/workspace"))
    try:
        await runtime.start()
    except BaseException:  # cancellation too: its container would stay
        await runtime.stop()
        raise
    return Verifiers(runtime)


async def _docker_box() -> Ours:
    return Ours(await open_box(SPEC))


async def _process_box() -> Ours:
    return Ours(await open_box(SPEC.model_copy(update={"provider": "process"})))


async def _bare() -> Bare:
    return Bare()


AIR, PROCESS, DOCKER = "air, Docker box", "air, process box", "docker"
PEERS = (Side(DOCKER, run_detached), Side("verifiers", _verifiers))
BARE = Side("no sandbox", _bare)
"""The side without a sandbox: the fastest that this machine can be. It takes part in the measurement of
commands only."""
OURS = (Side(AIR, _docker_box), Side(PROCESS, _process_box))


def sides() -> tuple[Side, ...]:
    """Returns the sides that this machine supports."""
    logging.getLogger("verifiers").setLevel(logging.WARNING)
    return (*PEERS, *OURS) if shutil.which("docker") else OURS


async def cli(*words: str) -> str:
    """Runs the `docker` command with the arguments `words`, and returns its output.

    Raises:
        RuntimeError: the command failed.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("docker", *words, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"docker {words[0]}: {err.decode(errors='replace').strip()}")
    return out.decode()


def exists(container: str) -> bool:
    """Whether the container engine knows a container, running or not."""
    try:
        engine.client().inspect_container(container)
    except NotFound:
        return False
    return True


def children() -> set[int]:
    """Returns the ids of all descendants of this process."""
    parents = {pid: _parent(pid) for pid in _pids()}
    below, size = {os.getpid()}, 0
    while size != len(below):
        size = len(below)
        below |= {pid for pid, parent in parents.items() if parent in below}
    return below - {os.getpid()}


def memory_mb(live: Live, new: set[int]) -> float:
    """Returns the memory of a container, box or process runner in MB. For a container, it is the memory of
    its cgroup plus that of the container engine's shim process. Otherwise, it is the proportional set size of
    the processes `new`, which started with it."""
    if not live.container:
        return sum(map(_pss, new))
    found = engine.client().inspect_container(live.container)
    shims = [pid for pid in _pids() if f"-id {found['Id']}" in _command(pid)]
    return _charge(found["State"]["Pid"]) + sum(map(_pss, shims))


def _charge(pid: int) -> float:
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for top, name in (("memory", "memory.usage_in_bytes"), ("", "memory.current")):
            file = Path("/sys/fs/cgroup", top) / path.lstrip("/") / name
            if controllers == top and file.exists():
                return int(file.read_text()) / 1e6
    raise RuntimeError(f"process {pid} is in no memory cgroup")


def _pss(pid: int) -> float:
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text()
    match = re.search(r"^Pss:\s+(\d+) kB", rows, re.MULTILINE)
    assert match is not None
    return int(match[1]) / 1e3


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def free_bytes() -> int:
    """Returns the memory that is available on this machine, in bytes."""
    rows = Path("/proc/meminfo").read_text().splitlines()
    return next(int(row.split()[1]) * 1024 for row in rows if row.startswith("MemAvailable:"))
