"""The tasks of a real checkout, which `AIR_MLGYM_ROOT` names. No part of continuous integration.

    AIR_MLGYM_ROOT=… pytest tests/mlgym

The tests need the images `air-base`, `air-mlgym` and `air-mlgym-jax`: the last ones play in containers.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from air import tasks
from air.cli.main import main
from air.errors import ArtefactError
from air.sandbox.pool.box_pool import Pool
from air.tasks.artefact import Artefact
from air.tasks.data import prepare
from air.tasks.files import folder_hash, walk
from air.tasks.grading import Grader
from air.tasks.sources.mlgym import Checkout
from air.tasks.sources.mlgym.config import read_task
from air.tasks.sources.mlgym.table import read_table

pytestmark = pytest.mark.mlgym

PLAYED = {
    "battleOfSexes": 3,
    "prisonersDilemma": 3,
    "blotto": 3,
    "titanic": 3,
    "regressionKaggleHousePrice": 3,
    "regressionKaggleHousePriceL1": 2,
    "3SATTime": 3,
}
"""How many solvers are recorded for each task."""
HOUSE_DATA = ("data/test.csv", "data/train.csv", "data/validation.csv")
RL = (
    "rlBreakoutMinAtar",
    "rlMetaMaze",
    "rlMountainCarContinuous",
    "rlMountainCarContinuousReinforce",
)
READY = {*PLAYED, *RL}
MISSING = {
    "imageCaptioningCOCO": "data/imageCaptioningCOCO/data",
    "regressionHousePrice": "housePrice.yaml",
    "regressionHousingPrice": "housingPrice.yaml",
}
NEEDS = {
    "imageClassificationCifar10": "air tasks fetch mlgym:imageClassificationCifar10",
    "imageClassificationCifar10L1": "air tasks fetch mlgym:imageClassificationCifar10L1",
    "imageClassificationFMnist": "air tasks fetch mlgym:imageClassificationFMnist",
    "languageModelingFineWeb": "air tasks fetch mlgym:languageModelingFineWeb",
    "naturalLanguageInferenceMNLI": "2 gpu (here: 0)",
}


@pytest.fixture(scope="module")
def root() -> Path:
    return Path(os.environ["AIR_MLGYM_ROOT"])


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIR_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("AIR_GPU_INVENTORY", "none")
        yield


def test_every_config_has_its_state(root: Path) -> None:
    checkout = Checkout(root)
    found = {name: checkout.status(name) for name in checkout.names()}
    assert {name for name, status in found.items() if status.state == "ready"} == READY
    assert set(found) == READY | set(MISSING) | set(NEEDS)
    for state, expected in (("missing", MISSING), ("needs", NEEDS)):
        for name, reason in expected.items():
            assert found[name].state == state
            assert reason in found[name].reason


def test_baselines_agree_with_the_configs(root: Path) -> None:
    """The table's are rounded. One config states a run that diverged, another a time and no decisions."""
    for name, entry in read_table(Path("/nowhere")).items():
        stated = {k.lower(): v for k, v in read_task(root, name).baseline_scores[0].items()}
        if name == "3SATTime":
            assert (entry.own_baseline, "decisions" in stated) == (True, False)
            continue
        score = stated[entry.metric.lower()]
        if name == "rlMountainCarContinuousReinforce":
            assert (entry.own_baseline, score < -1e6) == (True, True)
        else:
            assert entry.baseline == pytest.approx(score, abs=1e-3, rel=1e-4)


def test_time_limits_are_the_configs(root: Path) -> None:
    for name, seconds in {
        "titanic": 3600,
        "blotto": 1800,
        "naturalLanguageInferenceMNLI": 2400,
    }.items():
        assert tasks.load(f"mlgym:{name}").limits.exec_seconds == seconds


@pytest.mark.parametrize(
    ("name", "answers", "shown"),
    [
        ("titanic", "ground_truth.csv", ["data/test.csv", "data/train.csv", "evaluate.py"]),
        (
            "regressionKaggleHousePrice",
            "answer.csv",
            ["baseline.py", *HOUSE_DATA, "evaluate.py"],
        ),
    ],
)
def test_answers_stay_with_the_grader(
    root: Path, name: str, answers: str, shown: list[str]
) -> None:
    before = folder_hash(root / "data"), folder_hash(root / "configs")
    prepared = prepare(tasks.load(f"mlgym:{name}"))
    assert (prepared.grader / "mlgym" / "data" / answers).is_file()
    found = [file.relative_to(prepared.agent).as_posix() for file in walk(prepared.agent)]
    assert sorted(found) == shown
    assert (folder_hash(root / "data"), folder_hash(root / "configs")) == before


def test_known_scores_are_measured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From another working directory; what is known of them stands in the solvers' files."""
    monkeypatch.chdir(tmp_path)
    assert main(["tasks", "check", *(f"mlgym:{name}" for name in PLAYED)]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.count(" ok\n") == sum(PLAYED.values())


@pytest.fixture
async def grader() -> AsyncIterator[Grader]:
    async with Pool(1) as pool:
        yield Grader(pool, "docker")


TRICKS = {
    "battleOfSexes": 'print("{\\"Score\\": 2.0}", flush=True); os._exit(0)',
    "prisonersDilemma": "history[:] = [(1, 0)] * 10; os._exit(0)",
    "blotto": "return [10 ** 6] * 6",
}


@pytest.mark.parametrize("name", TRICKS)
async def test_tricks_that_score_upstream_earn_nothing(grader: Grader, name: str) -> None:
    source = f"import os\ndef row_strategy(history):\n    {TRICKS[name]}\n"
    with pytest.raises(ArtefactError, match=r"ended before it was done|must not exceed"):
        await grader.grade(
            tasks.load(f"mlgym:{name}"), Artefact({"strategy.py": source.encode()}), split="val"
        )


async def test_the_past_cannot_be_rewritten(grader: Grader) -> None:
    """In MLGym's own process this list is the evaluation's, and counts."""
    source = b"def row_strategy(history):\n    history[:] = [(0, 0)] * len(history)\n    return 1\n"
    task = tasks.load("mlgym:battleOfSexes")
    found = await grader.grade(task, Artefact({"strategy.py": source}), split="val")
    assert found.score < 1


async def test_a_heuristic_cannot_change_the_solver(grader: Grader) -> None:
    """In MLGym's own process these are the evaluation's clock and solver, and the solver's formula."""
    source = (
        b"import time\ntime.time = lambda: 0.0\n"
        b"from solver import DPLL\nDPLL.solve = lambda self: True\n"
        b"def heuristic_fn(clauses, assignments, conflict_count, assignment_history, level):\n"
        b"    free = {abs(x) for c in clauses for x in c} - assignments.keys()\n"
        b"    clauses.clear()\n"
        b"    return (min(free), True) if free else (None, True)\n"
    )
    task = tasks.load("mlgym:3SATTime")
    found = await grader.grade(task, Artefact({"heuristic.py": source}), split="val")
    assert found.metrics["Correct"] == 24_000
    assert found.score == found.metrics["Decisions"] > 24_000
    assert found.metrics["Time"] > 1
