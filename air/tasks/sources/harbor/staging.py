"""Changes the files in the agent's box (sandbox) of a Harbor task: adds the files of a step (stage of the
task) before it begins, and removes files before and after the tests run."""

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
    """Returns text for the end of the agent's instruction, which says in which folder of the box the skills
    are (see `Environment.skills_dir`); an empty string if there are no skills."""
    if not environment.skills_dir:
        return ""
    return f"\n\nSkills, each a folder with a SKILL.md that explains it, lie in {environment.skills_dir}."


async def set_up(box: Box, folder: HarborFolder, step: Step, user: User) -> None:
    """Copies the files of `step`, a stage of the task in `folder`, into the working directory of the agent's
    box, with `user` as their owner. Then runs the file `setup.sh` as this user if it is among them. Raises
    StagingError if `setup.sh` fails."""
    files = folder.setup(step)
    await put(box, files, box.workspace, user)
    if "setup.sh" in files:
        result, output = await run_as(box, ["bash", "setup.sh"], user, timeout=_SETUP_SECONDS)
        if result.code != 0:
            raise StagingError(
                f"steps/{step.name}/workdir/setup.sh: exit {result.code}: {output.strip()[-200:]}"
            )


async def run_collectors(box: Box, commands: Sequence[Collect]) -> None:
    """Runs the task's `collect` commands, which prepare files in the agent's box before the artefact (the
    files to grade) is read. As in Harbor, a command that names no user runs as the image's default user, not
    as the agent's; and the failure of a command is ignored, even if files are then missing."""
    for one in commands:
        user = box.image_user if one.user is None else one.user
        await run_as(box, one.command, user, timeout=one.timeout_sec)


async def clear_for_tests(box: Box) -> None:
    """Prepares the agent's box for tests that run in it: kills the agent's processes, and replaces the
    folders for tests and rewards by empty ones, because the agent may have written into them."""
    await box.end_processes()
    for path in ("/tests", "/logs/verifier"):
        with contextlib.suppress(BoxFileError):  # there is none
            await box.remove(path, user=ROOT)
        await box.make_folder(path, user=ROOT)
    await as_root(box, "chmod 777 /logs/verifier", what="clearing /logs/verifier")


async def clear_after_tests(box: Box) -> None:
    """Kills the processes that the tests started, and removes the folders of the tests and of their rewards,
    because the agent must not see these files in a later step."""
    await box.end_processes()
    for path in ("/tests", "/logs/verifier"):
        with contextlib.suppress(BoxFileError):  # the tests removed it
            await box.remove(path, user=ROOT)
