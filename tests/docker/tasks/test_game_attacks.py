"""What an agent could try when its code is graded: each attempt earns nothing or an honest score."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from air import tasks
from air.errors import ArtefactError
from air.sandbox.pool.box_pool import Pool
from air.tasks import stage
from air.tasks.artefact import Artefact
from air.tasks.grading import Grader
from tests import once
from tests.docker.tasks.attempts import all_of, refused

pytestmark = pytest.mark.docker

HONEST = {
    "battleOfSexes": "def move(mine, theirs):\n    return 0\n",
    "satHeuristic": "def choose(rows):\n    return rows[0][0]\n",
    "blotto": "def allocate(mine, theirs):\n    return [10] * 6\n",
    "bugHunt": (
        "def train(rows, labels):\n    return dict(mean=[0] * 6, scale=[1] * 6, "
        "hidden=[[0] * 7] * 12, output=[[0] * 13] * 4)\n"
    ),
}
"""By task, whose artefact is one file of Python: the plainest code that is graded."""
BROKEN = {
    "battleOfSexes": "def move(mine, theirs):\n    {}\n",
    "satHeuristic": "def choose(rows):\n    {}\n",
    "blotto": "def allocate(mine, theirs):\n    {}\n",
    "bugHunt": "def train(rows, labels):\n    {}\n",
}
"""The same with a gap for an attempt inside the function."""
HIDDEN = {
    "battleOfSexes": ("opponents.py", "data/seeds.json"),
    "satHeuristic": ("data/seeds.json",),
    "blotto": ("opponents.py", "data/seeds.json"),
    "bugHunt": ("data/val.json", "data/test.json"),
}
"""Files of its grader that must stay hidden."""


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


async def score(grader: Grader, name: str, source: str) -> float:
    task = tasks.load(name)
    artefact = Artefact({task.artefact: source.encode()})
    return (await grader.grade(task, artefact, split="val")).score


async def message(grader: Grader, name: str, source: str) -> str:
    with pytest.raises(ArtefactError) as caught:
        await score(grader, name, source)
    return str(caught.value)


FIND_GRADER = (
    "import os, socket, sys\n"
    "def any_other(attempt):\n    for pid in range(2, os.getpid()):\n        try: return attempt(pid)\n"
    "        except OSError: pass\n    raise OSError('refused')\n"
)
"""Agent code does not find the grader's process id; it is one of those below its own."""
SPYING = {
    "list": "os.listdir('/grader')",
    "write a result": "open('/grader/result.json', 'w')",
    "change the grader": "open('/grader/grade.py', 'a')",
    "memory of the grader": "any_other(lambda pid: open('/proc/%d/mem' % pid, 'rb').read(1))",
    "kill the grader": "any_other(lambda pid: os.kill(pid, 0))",
    "become root": "os.setuid(0)",
    "start a process": "os.fork()",
    "network": "socket.create_connection(('10.0.0.1', 80), 2)",
}


@pytest.mark.parametrize("name", HONEST)
async def test_the_graders_things_are_out_of_reach(grader: Grader, name: str) -> None:
    attempts = SPYING | {file: f"open('/grader/{file}').read()" for file in HIDDEN[name]}
    text = await message(grader, name, f"{FIND_GRADER}{all_of(attempts)}\n{HONEST[name]}")
    assert refused(text) == set(attempts), text


WITHOUT_AN_ANSWER = {
    "leaves": ("import os; os._exit(0)", "ended"),
    "raises SystemExit": ("raise SystemExit(0)", "failed: Exception$"),
    "crashes": ("return 1 / 0", "ZeroDivisionError"),
    "spins": ("while True: pass", "processor time"),
    "eats memory": ("return [0] * 10**10", "MemoryError"),
    "returns nothing": ("return None", "None|no dict"),
    "returns nan": ("return float('nan')", "nan|NaN"),
    "returns inf": ("return float('inf')", "inf|Infinity"),
    "returns a huge number": ("return 10**4400", "JSON cannot hold"),
}


EVERYWHERE = {"crashes", "returns nothing", "returns nan"}
"""To these a game's own grader could answer differently. One runner plays the code of all games: what else is
tried is tried in the first of them, and the rest of the matrix under AIR_FULL=1."""


def by_game() -> Iterator[object]:
    """Pairs of a game and an attempt. Code that spins is tried in test_policy_attacks.py, too."""
    for game in HONEST:
        often = EVERYWHERE if game != "battleOfSexes" else {*WITHOUT_AN_ANSWER} - {"spins"}
        for attempt in WITHOUT_AN_ANSWER:
            yield pytest.param(game, attempt, marks=() if attempt in often else pytest.mark.full)


@pytest.mark.parametrize(("name", "attempt"), list(by_game()))
async def test_code_without_an_answer_is_told_so(grader: Grader, name: str, attempt: str) -> None:
    line, said = WITHOUT_AN_ANSWER[attempt]
    text = await message(grader, name, BROKEN[name].format(line))
    assert re.search(said, text), text


PRINT = 'print(\'{"metrics": {"payoff": 99.0, "accuracy": 99.0}}\', flush=True)\n'
NOISE = f"import os\n{PRINT}os.write(1, b'1' * 100)\nos.write(2, b'x' * 200000)\n"


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.full if i else ()) for i, n in enumerate(HONEST)]
)
async def test_what_code_prints_changes_nothing(grader: Grader, name: str) -> None:
    assert await score(grader, name, NOISE + HONEST[name]) == await score(
        grader, name, HONEST[name]
    )


@pytest.mark.parametrize("name", HONEST)
async def test_no_hidden_file_is_in_the_agents_box(pool: Pool, name: str) -> None:
    hidden = {Path(file).name for file in ("grade.py", *HIDDEN[name])}
    task = tasks.load(name)
    names = " -o ".join(
        f"-name {file}" for file in sorted({*hidden, "README.md", "solve.py", "train.py"})
    )
    look = f"find / \\( -path /proc -o -path /sys \\) -prune -o \\( {names} \\) -print"
    async with pool.lease(task.box_spec("docker")) as box:
        await stage(task, box)
        found = await box.exec(f"{look}; ls -d /grader", timeout=60)
    seen = {line.rpartition("/")[2] for line in found.text.splitlines()}
    assert {"solve.py", "train.py"} & seen, found.text  # the workspace was looked through
    assert not hidden & seen, found.text
    assert "cannot access '/grader'" in found.text
