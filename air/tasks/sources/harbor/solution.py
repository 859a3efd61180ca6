"""Runs the reference solution of a Harbor task in the agent's box, as Harbor's oracle does."""

from __future__ import annotations

from air.sandbox.contract.box import Box
from air.tasks.sources.harbor import boxes, verifier
from air.tasks.sources.harbor.source import HarborRules

FOLDER = "/solution"


async def run(rules: HarborRules, box: Box, step: int) -> str:
    """Puts the files of `solution/` into the box and runs `solve.sh` as the agent. Returns what went wrong,
    or "": as in Harbor, its exit status has no meaning for the reward."""
    declared = rules.folder.config.steps[step] if rules.folder.config.steps else None
    files = rules.folder.solution(declared) or rules.folder.solution()
    if "solve.sh" not in files:
        return "there is no solution/solve.sh"
    env = boxes.resolved(
        rules.folder.config.solution.env, rules.settings, where=f"{rules.task_id}: solution.env"
    )
    await verifier.put(box, files, FOLDER)
    result = await box.exec(
        ["bash", f"{FOLDER}/solve.sh"],
        timeout=rules.spec().limits.exec_seconds,
        env={"DEBIAN_FRONTEND": "noninteractive", **env},
    )
    if result.timed_out:
        return "solve.sh ran past the time limit"
    if result.code != 0:
        lines = result.text.strip().splitlines() or ["no output"]
        return f"solve.sh: exit {result.code}: {lines[-1][:200]}"
    return ""
