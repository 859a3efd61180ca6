"""Exported tasks in real containers, as Harbor plays them: they grade as air does, to the last digit."""

from __future__ import annotations

import json
import subprocess
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from air import tasks
from air.rewards.normalise import phi_on
from air.sandbox.pool.box_pool import Pool
from air.tasks.check import play_solver, read_solvers
from air.tasks.export import harbor
from air.tasks.grading import Grader
from tests import once

pytestmark = pytest.mark.docker
EXPORTED = [name for name in tasks.available() if not harbor.refusal(tasks.load(name))]
SHORT = ("blotto", "titanic")
"""One whose grader runs the agent's code, and one whose grader reads a table."""


@pytest.fixture(autouse=True)
def _caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_CACHE", str(once.cache(tmp_path_factory)))


def docker(*words: str) -> str:
    ended = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


class Images:
    """The agent's and the verifier's image of a task, and containers of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        name = f"air-test-export-{uuid.uuid4().hex[:12]}"
        self._tags = {"environment": f"{name}-agent", "tests": f"{name}-verifier"}
        self._containers: list[str] = []
        for part, tag in self._tags.items():
            docker("build", "--quiet", "--tag", tag, str(folder / part))

    def start(self, part: str) -> str:
        config = tomllib.loads((self._folder / "task.toml").read_text())["environment"]
        limits = ["--memory", f"{config['memory_mb']}m", "--cpus", str(config["cpus"])]
        limits += ["--network", "none"]
        name = docker("run", "--detach", "--rm", *limits, self._tags[part], "sleep", "600")
        self._containers.append(name)
        return name

    def remove(self) -> None:
        if self._containers:
            docker("rm", "--force", *self._containers)
        docker("rmi", *self._tags.values())


@pytest.fixture(
    params=[pytest.param(n, marks=[] if n in SHORT else pytest.mark.full) for n in EXPORTED]
)
def exported(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, Images]]:
    folder = harbor.export(tasks.load(request.param), tmp_path)
    images = Images(folder)
    yield folder, images
    images.remove()


def rewards(folder: Path, images: Images, solution: str, tmp_path: Path) -> dict[str, float]:
    """What the verifier pays for a solution."""
    config = tomllib.loads((folder / "task.toml").read_text())
    agent, verifier = images.start("environment"), images.start("tests")
    docker("cp", f"{folder}/solution", f"{agent}:/solution")
    user, home = config["agent"]["user"], config["environment"]["workdir"]
    docker("exec", "--user", user, "--workdir", home, agent, "bash", f"/solution/{solution}.sh")
    for source in config["artifacts"]:
        docker("cp", f"{agent}:{source}", f"{tmp_path}/artefact")
        docker("cp", f"{tmp_path}/artefact", f"{verifier}:{source}")
    user = config["verifier"]["user"]
    docker("exec", "--user", user, "--workdir", home, verifier, "/tests/test.sh")
    paid: dict[str, float] = json.loads(
        docker("exec", verifier, "cat", "/logs/verifier/reward.json")
    )
    return paid


async def test_baseline_and_best_score_as_in_air(
    exported: tuple[Path, Images], tmp_path: Path
) -> None:
    task = tasks.load(exported[0].name)
    first, *_, last = read_solvers(task)
    async with Pool(1) as boxes, Pool(1, nested=True) as graders:
        grader = Grader(graders, "docker")
        for solver, name in ((first, first.name), (last, "solve")):
            async with boxes.lease(task.box_spec("docker")) as box:
                ours = await play_solver(task, solver, box, grader)
            assert ours.problem == ""
            assert ours.val is not None
            assert ours.test is not None
            paid = rewards(*exported, name, tmp_path)
            assert (paid["reward"], paid[f"val_{task.metric}"]) == (
                phi_on(task, ours.val),
                ours.val,
            )
            assert (paid["test_reward"], paid[f"test_{task.metric}"]) == (
                phi_on(task, ours.test),
                ours.test,
            )


HIDDEN = [name for name in SHORT if name == "titanic"]


@pytest.mark.parametrize("exported", HIDDEN, indirect=True)
def test_the_agents_image_has_nothing_of_the_verifier(exported: tuple[Path, Images]) -> None:
    agent = exported[1].start("environment")
    assert docker("exec", agent, "ls", "/workspace") == "config\ndata\nsolve.py"
    assert docker("exec", agent, "find", "/", "-xdev", "-name", "grade*.py") == ""
    verifier = exported[1].start("tests")
    assert docker("exec", verifier, "ls", "-A", "/workspace") == ""
