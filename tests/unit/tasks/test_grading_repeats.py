"""Grading one artefact repeatedly, in real process boxes; and the arithmetic by hand."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

import pytest

from air.errors import ArtefactError, ConfigError, GradingError
from air.sandbox.pool.box_pool import Pool
from air.tasks.artefact import Artefact
from air.tasks.grading import Grade, Grader, averaged
from tests.unit.tasks.conftest import SCORE, MakeTask

TWO = Artefact({"answer.txt": b"2"})
BY_SEED = 'end(0, json.dumps({"metrics": {"score": float(given) + int(args.seed), "other": 3}}))'
"""A grader whose luck is its seed."""


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    async with Pool(2) as pool:
        yield pool


@pytest.fixture
def grader(pool: Pool) -> Grader:
    return Grader(pool, "process")


def grade(score: float, *, reused: bool = False, **metrics: float) -> Grade:
    return Grade(score, {"score": score, **metrics}, seconds=0.5, reused=reused)


def test_the_mean_and_its_standard_error_by_hand() -> None:
    """1, 2, 3, 6: mean 3, Σ(x − 3)² = 4 + 1 + 0 + 9 = 14, s² = 14/3, s/√4 = √(14/12)."""
    found = averaged([grade(s, other=s / 2) for s in (1.0, 2.0, 3.0, 6.0)])
    assert found.score == 3.0
    assert found.metrics == {"score": 3.0, "other": 1.5}
    assert found.stderr == pytest.approx(math.sqrt(14 / 12))
    assert found.seconds == 2.0
    assert averaged([grade(s) for s in (4.0, 4.0)]).stderr == 0.0


def test_a_metric_that_one_lacks_is_left_out_and_all_must_be_remembered() -> None:
    known = grade(1.0, reused=True, other=1.0)
    found = averaged([known, grade(3.0)])
    assert found.metrics == {"score": 2.0}
    assert not found.reused
    assert averaged([known, known]).reused


async def test_scores_whose_mean_no_number_can_hold_are_the_artefacts_fault(
    grader: Grader, make_task: MakeTask
) -> None:
    """1e308 + 1e308 overflows. An artefact can bring it about, so it is no failure of ours."""
    huge = 'end(0, json.dumps({"metrics": {"score": 1e308}}))'
    task = make_task(grade=huge, toml="[grader]\nrepeats = 2\n")
    with pytest.raises(ArtefactError) as caught:
        await grader.grade(task, TWO, split="val")
    assert "mean" in caught.value.fault


def test_of_a_single_grade_nothing_is_known_of_its_error() -> None:
    only = grade(1.0)
    assert averaged([only]) is only
    assert only.stderr is None
    with pytest.raises(ValueError, match="no grades"):
        averaged([])


async def test_every_time_has_a_seed_and_a_box_of_its_own(
    make_task: MakeTask, pool: Pool, grader: Grader
) -> None:
    """Seeds 0, 1, 2, then for the next seed 3, 4, 5."""
    task = make_task(BY_SEED, toml="[grader]\nrepeats = 3\n")
    first = await grader.grade(task, TWO, split="val")
    assert (first.score, first.metrics) == (3.0, {"score": 3.0, "other": 3.0})
    assert first.stderr == pytest.approx(1 / math.sqrt(3))
    assert (first.reused, pool.stats.started) == (False, 3)
    again = await Grader(pool, "process").grade(task, TWO, split="val")
    assert (again.score, again.stderr) == (first.score, first.stderr)
    assert (again.reused, again.seconds, pool.stats.started) == (True, 0.0, 3)
    assert (await grader.grade(task, TWO, split="val", seed=1)).score == 6.0


async def test_without_repeats_an_artefact_is_graded_once(
    make_task: MakeTask, pool: Pool, grader: Grader
) -> None:
    found = await grader.grade(make_task(), TWO, split="val")
    assert (found.score, found.stderr, pool.stats.started) == (2.0, None, 1)


@pytest.mark.parametrize(
    ("luck", "error", "said"),
    [
        ('end(3, json.dumps({"message": "crashed under seed 1"}))', ArtefactError, "under seed 1"),
        ("sys.exit(7)", GradingError, "exit 7"),
    ],
)
async def test_bad_luck_at_one_of_the_times_is_no_mean_of_the_others(
    make_task: MakeTask, grader: Grader, luck: str, error: type[Exception], said: str
) -> None:
    task = make_task(f"if args.seed == '1':\n    {luck}\n{SCORE}", toml="[grader]\nrepeats = 3\n")
    with pytest.raises(error, match=said):
        await grader.grade(task, TWO, split="val")


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("noise_sigmas = 2.0\n", "noise_sigmas needs grader.repeats = 2 or more"),
        ("noise_sigmas = -1.0\n[grader]\nrepeats = 2\n", "`noise_sigmas`"),
        ("[grader]\nrepeats = 0\n", "`grader.repeats`"),
        ("[grader]\nrepeats = 1000\n", "`grader.repeats`"),
    ],
)
def test_what_cannot_be_measured_is_refused(make_task: MakeTask, toml: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        make_task(toml=toml)
    assert "\n" not in str(caught.value)
