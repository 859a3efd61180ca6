"""Processes that tests start: a test ends its own, whether it passes or fails."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

LASTING = (
    "tests.fork_server",
    "tests/docker/private_engine/supervisor.py",
    "multiprocessing",
    "air/tools/sql/worker.py",
    "air/rewards/answers/worker.py",
)
"""Parts of the command lines of children that outlive tests: the fork server, the private engine, the helpers
of Python's multiprocessing, and the processes of SQL questions and of mathematical answers, which are kept
for the next ones."""


@asynccontextmanager
async def running(*argv: str, **options: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that is killed where the block ends, unless it has ended."""
    process = await asyncio.create_subprocess_exec(*argv, **options)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.fixture
def grace_seconds() -> float:
    """How long a child that still runs after its test may take to end by itself."""
    return 10.0


@pytest.fixture(autouse=True)
def nothing_left_running(grace_seconds: float) -> Iterator[None]:
    """Kills and reports the children of this worker that a test started and left running."""
    before = _children()
    yield
    give_up = time.monotonic() + grace_seconds
    while (remaining := _left_over(before)) and time.monotonic() < give_up:
        time.sleep(0.01)
    for pid in remaining:
        _end(pid)
    if remaining:
        pytest.fail("the test left running: " + "; ".join(remaining.values()), pytrace=False)


def _children() -> set[int]:
    """The direct children of this process."""
    pids: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # the thread has ended
            pids |= {int(pid) for pid in (thread / "children").read_text().split()}
    return pids


def _left_over(before: set[int]) -> dict[int, str]:
    """The command lines, by pid, of the children that run and did not exist `before`."""
    commands = {}
    own = _command("self")
    for pid in _children() - before:
        with suppress(FileNotFoundError, ProcessLookupError):  # another thread has waited for it
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX":
                commands[pid] = _command(pid)
    return {
        pid: command
        for pid, command in commands.items()
        # A worker that was forked from the fork server, and its own forks, have the server's command line.
        if command == own or not any(part in command for part in LASTING)
    }


def _command(pid: int | str) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return " ".join(words).strip()


def _end(pid: int) -> None:
    """Kills a child, and its process group if it leads one, and waits for the child."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL) if os.getpgid(pid) == pid else os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):  # another thread waited for it
        os.waitpid(pid, 0)
