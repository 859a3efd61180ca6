"""Plays small Harbor tasks in air's boxes as Harbor's agents do: the oracle, and one that does nothing."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from air import tasks
from air.actions.base import Action
from air.rewards.delta import DeltaReward
from air.sandbox.pool.box_pool import Pool
from air.tasks.grading import Grader
from air.tasks.sources.harbor.settings import HarborSettings
from air.worlds.research.world import ResearchWorld
from tests.harbor.folders import Folder, write
from tests.harbor.images import DATA

IMAGE = "air-test-harbor-data"
"""The one image of all tasks whose `environment/` is `DATA`."""
_TABLE = "[environment]\n"


def with_image(folders: Iterable[Folder], root: Path) -> list[Path]:
    """Builds `IMAGE`, and writes the tasks of one step that can use it, with `docker_image` naming it. They
    declare artefacts: Harbor hands in nothing else when the tests run apart."""
    chosen = [
        replace(
            one, settings=one.settings.replace(_TABLE, f'{_TABLE}docker_image = "{IMAGE}"\n', 1)
        )
        for one in folders
        if one.image == DATA and one.instruction and one.artifacts and _TABLE in one.settings
    ]
    paths = write(chosen, root)
    environment = str(paths[0] / "environment")
    command = ["docker", "build", "--quiet", "--tag", IMAGE, environment]
    subprocess.run(command, check=True, capture_output=True)
    return paths


async def trials(agent: str, paths: Iterable[Path], cache: Path) -> dict[str, tuple[float, float]]:
    """Returns the reward and the seconds of one trial of each task, one after the other. No grade is taken
    from earlier trials, if `cache` is an empty folder."""
    results = {}
    async with Pool(1) as boxes, Pool(1, nested=True) as graders:
        grader = Grader(graders, "docker", cache)
        for path in paths:
            began = time.monotonic()
            reward = await _trial(agent, path, boxes, grader)
            results[path.name] = (reward, time.monotonic() - began)
    return results


async def _trial(agent: str, path: Path, boxes: Pool, grader: Grader) -> float:
    settings = HarborSettings(root=path.parent, range=(-1000.0, 1000.0))
    task = tasks.load(f"harbor:{path.name}", harbor=settings)
    script = "true" if agent == "nop" else (path / "solution" / "solve.sh").read_text()
    async with boxes.lease(task.box_spec("docker")) as box:
        world = ResearchWorld(task, box, grader, DeltaReward(task.reward_scale()), max_validates=0)
        await world.reset(0)
        await world.step(Action(script=script, ending="submit"))
        await world.finish()
        return world.reward
