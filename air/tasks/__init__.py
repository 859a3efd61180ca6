"""Finds research tasks, prepares their files for an agent, and grades the agent's artefact (the files that
the agent made).

`load` and `available` find tasks. `data.prepare` makes a task's files on this machine, and `stage` copies
them into the agent's box (a sandbox). `artefact.collect` reads the artefact from this box; `grading.Grader`
grades it in another box.
"""

from __future__ import annotations

import asyncio

from air.errors import InfrastructureError
from air.sandbox.contract.box import Box
from air.tasks import data
from air.tasks.sources.lookup import PREFIXES, available, expanded, load, unknown
from air.tasks.spec import TaskSpec

_PROTECT_SECONDS = 30.0

__all__ = [
    "PREFIXES",
    "TaskSpec",
    "available",
    "data",
    "expanded",
    "load",
    "stage",
    "unknown",
]


async def stage(task: TaskSpec, box: Box) -> None:
    """Copies a task's starter files and the part of its data that the agent may see into the agent's new box
    (sandbox), and write-protects the files that the agent must not change.

    Raises MissingError if a file or package from which the data is made is missing, InfrastructureError if
    the data cannot be prepared or protected, and BoxDiedError if the box no longer exists.
    """
    if task.rules is not None:
        await task.rules.stage(box, 0)
        return
    prepared = await asyncio.to_thread(data.prepare, task)
    await box.put(prepared.agent)
    if prepared.protected:
        files = ["-type", "f", "-exec", "chmod", "a-w", "{}", "+"]
        command = ["find", *prepared.protected, *files]
        result = await box.exec(command, timeout=_PROTECT_SECONDS)
        if not result.ok:
            raise InfrastructureError(f"{task.id}: chmod in a fresh box: {result.text.strip()}")
