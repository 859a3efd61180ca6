"""What `bench/sandbox.py` compares: ways to start a container, to use it, and to take it away."""

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
"""The peers' containers have no limits: ours may use every core, too."""
SPEC = BoxSpec(image=IMAGE, limits=LIMITS)


class Live(ABC):
    """Something started, in which commands run."""

    container = ""
    """The engine's name or id of it; empty where there is no container."""

    @abstractmethod
    async def true(self) -> None:
        """Runs `true`."""

    @abstractmethod
    async def end(self) -> None:
        """Takes it away; `gone` may become true later."""

    async def gone(self) -> bool:
        """Whether nothing of it is left."""
        return not self.container or not await asyncio.to_thread(exists, self.container)


class WithFiles(Live):
    """One that takes and gives files, too."""

    @abstractmethod
    async def put(self, source: Path) -> None:
        """Copies a file in."""

    @abstractmethod
    async def get(self, dest: Path) -> None:
        """Copies that file out, into a folder."""


@dataclass
class Cli(WithFiles):
    """A container by the `docker` command."""

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
    """A container by verifiers' Docker runtime."""

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
    """A box."""

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
    """A process that runs, what it printed, and how many of its pipes are open."""

    pid: int
    status: asyncio.Future[int]
    printed: bytearray = field(default_factory=bytearray)
    open: int = 2


class Bare(Live):
    """No sandbox: processes of this machine, with what no harness can do without. Each has a pipe for its
    output and one for its errors, which are read to their end, and its exit is waited for."""

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
        """Starts one process a turn of the loop: what has ended meanwhile is noticed in between."""
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
        """Takes its status, at once or, where it is still about to end, when it has."""
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
    """One way to do it all."""

    name: str
    start: Callable[[], Any]
    """Starts one and returns it, `Live`, when a command could run in it."""


async def run_detached(*options: str) -> Cli:
    """As most people start a container that is to wait for commands."""
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
"""What this machine can do at most; only for commands."""
OURS = (Side(AIR, _docker_box), Side(PROCESS, _process_box))


def sides() -> tuple[Side, ...]:
    """The sides that this machine has."""
    logging.getLogger("verifiers").setLevel(logging.WARNING)
    return (*PEERS, *OURS) if shutil.which("docker") else OURS


async def cli(*words: str) -> str:
    """Runs the `docker` command and returns what it printed.

    Raises:
        RuntimeError: it failed.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("docker", *words, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"docker {words[0]}: {err.decode(errors='replace').strip()}")
    return out.decode()


def exists(container: str) -> bool:
    """Whether the engine knows a container, in whatever state."""
    try:
        engine.client().inspect_container(container)
    except NotFound:
        return False
    return True


def children() -> set[int]:
    """Every process below this one."""
    parents = {pid: _parent(pid) for pid in _pids()}
    below, size = {os.getpid()}, 0
    while size != len(below):
        size = len(below)
        below |= {pid for pid, parent in parents.items() if parent in below}
    return below - {os.getpid()}


def memory_mb(live: Live, new: set[int]) -> float:
    """What one live thing holds, in MB: its cgroup's charge and the engine's shim for it, or else the
    `new` processes below this one (proportional set size)."""
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
    """Memory that is free on this machine."""
    rows = Path("/proc/meminfo").read_text().splitlines()
    return next(int(row.split()[1]) * 1024 for row in rows if row.startswith("MemAvailable:"))
