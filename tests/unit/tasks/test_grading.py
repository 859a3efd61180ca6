"""Grading in real process boxes: what is reused, what is shared, and whose fault it is."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from air.errors import ArtefactError, BrokenTaskError, GradingError, StagingError
from air.sandbox.contract.box import Box, BoxSpec, Snapshot
from air.sandbox.pool.box_pool import Pool
from air.tasks.artefact import Artefact
from air.tasks.grading import NOT_GRADED, Grader, empty_artefact
from air.tasks.splits import numbered
from tests.e2e.full_disk_grading import graded_on_a_full_disk
from tests.unit.tasks.conftest import SCORE, MakeTask

TWO = Artefact({"answer.txt": b"2"})


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    async with Pool(2) as pool:
        yield pool


@pytest.fixture
def grader(pool: Pool) -> Grader:
    return Grader(pool, "process")


async def test_a_grade_is_measured_once_and_remembered_on_disk(
    make_task: MakeTask, pool: Pool, grader: Grader
) -> None:
    task = make_task()
    first = await grader.grade(task, TWO, split="val")
    assert (first.score, first.metrics, first.reused) == (2.0, {"score": 2, "other": 1}, False)
    assert first.seconds > 0
    for other in (grader, Grader(pool, "process")):
        again = await other.grade(task, TWO, split="val")
        assert (again.score, again.reused, again.seconds) == (2.0, True, 0.0)
    assert pool.stats.started == 1


async def test_whatever_decides_a_grade_tells_grades_apart(
    make_task: MakeTask, pool: Pool, grader: Grader
) -> None:
    task = make_task()
    await grader.grade(task, TWO, split="val")
    for other, artefact, split, seed in (
        (task, Artefact({"answer.txt": b"3"}), "val", 0),
        (task, TWO, "test", 0),
        (task, TWO, "val", 1),
        (make_task(SCORE + "#"), TWO, "val", 0),
    ):
        grade = await grader.grade(other, artefact, split=split, seed=seed)  # type: ignore[arg-type]
        assert not grade.reused
    assert not (await grader.grade(task.on(numbered(5)), TWO, split="val")).reused


async def test_half_a_character_in_a_message_can_be_sent_to_the_model(
    make_task: MakeTask, grader: Grader
) -> None:
    """A grader quotes agent code's own error, such as `raise ValueError("\\ud800")`."""
    task = make_task("end(3, json.dumps({'message': 'it said \\ud800'}))")
    for _ in range(2):  # graded, then remembered
        with pytest.raises(ArtefactError) as caught:
            await grader.grade(task, TWO, split="val")
        assert str(caught.value) == "it said ?"


async def test_the_grader_has_the_answers_and_the_arguments(
    make_task: MakeTask, grader: Grader
) -> None:
    task = make_task(
        "answer = (here / 'data' / 'answer.txt').read_text()\n"
        "assert (answer, args.split, args.seed) == ('secret 7', 'test', '3')\n" + SCORE
    )
    assert (await grader.grade(task, TWO, split="test", seed=3)).score == 2.0


async def test_equal_grades_asked_for_at_once_share_a_run(
    make_task: MakeTask, pool: Pool, grader: Grader
) -> None:
    task = make_task("import time; time.sleep(0.3)\n" + SCORE)
    grades = await asyncio.gather(*(grader.grade(task, TWO, split="val") for _ in range(5)))
    assert [g.score for g in grades] == [2.0] * 5
    assert sorted(g.reused for g in grades) == [False] + [True] * 4
    assert pool.stats.started == 1


async def test_a_cancelled_waiter_leaves_the_run_to_the_others(
    make_task: MakeTask, pool: Pool, grader: Grader
) -> None:
    task = make_task("import time; time.sleep(0.5)\n" + SCORE)
    first = asyncio.create_task(grader.grade(task, TWO, split="val"))
    second = asyncio.create_task(grader.grade(task, TWO, split="val"))
    await asyncio.sleep(0.3)
    first.cancel()
    assert (await second).score == 2.0
    assert first.cancelled()
    assert pool.stats.started == 1


async def test_the_last_waiter_takes_the_run_with_it(
    make_task: MakeTask, pool: Pool, grader: Grader
) -> None:
    task = make_task("import time; time.sleep(30)\n" + SCORE)
    only = asyncio.create_task(grader.grade(task, TWO, split="val"))
    await asyncio.sleep(0.5)
    only.cancel()
    with pytest.raises(asyncio.CancelledError):
        await only
    assert (await grader.grade(make_task(), TWO, split="val")).score == 2.0


async def test_only_this_user_may_read_cached_grades(
    make_task: MakeTask, pool: Pool, grader: Grader, cache: Path
) -> None:
    (cache / "grades").mkdir(parents=True, mode=0o755)
    before = os.umask(0)
    try:
        await grader.grade(make_task(), TWO, split="test")
    finally:
        os.umask(before)
    modes = {
        path.stat().st_mode & 0o777 for path in (cache / "grades", *(cache / "grades").glob("*"))
    }
    assert modes == {0o700}
    assert {path.stat().st_mode & 0o777 for path in (cache / "grades").rglob("*.json")} == {0o600}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"v": 1}', "\x00" * 64])
async def test_a_corrupt_entry_is_ignored_and_written_anew(
    make_task: MakeTask, pool: Pool, grader: Grader, cache: Path, text: str
) -> None:
    task = make_task()
    await grader.grade(task, TWO, split="val")
    (entry,) = (cache / "grades").rglob("*.json")
    whole = entry.read_text()
    entry.write_text(text)
    grade = await Grader(pool, "process").grade(task, TWO, split="val")
    assert (grade.score, grade.reused) == (2.0, False)
    assert json.loads(entry.read_text()) == json.loads(whole)
    assert [p.name for p in entry.parent.iterdir()] == [entry.name]


async def test_a_bad_artefact_is_told_to_the_agent_and_remembered(
    make_task: MakeTask, pool: Pool, grader: Grader
) -> None:
    task = make_task("""end(3, json.dumps({"message": "line 2: no number"}))""")
    for other in (grader, grader, Grader(pool, "process")):
        with pytest.raises(ArtefactError, match="line 2: no number"):
            await other.grade(task, TWO, split="val")
    assert pool.stats.started == 1


async def test_a_bad_artefact_that_time_decided_is_not_remembered(
    make_task: MakeTask, pool: Pool, grader: Grader
) -> None:
    task = make_task("""end(3, json.dumps({"message": "too slow", "remember": False}))""")
    for _ in range(2):
        with pytest.raises(ArtefactError, match="too slow"):
            await grader.grade(task, TWO, split="val")
    assert pool.stats.started == 2


BREAKS = "if given: os.kill(os.getpid(), 9)"


async def test_a_grader_that_one_artefact_breaks_twice_is_that_artefacts_fault(
    make_task: MakeTask, pool: Pool, grader: Grader
) -> None:
    task = make_task(f"import os\n{BREAKS}\nend(3, json.dumps({{'message': 'empty'}}))")
    for started in (3, 5):  # two tries, and the empty artefact, whose grade is remembered
        with pytest.raises(ArtefactError) as caught:
            await grader.grade(task, TWO, split="val")
        assert str(caught.value) == NOT_GRADED
        assert "exit 137" in caught.value.fault
        assert pool.stats.started in (started, started + 1)
    await grader.check(task)


async def test_an_artefact_that_the_graders_box_cannot_hold_is_at_fault(
    make_task: MakeTask, grader: Grader
) -> None:
    task = make_task()
    large = Artefact({"answer.txt": b"1" * (task.limits.box(1.0).disk_mb + 1) * 2**20})
    with pytest.raises(ArtefactError, match=r"does not fit into the grader's box.*No space left"):
        await grader.grade(task, large, split="val")


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_an_artefact_that_meets_a_full_disk_is_graded_once_more(
    tmp_path: Path, cache: Path
) -> None:
    """A plain process box has no disk of its own. If the disk stays too full for the artefact, and not for
    the grader, the artefact is at fault, since agents can fill this disk; but that is not remembered."""
    (tmp_path / "temporary").mkdir()
    *twice_full, freed, brimful, roomy, malformed = graded_on_a_full_disk(
        tmp_path / "temporary", cache
    )
    for full in twice_full:
        assert full["error"] == f"ArtefactError: {NOT_GRADED}"
        assert full["fault"].endswith("No space left on device")
    assert 0 < freed["score"] < 1
    assert not brimful["error"].startswith("ArtefactError")
    assert "No space left on device" in brimful["error"]
    assert roomy["score"] == pytest.approx(1 - freed["score"])
    assert not roomy["reused"]
    assert "must begin with" in malformed["error"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grade", "said"),
    [
        ("raise RuntimeError('disk on fire')", "exit 1: RuntimeError: disk on fire"),
        ("sys.exit(0)", "no result"),
        ("sys.exit(3)", "no result"),
        ("end(0, 'nonsense')", "no result"),
        ("end(0, '[1]')", "no JSON object"),
        ("end(0, '{}')", "no metrics"),
        ("end(3, '{}')", "without a message"),
        ("""end(0, '{"metrics": {"other": 1}}')""", "score is None"),
        ("""end(0, '{"metrics": {"score": NaN}}')""", "score is nan"),
        ("""end(0, '{"metrics": {"score": Infinity}}')""", "score is inf"),
        ("""end(0, '{"metrics": {"score": true}}')""", "score is True"),
        ("""end(0, '{"metrics": {"score": "2"}}')""", "score is '2'"),
        ("import os; os.kill(os.getpid(), 9)", "exit 137"),
        ("import time; time.sleep(30)", "ran past 1 s"),
    ],
)
async def test_a_failure_of_ours_is_raised_and_never_remembered(
    make_task: MakeTask, pool: Pool, grader: Grader, cache: Path, grade: str, said: str
) -> None:
    limits = "[limits]\ngrade_seconds = 1\n" if "sleep" in grade else ""
    task = make_task(grade, toml=limits)
    with pytest.raises(GradingError, match=said) as caught:
        await grader.grade(task, TWO, split="val")
    assert "tiny" in str(caught.value)
    assert not (cache / "grades").exists()


FAILS = """
if pathlib.Path('bad_luck').exists(): raise RuntimeError('a bug that shows now and then')
"""
"""Fails in the boxes that `Unlucky` chose."""


class Unlucky(Pool):
    """A pool that leaves the file `bad_luck` in the boxes with these numbers, from 1."""

    def __init__(self, numbers: Collection[int]) -> None:
        super().__init__(1)
        self.numbers, self.leases = numbers, 0

    @asynccontextmanager
    async def lease(self, spec: BoxSpec, *, snapshot: Snapshot | None = None) -> AsyncIterator[Box]:
        self.leases += 1
        async with super().lease(spec, snapshot=snapshot) as box:
            if self.leases in self.numbers:
                await box.write("bad_luck", b"")
            yield box


async def test_a_failure_that_does_not_come_again_is_told_and_the_grade_counts_once(
    make_task: MakeTask,
) -> None:
    task = make_task(FAILS + SCORE)
    async with Unlucky({1}) as pool:
        grader = Grader(pool, "process")
        first = await grader.grade(task, TWO, split="val")
        assert first.score == 2.0
        assert "a bug that shows" in first.first_error
        again = await grader.grade(task, TWO, split="val")
        assert (again.score, again.reused, again.first_error) == (2.0, True, "")
        assert pool.leases == 2


async def test_a_refusal_at_the_second_try_is_no_fault_of_the_grader(make_task: MakeTask) -> None:
    task = make_task(FAILS + "end(3, json.dumps({'message': 'a bad table'}))")
    async with Unlucky({1}) as pool:
        with pytest.raises(ArtefactError, match="a bad table") as caught:
            await Grader(pool, "process").grade(task, TWO, split="val")
    assert caught.value.fault == ""


@pytest.mark.parametrize("artefact", ["full", "empty"])
async def test_two_failures_are_the_artefacts_fault_even_if_the_empty_one_fails_once(
    make_task: MakeTask, artefact: str
) -> None:
    """Before, the failure on the empty artefact masked the episode: a way to escape by chance."""
    task = make_task(FAILS + SCORE)
    graded = TWO if artefact == "full" else empty_artefact(task)
    async with Unlucky({1, 2, 3}) as pool:
        with pytest.raises(ArtefactError, match=NOT_GRADED) as caught:
            await Grader(pool, "process").grade(task, graded, split="test")
        assert "a bug that shows" in caught.value.fault
        assert pool.leases == 4


async def test_a_grader_that_fails_whatever_it_grades_is_a_broken_task(make_task: MakeTask) -> None:
    task = make_task(FAILS + SCORE)
    async with Unlucky({1, 2, 3, 4}) as pool:
        with pytest.raises(BrokenTaskError, match=r"a bug that shows.*mend the grader"):
            await Grader(pool, "process").grade(task, TWO, split="test")


async def test_a_grader_that_is_too_slow_whatever_it_grades_may_be_ours(
    make_task: MakeTask,
) -> None:
    """The machine may be overloaded: no reason to stop the run at once."""
    task = make_task("import time; time.sleep(60)", toml="[limits]\ngrade_seconds = 1\n")
    async with Pool(1) as pool:
        with pytest.raises(GradingError, match="ran past 1 s") as caught:
            await Grader(pool, "process").grade(task, TWO, split="val")
    assert not isinstance(caught.value, BrokenTaskError)


class Unprepared(Pool):
    """A pool in which boxes cannot be prepared."""

    @asynccontextmanager
    async def lease(self, spec: BoxSpec, *, snapshot: Snapshot | None = None) -> AsyncIterator[Box]:
        raise StagingError("setup.sh failed")
        yield


async def test_a_box_that_cannot_be_prepared_is_no_reason_to_mend_the_grader(
    make_task: MakeTask,
) -> None:
    async with Unprepared(1) as pool:
        with pytest.raises(GradingError, match=r"setup.sh failed") as caught:
            await Grader(pool, "process").grade(make_task(SCORE), TWO, split="val")
    assert not isinstance(caught.value, BrokenTaskError)


async def test_at_the_start_one_failure_on_an_empty_artefact_is_refused(
    make_task: MakeTask,
) -> None:
    task = make_task(FAILS + SCORE)
    async with Unlucky({1}) as pool:
        with pytest.raises(GradingError, match="on an empty artefact"):
            await Grader(pool, "process").check(task)


async def test_a_grade_anew_is_neither_remembered_nor_tried_twice(make_task: MakeTask) -> None:
    task = make_task(FAILS + SCORE)
    async with Unlucky({3}) as pool:
        grader = Grader(pool, "process")
        await grader.grade(task, TWO, split="val")
        assert not (await grader.grade_anew(task, TWO, split="val")).reused
        with pytest.raises(GradingError, match="a bug that shows"):
            await grader.grade_anew(task, TWO, split="val")
        with pytest.raises(ArtefactError, match="it is empty"):
            await grader.grade_anew(task, empty_artefact(task), split="val")
