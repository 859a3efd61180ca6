"""Runs the reference solution of a Harbor task in the agent's box (sandbox), as Harbor does with its agent
`oracle`."""

from __future__ import annotations

from pathlib import Path

from air.errors import BoxFileError, MissingError, StagingError, boundary
from air.sandbox.contract.box import Box
from air.tasks.sources.harbor import boxes, verifier
from air.tasks.sources.harbor.folder import HarborFolder
from air.tasks.sources.harbor.schema import Step
from air.tasks.sources.harbor.settings import HarborSettings

FOLDER = "/solution"


def files(folder: HarborFolder, step: Step | None) -> dict[str, Path]:
    """Returns the files of the reference solution of `step`, a step of the task, by their path below
    `/solution`. If the step has no solution of its own, these are the files of the task's solution. Returns
    an empty dict if there is no `solve.sh` among them."""
    found = folder.solution(step) or folder.solution()
    return found if "solve.sh" in found else {}


async def run(
    box: Box, folder: HarborFolder, step: Step | None, settings: HarborSettings, seconds: float
) -> str:
    """Copies the files of the reference solution into the box (sandbox), and runs `solve.sh` there as the
    agent's user, for at most `seconds` seconds. `step` is a step of the task, or None for a task without
    steps. Returns a message if the script fails or exceeds the time limit, otherwise an empty string. As in
    Harbor, the script's exit status does not affect the reward. Raises MissingError if there is no such
    script, ConfigError if an environment variable for it is missing, and StagingError if the files do not fit
    into the box."""
    if not (laid_out := files(folder, step)):
        raise MissingError("there is no solution/solve.sh", where=str(folder.path))
    where = f"{folder.path / 'task.toml'}: solution.env"
    env = boxes.resolved(folder.config.solution.env, settings, where=where)
    with boundary(StagingError, f"laying out {FOLDER}", BoxFileError):
        await verifier.put(box, laid_out, FOLDER)
    result = await box.exec(
        ["bash", f"{FOLDER}/solve.sh"],
        timeout=seconds,
        env={"DEBIAN_FRONTEND": "noninteractive", **env},
    )
    if result.timed_out:
        return "solve.sh ran past the time limit"
    if result.code != 0:
        lines = result.text.strip().splitlines() or ["no output"]
        return f"solve.sh: exit {result.code}: {lines[-1][:200]}"
    return ""
