"""What an agent could try against the graders of the data tasks: none of it shows or changes an answer."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from math import log2
from pathlib import Path

import pytest

from air import tasks
from air.errors import ArtefactError
from air.sandbox.pool.box_pool import Pool
from air.tasks import stage
from air.tasks.artefact import Artefact, collect
from air.tasks.data import prepare
from air.tasks.grading import Grader
from tests import once
from tests.docker.tasks.attempts import all_of, refused

pytestmark = pytest.mark.docker

UNIFORM = "def predict(text):\n    return [1] * 96\n"
COLUMNS = {
    "amesHousing": "price",
    "foodReviews": "great",
    "forecasting": "employed",
    "recommendation": "rating",
}


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


async def read(grader: Grader, source: str) -> float:
    """The bits that a model needs for a character of the validation text."""
    task = tasks.load("languageModel")
    artefact = Artefact({"model.py": source.encode()})
    return (await grader.grade(task, artefact, split="val")).score


async def message(grader: Grader, source: str) -> str:
    with pytest.raises(ArtefactError) as caught:
        await read(grader, source)
    return str(caught.value)


FIND_GRADER = (
    "import os, socket, sys\n"
    "def any_other(attempt):\n    for pid in range(2, os.getpid()):\n        try: return attempt(pid)\n"
    "        except OSError: pass\n    raise OSError('refused')\n"
)
"""Agent code does not find the grader's process id; it is one of those below its own."""
SPYING = {
    "text": "open('/grader/data/val.txt').read()",
    "text of the test": "open('/grader/data/test.txt').read()",
    "listing": "os.listdir('/grader')",
    "import": "sys.path.insert(0, '/grader'); import runner",
    "result": "open('/grader/result.json', 'w').write('{}')",
    "memory of the grader": "any_other(lambda pid: open('/proc/%d/mem' % pid, 'rb').read(1))",
    "environment of the grader": "any_other(lambda pid: open('/proc/%d/environ' % pid, 'rb').read())",
    "files of the grader": "any_other(lambda pid: os.listdir('/proc/%d/fd' % pid))",
    "kill the grader": "any_other(lambda pid: os.kill(pid, 0))",
    "become root": "os.setuid(0)",
    "start a process": "os.fork()",
    "network": "socket.create_connection(('10.0.0.1', 80), 2)",
}


async def test_the_hidden_text_is_out_of_a_models_reach(grader: Grader) -> None:
    text = await message(grader, f"{FIND_GRADER}{all_of(SPYING)}\n{UNIFORM}")
    assert refused(text) == set(SPYING), text


FAILING = {
    "spins": (
        "def predict(text):\n    while True: pass\n",
        "10 s of processor time|took longer than 50 s",
    ),  # by the load beside it
    "eats memory": ("def predict(text):\n    return [0] * 10**10\n", "MemoryError"),
    "leaves with a result": (
        'import os\nprint(\'{"metrics": {"bits_per_character": 0.0}}\', flush=True)\nos._exit(0)\n',
        "ended before it was done",
    ),
    "is not finite": ("def predict(text):\n    return [float('inf')] * 96\n", "96 weights from 0"),
}


@pytest.mark.parametrize(
    "name", [*list(FAILING)[1:], pytest.param("spins", marks=pytest.mark.full)]
)
async def test_a_broken_or_cheating_model_is_told_so(grader: Grader, name: str) -> None:
    source, said = FAILING[name]
    text = await message(grader, source)
    assert re.search(said, text), text


async def test_a_model_that_prints_in_a_session_of_its_own_is_graded_as_it_answers(
    grader: Grader,
) -> None:
    source = (
        "import os\nos.setsid()\n"
        "print('bits_per_character 0.0', flush=True)\n"
        "os.write(2, b'x' * 200000)\n" + UNIFORM
    )
    assert await read(grader, source) == pytest.approx(log2(96), abs=1e-9)


@pytest.mark.parametrize("name", COLUMNS)
async def test_no_answer_of_a_table_is_in_the_agents_box(pool: Pool, name: str) -> None:
    """What is staged lacks the column, and the grader's folder is not there."""
    task = tasks.load(name)
    async with pool.lease(task.box_spec("docker")) as box:
        await stage(task, box)
        found = await box.exec(
            "find / -xdev \\( -name grade.py -o -name table.py -o -name scales.csv \\);"
            " ls -d /grader; head -qn1 data/val.csv data/test.csv",
            timeout=60,
        )
    assert not {"grade.py", "table.py", "scales.csv"} & set(found.text.replace("/", " ").split())
    assert "cannot access '/grader'" in found.text
    headers = [line for line in found.text.splitlines() if line.startswith("id,")]
    assert len(headers) == 2, found.text
    assert not any(COLUMNS[name] in line.split(",") for line in headers), found.text


async def test_no_hidden_paragraph_is_in_the_agents_box(pool: Pool) -> None:
    task = tasks.load("languageModel")
    hidden = prepare(task).grader / "data"
    lines = [(hidden / f"{split}.txt").read_text().splitlines()[0] for split in ("val", "test")]
    async with pool.lease(task.box_spec("docker")) as box:
        await stage(task, box)
        known = (await box.read("data/train.txt")).decode()
        assert len(known) > 500_000
        for line in lines:
            found = await box.exec(["grep", "-rlF", line, "/workspace", "/grader"], timeout=60)
            assert found.code != 0, found.text
            assert "train.txt" not in found.text


async def test_changed_data_and_programs_of_the_agents_box_do_not_reach_the_grader(
    pool: Pool, grader: Grader
) -> None:
    """Shorter lists of what is asked for, and modules with the grader's names, change nothing."""
    task = tasks.load("amesHousing")
    async with pool.lease(task.box_spec("docker")) as box:
        await stage(task, box)
        result = await box.exec(
            "python3 solve.py && for f in sitecustomize.py csv.py table.py grade.py;"
            " do echo 'raise SystemExit(0)' > $f; done; mkdir -p grader/data;"
            " printf 'id,price\\n' | tee data/val.csv > grader/data/val.csv",
            timeout=60,
        )
        assert result.ok, result.text
        grade = await grader.grade(task, await collect(task, box), split="val")
    assert grade.score == pytest.approx(task.baseline, abs=1e-6)
