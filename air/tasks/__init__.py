"""Finds research tasks, prepares their files for an agent, and grades the files that the agent made.

`load` and `available` find tasks. `data.prepare` makes a task's files on the host. `stage` copies these files
into the agent's box. `artefact.collect` reads the artefact, which is the files to grade, from the agent's
box. `grading.Grader` grades the artefact in another box.
"""

from __future__ import annotations

import asyncio

from air.errors import InfrastructureError
from air.sandbox.contract.box import Box
from air.tasks import data
from air.tasks.sources.lookup import available, load
from air.tasks.spec import TaskSpec

_PROTECT_SECONDS = 30.0

__all__ = ["TaskSpec", "available", "data", "load", "stage"]


async def stage(task: TaskSpec, box: Box, *, split_seed: int = data.SPLIT_SEED) -> None:
    """Copies a task's starter files and the agent's data into the workspace of a fresh box.

    Files that the task declares as protected become write-protected.

    Args:
        split_seed: the seed with which the task's data is split.

    Raises:
        MissingError: a file or a package from which the data is made is missing.
        InfrastructureError: the data could not be prepared, or the files could not be write-protected in the
            box.
        BoxDiedError: the box no longer exists.
    """
    prepared = await asyncio.to_thread(data.prepare, task, split_seed)
    await box.put(prepared.agent)
    if prepared.protected:
        files = ["-type", "f", "-exec", "chmod", "a-w", "{}", "+"]
        command = ["find", *prepared.protected, *files]
        result = await box.exec(command, timeout=_PROTECT_SECONDS)
        if not result.ok:
            raise InfrastructureError(f"{task.id}: chmod in a fresh box: {result.text.strip()}")
