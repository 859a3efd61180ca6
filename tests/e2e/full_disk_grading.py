"""Grades an artefact in plain process boxes on a machine whose disk is full: a small file system in memory,
which only this program sees, holds the temporary files, and thus the boxes. Only root may mount it.

    python -m tests.e2e.full_disk_grading

grades an artefact of titanic that the disk cannot hold, though it can hold the grader: twice while the disk
stays so full; then while it is freed after the grader's first failure; then on a disk without any room; and
once more when there is room again. It prints a line of JSON for each.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from air import tasks
from air.errors import AirError, ArtefactError
from air.sandbox.pool.box_pool import Pool
from air.tasks.artefact import Artefact
from air.tasks.grading import Grader
from air.tasks.spec import TaskSpec
from tests.until import until

MOUNT = 'mount -t tmpfs -o size=16m tmpfs "$TMPDIR" && exec "$0" "$@"'
ROWS = 100_000
FREE_BYTES = 400_000
"""Room for the grader's files, and not for an artefact of `ROWS` rows."""
_FAILS_AGAIN = "graded once more"
"""Part of the warning that a grader failed and runs a second time."""


def graded_on_a_full_disk(temporary: Path, cache: Path) -> list[dict[str, Any]]:
    """What this program prints. `temporary` becomes the folder of temporary files."""
    program = [sys.executable, "-m", "tests.e2e.full_disk_grading"]
    argv = ["unshare", "--mount", "sh", "-c", MOUNT, *program]
    env = {**os.environ, "TMPDIR": str(temporary), "AIR_CACHE": str(cache)}
    env["AIR_PROCESS_BOX"] = "plain"  # other process boxes have disks of their own
    ran = subprocess.run(argv, env=env, stdout=subprocess.PIPE, check=True, text=True, timeout=600)
    return [json.loads(line) for line in ran.stdout.splitlines()]


class _Filler(logging.Handler):
    """Fills the disk. Listens to warnings of graders, and frees the disk at the first one if `frees`."""

    def __init__(self) -> None:
        super().__init__()
        self.frees = False
        self._file = Path(tempfile.gettempdir(), "filler")

    def fill(self, free: int) -> None:
        """Leaves `free` bytes of the disk."""
        with self._file.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        os.truncate(self._file, self._file.stat().st_size - free)

    def empty(self) -> None:
        """Frees the disk."""
        self._file.unlink(missing_ok=True)

    def emit(self, record: logging.LogRecord) -> None:
        if self.frees and _FAILS_AGAIN in record.getMessage():
            self.empty()


def _artefact(answer: int) -> Artefact:
    """Predictions for all passengers, and for many whom nobody asked for."""
    rows = "".join(f"{number},{answer}\n" for number in range(1, ROWS + 1))
    return Artefact({"submission.csv": f"id,survived\n{rows}".encode()})


async def _print_grade(grader: Grader, task: TaskSpec, artefact: Artefact) -> None:
    found: dict[str, Any] = {"score": None, "reused": False, "error": "", "fault": ""}
    try:
        grade = await grader.grade(task, artefact, split="val")
        found |= {"score": grade.score, "reused": grade.reused}
    except ArtefactError as error:
        found |= {"error": f"ArtefactError: {error}", "fault": error.fault}
    except AirError as error:
        found["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(found), flush=True)


async def main() -> None:
    task, filler = tasks.load("titanic"), _Filler()
    logging.getLogger("air.tasks.grading").addHandler(filler)
    first, second, third = (_artefact(0), _artefact(1), Artefact({"submission.csv": b"none"}))
    async with Pool(1) as pool:
        grader = Grader(pool, "process")
        await grader.check(task)  # so that the task's data are there
        filler.fill(FREE_BYTES)
        for _ in range(2):
            await _print_grade(grader, task, first)
        filler.frees = True
        await _print_grade(grader, task, second)
        await until(
            lambda: pool.stats.live == 0
        )  # its last box is gone, and frees no room any more
        filler.fill(0)
        await _print_grade(grader, task, third)
        filler.empty()
        for artefact in (first, third):
            await _print_grade(grader, task, artefact)


if __name__ == "__main__":
    asyncio.run(main())
