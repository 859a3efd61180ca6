"""Prepares the boxes of a Harbor task: puts a step's files into the agent's box, and removes others from
it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from air.errors import BoxFileError, StagingError
from air.sandbox.contract.box import Box
from air.tasks.sources.harbor.commands import ROOT, as_root, run_as
from air.tasks.sources.harbor.folder import HarborFolder
from air.tasks.sources.harbor.schema import Collect, Environment, Step, User
from air.tasks.sources.harbor.verifier import put

_SETUP_SECONDS = 600.0


def notes(environment: Environment) -> str:
    """Returns the text about the skills in the agent's box that follows the instruction."""
    if not environment.skills_dir:
        return ""
    return f"\n\nSkills, each a folder with a SKILL.md that explains it, lie in {environment.skills_dir}."


async def set_up(box: Box, folder: HarborFolder, step: Step, user: User) -> None:
    """Puts a step's files into the working directory, and runs its `setup.sh`. Raises StagingError if
    the script fails."""
    files = folder.setup(step)
    await put(box, files, box.workspace, user)
    if "setup.sh" in files:
        result, output = await run_as(box, ["bash", "setup.sh"], user, timeout=_SETUP_SECONDS)
        if result.code != 0:
            raise StagingError(
                f"steps/{step.name}/workdir/setup.sh: exit {result.code}: {output.strip()[-200:]}"
            )


async def run_collectors(box: Box, commands: Sequence[Collect]) -> None:
    """Runs the task's commands that must run before artefacts are read. As in Harbor, a failed command is
    ignored; its files are then missing."""
    for one in commands:
        await run_as(box, one.command, one.user, timeout=one.timeout_sec)


async def clear_for_tests(box: Box) -> None:
    """Kills the agent's processes, and removes files that the agent may have put where tests and rewards
    belong."""
    await box.end_processes()
    for path in ("/tests", "/logs/verifier"):
        with contextlib.suppress(BoxFileError):  # there is none
            await box.remove(path, user=ROOT)
        await box.make_folder(path, user=ROOT)
    await as_root(box, "chmod 777 /logs/verifier", what="clearing /logs/verifier")


async def clear_after_tests(box: Box) -> None:
    """Removes the tests and the files that they wrote, because the agent must not see them in a later step.
    Ends processes that the tests started."""
    await box.end_processes()
    for path in ("/tests", "/logs/verifier"):
        with contextlib.suppress(BoxFileError):  # the tests removed it
            await box.remove(path, user=ROOT)
