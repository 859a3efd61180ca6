"""Defines `Sandbox`: one sandbox of a client, with its box, its time of end, and its programs."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from air.errors import BoxDiedError
from air.sandbox.contract.box import Box, BoxSpec, Snapshot
from air.serve.e2b.errors import SandboxGone
from air.serve.e2b.program import Program

State = Literal["running", "paused"]
ENVD_VERSION = "0.6.13"
"""The version of envd (E2B's program in a sandbox) whose calls are served. Clients adapt to this version."""


@dataclass(frozen=True)
class Wishes:
    """The settings that the creator of a sandbox asked for."""

    template: str
    metadata: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    pause_at_end: bool = False
    """Whether the sandbox is paused, not ended, when its time is over."""
    keep_processes: bool = True
    """Whether the pause at the end of the time keeps the processes. Otherwise only the files are kept."""
    resume_on_traffic: bool = False
    public: bool = True
    """Whether the ports of the sandbox need no token."""
    host_header: str = ""
    """The header `Host` that programs on the sandbox's ports get; `${PORT}` in it stands for the port. Empty:
    the header that the client sent."""
    internet: bool | None = None


class Sandbox:
    """One sandbox. Its box is replaced when a pause kept only the files."""

    def __init__(self, wishes: Wishes, spec: BoxSpec) -> None:
        self.id = "i" + secrets.token_hex(10)
        self.token = secrets.token_hex(24)
        self.traffic_token = "" if wishes.public else secrets.token_hex(24)
        self.wishes, self.spec = wishes, spec
        self.state: State = "running"
        self.started_at = time.time()
        self.ends_at = self.started_at
        self.lock = asyncio.Lock()
        """The lock that a task holds while it changes the sandbox's state."""
        self.copying = asyncio.Lock()
        """The lock that is held while the box is frozen for a snapshot, so that no command starts in the
        box."""
        self.box: Box | None = None
        self.frozen_files: Snapshot | None = None
        """The files of a paused sandbox whose processes were not kept."""
        self.dead = False
        self.tags: dict[int, str] = {}
        """The tags of processes, by process id."""
        self.tasks: set[asyncio.Task[Any]] = set()
        """Tasks that end with the sandbox."""
        self.extras: dict[str, Any] = {}
        """Objects that modules of this package keep with the sandbox, by name."""
        self.programs: dict[str, Program] = {}
        self.samples: list[dict[str, Any]] = []
        self._timer: asyncio.Task[None] | None = None

    @property
    def running_box(self) -> Box:
        """The box of a running sandbox. Raises SandboxGone if it is paused or has ended."""
        if self.box is None or self.dead or self.state != "running":
            raise SandboxGone(self.id)
        return self.box

    async def awake_box(self) -> Box:
        """Returns `running_box` as soon as commands can start in it; waits for the end of a running
        snapshot."""
        async with self.copying:
            return self.running_box

    @property
    def seconds_left(self) -> float:
        """Seconds until the sandbox's time is over."""
        return self.ends_at - time.time()

    def program(self, name: str) -> Program:
        """Returns the sandbox's program called `name`, which runs as root."""
        if name not in self.programs:
            self.programs[name] = Program(self.awake_box, name)
        return self.programs[name]

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Box]:
        """Async context manager: yields the box; raises SandboxGone if the box ends meanwhile."""
        try:
            yield self.running_box
        except BoxDiedError as error:
            raise SandboxGone(self.id) from error

    def set_end(self, seconds: float, at_end: Callable[[], Awaitable[None]]) -> None:
        """Sets when the sandbox's time is over; then `at_end` is called once, in a task of its own."""
        self.ends_at = time.time() + seconds
        self.stop_timer()

        async def wait() -> None:
            await asyncio.sleep(seconds)
            self._timer = None  # from here on, nobody may cancel it
            await at_end()

        self._timer = asyncio.create_task(wait())

    def stop_timer(self) -> None:
        """Makes the sandbox live on until `set_end` is called again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def forget_programs(self) -> None:
        """Drops all programs and tasks of the present box, before the box ends."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(list(self.tasks))
        programs, self.programs = list(self.programs.values()), {}
        self.extras.clear()
        self.tags.clear()
        for program in programs:
            await program.close()

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Runs a coroutine in a task that ends with the sandbox's box."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def created(self, domain: str) -> dict[str, Any]:
        """Returns the JSON object that the creator of the sandbox gets."""
        body: dict[str, Any] = {
            "templateID": self.wishes.template,
            "sandboxID": self.id,
            "clientID": "air",
            "envdVersion": ENVD_VERSION,
            "envdAccessToken": self.token,
            "domain": domain,
        }
        return body | ({"trafficAccessToken": self.traffic_token} if self.traffic_token else {})

    def listed(self) -> dict[str, Any]:
        """Returns the sandbox's JSON object for lists."""
        limits = self.spec.limits
        return {
            "templateID": self.wishes.template,
            "alias": self.wishes.template,
            "sandboxID": self.id,
            "clientID": "air",
            "startedAt": stamp(self.started_at),
            "endAt": stamp(self.ends_at),
            "cpuCount": max(1, round(limits.cpus)),
            "memoryMB": limits.memory_mb,
            "diskSizeMB": limits.disk_mb,
            "metadata": self.wishes.metadata,
            "state": self.state,
            "envdVersion": ENVD_VERSION,
        }

    def details(self, domain: str) -> dict[str, Any]:
        """Returns the JSON object with all public details of the sandbox."""
        wishes = self.wishes
        lifecycle = {
            "onTimeout": "pause" if wishes.pause_at_end else "kill",
            "autoResume": wishes.resume_on_traffic,
        }
        body = self.listed() | {"envdAccessToken": self.token, "domain": domain}
        body |= {"lifecycle": lifecycle, "network": {"allowPublicTraffic": wishes.public}}
        return body | {"allowInternetAccess": wishes.internet}


def stamp(seconds: float) -> str:
    """Returns a time (seconds since the epoch) as text in E2B's format."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
