"""Defines `Sandbox`: one E2B sandbox, with its box (a container), its timeout, and air's helper programs in
the box."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from air.errors import BoxDiedError
from air.sandbox.contract.box import Box, BoxSpec, Snapshot
from air.serve.e2b.errors import SandboxGone
from air.serve.e2b.helper_program import Program

State = Literal["running", "paused"]
ENVD_VERSION = "0.6.13"
"""The version of envd (E2B's program in a sandbox) that this server imitates. Clients adapt their requests to
it."""


@dataclass(frozen=True)
class SandboxSettings:
    """The settings that a client chose when it created a sandbox."""

    template: str
    metadata: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    pause_at_end: bool = False
    """Whether the sandbox is paused at its timeout. If false, it is ended."""
    keep_processes: bool = True
    """Whether a pause at the timeout keeps the processes. If false, only the files are kept."""
    resume_on_traffic: bool = False
    public: bool = True
    """Whether anybody may send requests to the sandbox's ports. If false, the requests need a token."""
    host_header: str = ""
    """The value of the header `Host` in requests that are forwarded to programs on the sandbox's ports;
    `${PORT}` stands for the port number. Empty: the `Host` that the client sent."""
    internet: bool | None = None


class Sandbox:
    """One E2B sandbox of a client: its box (a container), its timeout, and air's helper programs in the box.
    A sandbox that is paused without its processes has no box; when it is resumed, it gets a new one."""

    def __init__(self, settings: SandboxSettings, spec: BoxSpec) -> None:
        self.id = "i" + secrets.token_hex(10)
        self.token = secrets.token_hex(24)
        self.traffic_token = "" if settings.public else secrets.token_hex(24)
        self.settings, self.spec = settings, spec
        self.state: State = "running"
        self.started_at = time.time()
        self.ends_at = self.started_at
        self.lock = asyncio.Lock()
        """Held while the sandbox's state changes, for instance while it is being paused."""
        self.copying = asyncio.Lock()
        """Held while the box is frozen so that its files can be copied to a snapshot. `awake_box` waits for
        this lock, so that no command starts in the box meanwhile."""
        self.box: Box | None = None
        self.frozen_files: Snapshot | None = None
        """The stored files of the workspace, while the sandbox is paused without its processes; otherwise
        None."""
        self.paused_with_processes = False
        """Whether the latest pause kept the processes."""
        self.dead = False
        self.tags: dict[int, str] = {}
        """Maps process ids to the tags that clients gave to these processes."""
        self.tasks: set[asyncio.Task[Any]] = set()
        """Asyncio tasks that are cancelled when the sandbox loses its box."""
        self.box_state: dict[str, Any] = {}
        """Objects of other modules that belong to the sandbox's present box, by name, such as the watchers of
        its folders. They are dropped when the sandbox loses the box."""
        self.programs: dict[str, Program] = {}
        self.samples: list[dict[str, Any]] = []
        self._timer: asyncio.Task[None] | None = None

    @property
    def running_box(self) -> Box:
        """The sandbox's box (container). Raises SandboxGone if the sandbox is paused or has ended."""
        if self.box is None or self.dead or self.state != "running":
            raise SandboxGone(self.id)
        return self.box

    async def awake_box(self) -> Box:
        """Returns the sandbox's box (container) as soon as commands can start in it: waits while the box is
        being copied to a snapshot. Raises SandboxGone if the sandbox is paused or has ended."""
        async with self.copying:
            return self.running_box

    @property
    def seconds_left(self) -> float:
        """Seconds until the sandbox's timeout."""
        return self.ends_at - time.time()

    def program(self, name: str) -> Program:
        """Returns air's helper program called `name` (`files`, `ports` or `kernel`), which runs as root in
        the sandbox's box (container). The program starts with its first request."""
        if name not in self.programs:
            self.programs[name] = Program(self.awake_box, name)
        return self.programs[name]

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Box]:
        """Async context manager: yields the sandbox's box (container). Raises SandboxGone if the sandbox is
        not running, or if its box ends during the block."""
        try:
            yield self.running_box
        except BoxDiedError as error:
            raise SandboxGone(self.id) from error

    def set_end(self, seconds: float, at_end: Callable[[], object]) -> None:
        """Sets the timeout to `seconds` from now, instead of the earlier timeout. At that time, `at_end` is
        called once."""
        self.ends_at = time.time() + seconds
        self.stop_timer()

        async def wait() -> None:
            await asyncio.sleep(seconds)
            self._timer = None
            at_end()

        self._timer = asyncio.create_task(wait())

    def stop_timer(self) -> None:
        """Cancels the timeout. `set_end` can set a new one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def stop_programs(self) -> None:
        """Cancels the sandbox's asyncio tasks, and kills air's helper programs in its box (container). Call
        this method before the box is closed."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(list(self.tasks))
        programs, self.programs = list(self.programs.values()), {}
        self.box_state.clear()
        self.tags.clear()
        for program in programs:
            await program.close()

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Runs the coroutine `work` in a new asyncio task, and returns the task. It is cancelled when the
        sandbox loses its box (container)."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def created(self, domain: str) -> dict[str, Any]:
        """Returns the JSON object that a client gets when it creates the sandbox or connects to it. `domain`
        is the domain of the sandbox's addresses."""
        body: dict[str, Any] = {
            "templateID": self.settings.template,
            "sandboxID": self.id,
            "clientID": "air",
            "envdVersion": ENVD_VERSION,
            "envdAccessToken": self.token,
            "domain": domain,
        }
        return body | ({"trafficAccessToken": self.traffic_token} if self.traffic_token else {})

    def listed(self) -> dict[str, Any]:
        """Returns the JSON object that describes the sandbox in E2B's lists of sandboxes."""
        limits = self.spec.limits
        return {
            "templateID": self.settings.template,
            "alias": self.settings.template,
            "sandboxID": self.id,
            "clientID": "air",
            "startedAt": stamp(self.started_at),
            "endAt": stamp(self.ends_at),
            "cpuCount": max(1, round(limits.cpus)),
            "memoryMB": limits.memory_mb,
            "diskSizeMB": limits.disk_mb,
            "metadata": self.settings.metadata,
            "state": self.state,
            "envdVersion": ENVD_VERSION,
        }

    def details(self, domain: str) -> dict[str, Any]:
        """Returns the JSON object that describes the sandbox in full, including its access token. `domain` is
        the domain of the sandbox's addresses."""
        settings = self.settings
        lifecycle = {
            "onTimeout": "pause" if settings.pause_at_end else "kill",
            "autoResume": settings.resume_on_traffic,
        }
        body = self.listed() | {"envdAccessToken": self.token, "domain": domain}
        body |= {"lifecycle": lifecycle, "network": {"allowPublicTraffic": settings.public}}
        return body | {"allowInternetAccess": settings.internet}


def stamp(seconds: float) -> str:
    """Formats a time in epoch seconds as E2B does, in ISO 8601 and UTC: `2026-01-31T12:00:00Z`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
