"""Plays episodes on a machine whose disk becomes full: a small file system in memory, which only this program
sees, holds the temporary files, and thus the boxes. Only root may mount it.

    python -m tests.e2e.full_disk_episodes FOLDER

plays three episodes of titanic, and records them in the folder: one during which the disk becomes full; one
that starts on a full disk; one after the disk is free again. It prints a line of JSON for each.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from air.env.failure_breaker import FILE_ENV, fresh
from air.testing import Message, Script, replies
from tests.e2e.conftest import attempt, played_by, research
from tests.fork_server import of_this_run

NEW_MOUNTS = 0x0002_0000
DISK = ["mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=2000", "tmpfs"]
SUBMITS = [attempt(method, 2, "submit") for method in (1, 2, 3)]
"""Of each episode: another artefact, since equal ones are graded once."""


def played_on_a_full_disk(temporary: Path, records: Path) -> list[dict[str, Any]]:
    """What this program prints. `temporary` becomes the folder of temporary files."""
    argv = ["python", "-m", "tests.e2e.full_disk_episodes", str(records)]
    env = {**os.environ, **fresh(records / "breaker.json"), "TMPDIR": str(temporary)}
    env["AIR_CACHE"] = str(records / "cache")  # no grade is known
    env["AIR_PROCESS_BOX"] = (
        "root"  # so that what the agent itself writes does not lie on this disk
    )
    ran = of_this_run().run(argv, cwd=records.parent, env=env, seconds=600)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def _mount_a_small_disk() -> None:
    """Mounts the disk for temporary files, which only this process and its children see."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(NEW_MOUNTS) == 0, os.strerror(ctypes.get_errno())
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run([*DISK, tempfile.gettempdir()], check=True)


def _filler() -> Path:
    return Path(tempfile.gettempdir(), "filler")


def _fill() -> None:
    """Uses up the blocks and then the inodes of the disk."""
    _filler().mkdir()
    with suppress(OSError), (_filler() / "blocks").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with suppress(OSError):
        for number in range(1 << 20):
            (_filler() / str(number)).touch()


def _fills_the_disk(messages: Sequence[Message]) -> Any:
    """A model during whose first turn the disk becomes full."""
    if not _filler().exists():
        _fill()
    return SUBMITS[0]


async def _play(script: Script, records: Path) -> None:
    """Plays an episode, in pools of its own: no box is ready before it."""
    config = research(
        ["titanic"],
        "subprocess",
        record_dir=records,
        max_boxes=1,
        warm_boxes=0,
        grader_boxes=1,
        max_failures=3,
    )
    async with played_by(script, config) as play:
        episode = await play()
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    found = {
        "ok": episode.ok,
        "rewards": [trace.reward for trace in episode.traces if trace.rewards],
        "errors": [f"{error.type}: {error.message}" for error in errors],
    }
    counts = json.loads(Path(os.environ[FILE_ENV]).read_text())  # noqa: ASYNC240
    print(json.dumps({**found, "failures": counts["failures"]}), flush=True)


async def main(records: Path) -> None:
    await _play(_fills_the_disk, records)
    shutil.rmtree(_filler())
    _fill()
    await _play(replies(SUBMITS[1]), records)
    shutil.rmtree(_filler())
    await _play(replies(SUBMITS[2]), records)


if __name__ == "__main__":
    _mount_a_small_disk()
    asyncio.run(main(Path(sys.argv[1])))
