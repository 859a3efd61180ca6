"""Reads a task's artefact (the files to grade) from the agent's box (sandbox). Executes none of the files."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from air.errors import ArtefactError, BoxFileError
from air.sandbox.contract.box import Box
from air.tasks.files import walk
from air.tasks.rules import Artefact as Artefact
from air.tasks.spec import TaskSpec

MOST_FILES = 5000
"""The largest number of files in an artefact. The limit exists because copying a file into the grader's box
takes some milliseconds, even if the file is empty, and the grader's time limit does not cover copying."""
_LOOK_SECONDS = 10.0


async def collect(
    task: TaskSpec, box: Box, *, step: int = 0, most_files: int = MOST_FILES
) -> Artefact:
    """Reads the task's artefact (the agent's files to grade) from the workspace of a running box (sandbox)
    and returns it. If the task has several stages (steps, in Harbor's words), `step` is the number, from 0,
    of the stage to which the artefact belongs.

    Raises ArtefactError if the artefact is missing, is larger than the task's limit `artefact_mb`, has more
    than `most_files` files, or contains anything but regular files. Raises BoxDiedError if the box no longer
    exists. If the task has its own `Rules` (see `air.tasks.rules`), they decide instead which files are
    allowed.
    """
    if task.rules is not None:
        artefact = await task.rules.collect(box, step)
        await asyncio.to_thread(getattr, artefact, "digest")
        return artefact
    left = int(task.limits.artefact_mb * 2**20)
    files: dict[str, bytes] = {}
    for name in task.artefacts:
        try:
            if name.endswith("/"):
                contents = await _folder(name.rstrip("/"), box, left)
            else:
                contents = {name: await box.read(name, max_bytes=left)}
        except BoxFileError as error:
            raise ArtefactError(
                f"{name} cannot be graded ({error}); at most {task.limits.artefact_mb:g} MiB"
                " of regular files"
            ) from error
        left -= sum(map(len, contents.values()))
        files |= contents
        if len(files) > most_files:
            raise ArtefactError(f"the artefact has more than {most_files} files")
    artefact = Artefact(files)
    await asyncio.to_thread(getattr, artefact, "digest")
    return artefact


async def _folder(name: str, box: Box, limit: int) -> dict[str, bytes]:
    if not (await box.exec(["test", "-d", name], timeout=_LOOK_SECONDS)).ok:
        raise BoxFileError(f"there is no folder {name}")
    with tempfile.TemporaryDirectory(prefix="air-artefact-") as place:
        dest = Path(place) / "out"
        dest.mkdir()
        await box.get(name, dest, max_bytes=limit)
        files = await asyncio.to_thread(_read_all, name, dest)
    if not files:
        raise BoxFileError(f"the folder {name} is empty")
    return files


def _read_all(name: str, folder: Path) -> dict[str, bytes]:
    return {f"{name}/{file.relative_to(folder)}": file.read_bytes() for file in walk(folder)}
