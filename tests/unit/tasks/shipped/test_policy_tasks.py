"""The reinforcement learning tasks' own programs, run as they are: rules, starters, graders."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from air import tasks
from air.tasks.check import read_solvers
from air.tasks.data import prepare
from air.tasks.files import folder_hash
from air.tasks.spec import TaskSpec
from air.tasks.splits import numbered
from tests import once

pytestmark = pytest.mark.slow

RULES = ["cartPole", "gridMaze"]
HIDDEN = {"cartPole": "carts.json", "gridMaze": "mazes.json"}
ONE_OF_THEM = [RULES[0], *(pytest.param(name, marks=pytest.mark.full) for name in RULES[1:])]
"""For what the shared runner does for both."""
STAY = "def act(observation):\n    return 0\n"


@pytest.fixture(scope="module", autouse=True)
def _shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Data is prepared once in a test run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIR_CACHE", str(once.cache(tmp_path_factory)))
        yield


@pytest.fixture
def cache() -> None:
    """No cache of its own for each test of this file."""


def run(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-B", *command]
    return subprocess.run(argv, cwd=place, capture_output=True, text=True, check=False)


def workspace(task: TaskSpec, place: Path, config: str = "") -> Path:
    shutil.copytree(prepare(task).agent, place, dirs_exist_ok=True)
    if config:
        (place / "config").write_text(config)
    return place


def grade(task: TaskSpec, place: Path, policy: str | None = None) -> tuple[int, dict[str, object]]:
    if policy is not None:
        (place / "policy.py").write_text(policy)
    out = place / "out.json"
    options = ["--artefact", str(place), "--split", "val", "--seed", "0", "--out", str(out)]
    result = run(place, str(prepare(task).grader / "grade.py"), *options)
    assert result.returncode in (0, 3), result.stderr
    return result.returncode, json.loads(out.read_text())


@pytest.mark.parametrize("name", RULES)
def test_the_starter_scores_the_declared_baseline(name: str, tmp_path: Path) -> None:
    task = tasks.load(name)
    place = workspace(task, tmp_path)
    assert run(place, "solve.py").returncode == 0
    code, said = grade(task, place)
    assert code == 0
    assert said["metrics"][task.metric] == pytest.approx(task.baseline)  # type: ignore[index]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("method=2", "both method=1..4 and level=1..4"),
        ("method=5 level=1", "method=5 is unknown"),
        ("method 1", "expected one line"),
    ],
)
def test_a_bad_config_is_explained(name: str, tmp_path: Path, config: str, said: str) -> None:
    result = run(workspace(tasks.load(name), tmp_path, config), "solve.py")
    assert result.returncode == 1
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "policy.py").exists()


@pytest.mark.parametrize("name", RULES)
def test_every_setting_writes_a_policy_that_practice_can_run(name: str, tmp_path: Path) -> None:
    for method in (1, 2, 4):
        place = workspace(tasks.load(name), tmp_path, f"method={method} level=2\n")
        assert run(place, "solve.py").stderr == ""
        shown = run(place, "practice.py")
        assert shown.stderr == ""
        assert shown.stdout.startswith("mean return ")


@pytest.mark.parametrize("name", RULES)
def test_hidden_episodes_stay_with_the_grader_and_follow_the_split_seed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tasks.load(name)
    first, other = prepare(task), prepare(task.on(numbered(5)))
    hidden = json.loads((first.grader / "data" / HIDDEN[name]).read_text())
    seeds = {seed for split in ("val", "test") for seed in hidden[split]}
    assert len(seeds) == len(hidden["val"]) + len(hidden["test"]) >= 40
    shown = "".join(p.read_text() for p in first.agent.rglob("*") if p.is_file())
    assert not any(str(seed) in shown for seed in seeds)
    assert not list(first.agent.rglob(HIDDEN[name]))
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "second"))
    second = prepare(task)
    assert folder_hash(second.agent) == folder_hash(first.agent)
    assert second.digest == first.digest != other.digest


@pytest.mark.parametrize("name", RULES)
def test_solvers_are_recorded_worst_first(name: str) -> None:
    vals = [solver.val for solver in read_solvers(tasks.load(name))]
    assert vals == sorted(vals)
    assert len(set(vals)) >= 4


BROKEN = {
    "no act": ("x = 1\n", "defines no function act"),
    "no Python": ("def act(\n", "SyntaxError"),
    "crashes": ("def act(observation):\n    return 1 / 0\n", "failed: ZeroDivisionError$"),
    "too large": ("def act(observation):\n    return 10\n", "returned an int, expected 0 to"),
    "negative": ("def act(observation):\n    return -1\n", "returned an int, expected 0 to"),
    "not a number": ("def act(observation):\n    return float('nan')\n", "returned NaN"),
    "a fraction": ("def act(observation):\n    return 0.5\n", "returned a float, expected 0 to"),
    "endless digits": ("def act(observation):\n    return 10 ** 5000\n", "JSON cannot hold"),
    "a word": ("def act(observation):\n    return '0'\n", "returned a str"),
    "nothing": ("def act(observation):\n    pass\n", "returned None"),
    "exits": ("import os\ndef act(observation):\n    os._exit(0)\n", "ended before it was done"),
    "raises SystemExit": ("raise SystemExit(0)\n", "SystemExit"),
    "large": ("#" * 1_000_001, "larger than 1 MB"),
    "answers twice": (
        "import os\n"
        "def act(observation):\n"
        "    for fd in range(3, 64):\n"
        "        try: os.write(fd, b'00')\n"
        "        except OSError: pass\n"
        "    return 0\n",
        "out of turn",
    ),
    "kills its runner": (
        "import os\nos.kill(os.getppid(), 9)\nos._exit(0)\n",
        "ended before it was done",
    ),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_policy_is_told_so(name: str, kind: str, tmp_path: Path) -> None:
    source, said = BROKEN[kind]
    code, found = grade(tasks.load(name), tmp_path, source)
    assert code == 3
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(found["message"])
    assert found["remember"] is True


def test_a_missing_policy_is_told_so(tmp_path: Path) -> None:
    code, found = grade(tasks.load("gridMaze"), tmp_path)
    assert (code, "cannot be read" in str(found["message"])) == (3, True)


@pytest.mark.parametrize("name", ONE_OF_THEM)
def test_episodes_know_nothing_of_each_other(name: str, tmp_path: Path) -> None:
    """Globals, modules and seeded luck live as long as one episode: the first act of each is the same."""
    remembering = (
        "import os, random, sys\n"
        "if hasattr(random, 'been'):\n    raise RuntimeError('another episode was here')\n"
        "random.been = sys.been = True\n" + STAY
    )
    task = tasks.load(name)
    code, said = grade(task, tmp_path, remembering)
    assert (code, said) == grade(task, tmp_path, STAY)
    assert code == 0


@pytest.mark.parametrize("name", ONE_OF_THEM)
def test_equal_policies_score_equally_and_luck_is_seeded(name: str, tmp_path: Path) -> None:
    lucky = (
        "import random\nimport numpy\n"
        "def act(observation):\n    return (random.randrange(2) + numpy.random.randint(2)) % 2\n"
    )
    assert grade(tasks.load(name), tmp_path, lucky) == grade(tasks.load(name), tmp_path, lucky)


@pytest.mark.parametrize("name", ONE_OF_THEM)
def test_what_a_policy_prints_and_changes_has_no_effect(name: str, tmp_path: Path) -> None:
    noisy = (
        "import os\n"
        "def act(observation):\n"
        '    print(\'{"metrics": {"mean_return": 99.0}}\', flush=True)\n'
        "    os.write(1, b'1')\n"
        "    observation.clear()\n"
        "    return 0\n"
    )
    task = tasks.load(name)
    assert grade(task, tmp_path, noisy) == grade(task, tmp_path, STAY)
