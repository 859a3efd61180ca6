"""What a policy could try at grading time in a real grader box: it earns nothing, or an honest score."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from air import tasks
from air.errors import ArtefactError
from air.sandbox.pool.box_pool import Pool
from air.tasks import stage
from air.tasks.artefact import Artefact
from air.tasks.grading import Grader
from air.tasks.spec import TaskSpec
from tests import once
from tests.docker.tasks.attempts import all_of, refused

pytestmark = pytest.mark.docker

NAMES = ["cartPole", "gridMaze"]
HONEST = "def act(observation):\n    return 0\n"


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIR_CACHE", str(once.cache(tmp_path_factory)))
        yield


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    async with Pool(2) as pool:
        yield pool


@pytest.fixture
def grader(pool: Pool, tmp_path: Path) -> Grader:
    return Grader(pool, "docker", tmp_path)


async def play(grader: Grader, task: TaskSpec, source: str) -> float:
    artefact = Artefact({"policy.py": source.encode()})
    return (await grader.grade(task, artefact, split="val")).score


async def message(grader: Grader, task: TaskSpec, source: str) -> str:
    with pytest.raises(ArtefactError) as caught:
        await play(grader, task, source)
    return str(caught.value)


SPYING = {
    "rules": "open('/grader/maze.py').read()",
    "seeds": "open('/grader/data/mazes.json').read()",
    "listing": "os.listdir('/grader')",
    "import": "sys.path.insert(0, '/grader'); import maze",
    "result": "open('/grader/result.json', 'w').write('x')",
    "memory of the grader": "any_other(lambda pid: open('/proc/%d/mem' % pid, 'rb').read(1))",
    "environment of the grader": "any_other(lambda pid: open('/proc/%d/environ' % pid, 'rb').read())",
    "kill the grader": "any_other(lambda pid: os.kill(pid, 0))",
    "become root": "os.setuid(0)",
    "start a process": "os.fork()",
    "network": "socket.create_connection(('10.0.0.1', 80), 2)",
}


async def test_the_graders_things_are_out_of_reach(grader: Grader) -> None:
    source = (
        "import os, socket, sys\n"
        "def any_other(attempt):\n    for pid in range(2, os.getpid()):\n        try: return attempt(pid)\n"
        "        except OSError: pass\n    raise OSError('refused')\n"
        f"{all_of(SPYING)}\n{HONEST}"
    )
    text = await message(grader, tasks.load("gridMaze"), source)
    assert refused(text) == set(SPYING), text


BROKEN = {
    "spins": ("def act(observation):\n    while True: pass\n", "more than 1 s of processor time"),
    "spins on, deaf to signals": (
        "import signal\nfor n in range(1, 60):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "while True: pass\n",
        "more than 1 s of processor time",
    ),
    "eats memory": ("def act(observation):\n    return len([0] * 10**10)\n", "MemoryError"),
    "leaves": ("import os\nos._exit(0)\n", "ended before it was done"),
    "kills its runner": (
        "import os\nos.kill(os.getppid(), 9)\nos._exit(0)\n",
        "PermissionError",
    ),
}


@pytest.mark.parametrize("name", [*list(BROKEN)[1:], pytest.param("spins", marks=pytest.mark.full)])
async def test_a_broken_or_cheating_policy_is_told_so(
    grader: Grader, tmp_path: Path, name: str
) -> None:
    source, said = BROKEN[name]
    limit = "cpu_seconds: int | None = "
    task = limited(tmp_path / "tasks", f"{limit}5", f"{limit}1")
    text = await message(grader, task, source)
    assert re.search(said, text), text


async def test_sleeping_is_bounded_and_not_remembered(grader: Grader, tmp_path: Path) -> None:
    """A wall clock that ran out may be the machine's fault: the next grade of it runs anew."""
    task = limited(tmp_path / "tasks", "seconds: float = 50.0", "seconds: float = 2.0")
    source = "import time\ntime.sleep(600)\n" + HONEST
    assert "longer than 2 s" in await message(grader, task, source)
    assert not grader._store.known


def limited(root: Path, limit: str, other: str) -> TaskSpec:
    """cartPole with another limit than the usual one, which tests/unit/tasks/test_runner.py holds."""
    folder = tasks.load("cartPole").folder
    shutil.copytree(folder, root / "cartPole")
    text = (folder.parent / "_shared" / "runner.py").read_text()
    assert text.count(limit) == 1
    (root / "_shared").mkdir()
    (root / "_shared" / "runner.py").write_text(text.replace(limit, other))
    return tasks.load("cartPole", [root])


@pytest.mark.parametrize("name", NAMES)
async def test_what_a_policy_prints_changes_nothing(grader: Grader, name: str) -> None:
    noisy = (
        'import os\nprint(\'{"metrics": {"mean_return": 99.0}}\', flush=True)\n'
        f"os.write(1, b'1' * 100)\nos.write(2, b'x' * 200000)\n{HONEST}"
    )
    task = tasks.load(name)
    assert await play(grader, task, noisy) == await play(grader, task, HONEST)


@pytest.mark.parametrize("name", NAMES)
async def test_no_hidden_episode_is_in_the_agents_box(pool: Pool, name: str) -> None:
    task = tasks.load(name)
    async with pool.lease(task.box_spec("docker")) as box:
        await stage(task, box)
        found = await box.exec(
            "find / -xdev \\( -name grade.py -o -name mazes.json -o -name carts.json \\);"
            " ls -d /grader; ls",
            timeout=60,
        )
    assert not {"grade.py", "mazes.json", "carts.json"} & set(found.text.replace("/", " ").split())
    assert "cannot access '/grader'" in found.text
    assert "practice.py" in found.text
