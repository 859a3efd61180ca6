"""What an agent could try at grading time: each attempt earns nothing or an honest score."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from air import tasks
from air.errors import ArtefactError
from air.sandbox.pool.box_pool import Pool
from air.tasks import stage
from air.tasks.artefact import Artefact, collect
from air.tasks.grading import Grader
from tests import once
from tests.docker.tasks.attempts import all_of, refused

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIR_CACHE", str(once.cache(tmp_path_factory)))
        yield


HONEST = "def move(mine, theirs):\n    return 0\n"


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    async with Pool(2) as pool:
        yield pool


@pytest.fixture
def grader(pool: Pool, tmp_path: Path) -> Grader:
    return Grader(pool, "docker", tmp_path)


async def play(grader: Grader, source: str) -> float:
    task = tasks.load("prisonersDilemma")
    artefact = Artefact({"strategy.py": source.encode()})
    return (await grader.grade(task, artefact, split="val")).score


async def message(grader: Grader, source: str) -> str:
    with pytest.raises(ArtefactError) as caught:
        await play(grader, source)
    return str(caught.value)


FAKE = 'print(\'{"metrics": {"payoff": 99.0}}\', flush=True)\n'
FAILING = {
    "prints a result and leaves": ("import os\n" + FAKE + "os._exit(0)\n" + HONEST, "ended"),
    "leaves during a move": ("import os\ndef move(mine, theirs):\n    os._exit(0)\n", "ended"),
    "raises SystemExit": ("raise SystemExit(0)\n", "SystemExit"),
    "crashes": ("def move(mine, theirs):\n    return 1 / 0\n", "failed: ZeroDivisionError$"),
    "is no Python": ("def move(\n", "SyntaxError"),
    "has no move": ("x = 1\n", "defines no function move"),
    "answers something else": ("def move(mine, theirs):\n    return 7\n", "returned an int"),
    "answers with no number": ("def move(mine, theirs):\n    return None\n", "returned None"),
    "spins": ("def move(mine, theirs):\n    while True: pass\n", "5 s of processor time"),
    "eats memory": ("def move(mine, theirs):\n    return len([0] * 10**10)\n", "MemoryError"),
    "writes to every pipe": (
        "import os\n"
        "for fd in range(64):\n"
        "    try: os.write(fd, b'1' * 5000)\n"
        "    except OSError: pass\n" + HONEST,
        "out of turn|failed",
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.full if n == "spins" else ()) for n in FAILING]
)
async def test_a_broken_or_cheating_strategy_is_told_so(grader: Grader, name: str) -> None:
    source, said = FAILING[name]
    text = await message(grader, source)
    assert re.search(said, text), text


FIND_GRADER = (
    "import os, socket, sys\n"
    "def any_other(attempt):\n    for pid in range(2, os.getpid()):\n        try: return attempt(pid)\n"
    "        except OSError: pass\n    raise OSError('refused')\n"
)
"""Agent code does not find the grader's process id; it is one of those below its own."""
SPYING = {
    "opponents": "open('/grader/opponents.py').read()",
    "seeds": "open('/grader/data/seeds.json').read()",
    "listing": "os.listdir('/grader')",
    "import": "sys.path.insert(0, '/grader'); import opponents",
    "result": "open('/grader/result.json', 'w').write('{}')",
    "memory of the grader": "any_other(lambda pid: open('/proc/%d/mem' % pid, 'rb').read(1))",
    "environment of the grader": "any_other(lambda pid: open('/proc/%d/environ' % pid, 'rb').read())",
    "kill the grader": "any_other(lambda pid: os.kill(pid, 0))",
    "become root": "os.setuid(0)",
    "start a process": "os.fork()",
    "network": "socket.create_connection(('10.0.0.1', 80), 2)",
}


async def test_the_graders_things_are_out_of_reach(grader: Grader) -> None:
    text = await message(grader, f"{FIND_GRADER}{all_of(SPYING)}\n{HONEST}")
    assert refused(text) == set(SPYING), text


async def test_the_graders_arguments_do_not_tell_the_split(grader: Grader) -> None:
    look = f"{FIND_GRADER}any_other(lambda pid: open('/proc/%d/cmdline' % pid).read())\n"
    assert "OSError: refused" in await message(grader, look)


async def test_what_a_strategy_prints_changes_nothing(grader: Grader) -> None:
    noisy = f"import os\n{FAKE}os.write(1, b'1' * 100)\nos.write(2, b'x' * 200000)\n{HONEST}"
    assert await play(grader, noisy) == await play(grader, HONEST)


async def test_changing_the_histories_changes_nothing(grader: Grader) -> None:
    source = (
        "def move(mine, theirs):\n    known = len(mine) == len(theirs)\n"
        "    mine[:] = [0] * 500\n    theirs.clear()\n    return 0 if known else 1\n"
    )
    assert await play(grader, source) == await play(grader, HONEST)


async def test_matches_start_afresh_and_luck_is_seeded(grader: Grader, tmp_path: Path) -> None:
    """Equal luck in two graders that share no memory."""
    source = "import random\ndef move(mine, theirs):\n    return random.randrange(2)\n"
    other = Grader(grader._pool, "docker", tmp_path / "other")
    assert await play(grader, source) == await play(other, source)


@pytest.mark.parametrize("name", ["titanic", "digits", "prisonersDilemma"])
async def test_no_answer_is_in_the_agents_box(pool: Pool, name: str) -> None:
    """Neither the grader's files nor any line of its answers can be found anywhere in the box."""
    task = tasks.load(name)
    async with pool.lease(task.box_spec("docker")) as box:
        await stage(task, box)
        found = await box.exec(
            "find / -xdev \\( -name grade.py -o -name opponents.py -o -name seeds.json \\);"
            " ls -d /grader; find . -name 'val*' -o -name 'test*' | xargs -r head -qn1",
            timeout=60,
        )
    assert not {"grade.py", "opponents.py", "seeds.json"} & set(
        found.text.replace("/", " ").split()
    )
    assert "cannot access '/grader'" in found.text
    assert "survived" not in found.text
    assert "digit" not in found.text


async def test_hijacked_programs_in_the_agents_box_do_not_reach_the_grader(
    pool: Pool, grader: Grader
) -> None:
    """A `python3`, `sitecustomize` or changed data of the agent's own box are not in the grader's."""
    task = tasks.load("digits")
    async with pool.lease(task.box_spec("docker")) as box:
        await stage(task, box)
        result = await box.exec(
            "python3 solve.py && for f in python3 sitecustomize.py csv.py table.py grade.py;"
            " do echo 'raise SystemExit(0)' > $f; done; mkdir -p grader; chmod +x python3;"
            " printf 'id,digit\\n' > data/val.csv",
            timeout=60,
        )
        assert result.ok, result.text
        grade = await grader.grade(task, await collect(task, box), split="val")
    assert grade.score == pytest.approx(task.baseline)
