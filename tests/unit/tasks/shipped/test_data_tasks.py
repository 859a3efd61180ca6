"""The shipped data tasks' own programs, run as they are: starters, graders, and what graders refuse."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from air import tasks
from air.tasks.check import read_solvers
from air.tasks.data import prepare
from air.tasks.spec import TaskSpec
from air.tasks.splits import numbered
from tests import once
from tests.unit.tasks.shipped.programs import (
    BAD_CONFIGS,
    config_error,
    grade,
    message,
    run,
    workspace,
)

pytestmark = pytest.mark.slow

NUMBERS = {"amesHousing": "price", "forecasting": "employed", "recommendation": "rating"}
"""Tasks whose submission holds numbers, and the name of their column."""
LABELS = {"foodReviews": "great"}
"""Tasks whose submission holds 0 and 1, and the name of their column."""
TABLES = NUMBERS | LABELS
"""Tasks whose submission is a table."""
NAMES = [*TABLES, "languageModel"]


@pytest.fixture(scope="module", autouse=True)
def _shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Data is prepared once in a test run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIR_CACHE", str(once.cache(tmp_path_factory)))
        yield


@pytest.fixture
def cache() -> None:
    """No cache of its own for each test of this file."""


def score(task: TaskSpec, place: Path, split: str = "val") -> float:
    found = grade(task, place, split)
    assert "metrics" in found, found
    return float(found["metrics"][task.metric])


def refusal(task: TaskSpec, place: Path, text: str) -> str:
    """What the grader says of a submission that it does not take."""
    (place / task.artefact).write_bytes(text.encode("latin-1"))
    return message(task, place)


def answers(task: TaskSpec, split: str = "val") -> list[str]:
    """The lines of the grader's table of answers, its header first."""
    return (prepare(task).grader / "data" / f"{split}.csv").read_text().splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_the_starter_scores_the_declared_baseline(name: str, tmp_path: Path) -> None:
    task = tasks.load(name)
    place = workspace(task, tmp_path)
    result = run(place, "solve.py")
    assert result.returncode == 0, result.stderr
    assert score(task, place) == pytest.approx(task.baseline, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("config", "said"), BAD_CONFIGS)
def test_a_bad_config_is_explained(
    name: str, tmp_path: Path, config: str | None, said: str
) -> None:
    assert said in config_error(tasks.load(name), tmp_path, config)


@pytest.mark.parametrize("name", NAMES)
def test_solvers_are_recorded_worst_first(name: str) -> None:
    task = tasks.load(name)
    solvers = read_solvers(task)
    assert solvers[0].name == "baseline"
    assert solvers[-1].name == "good"
    assert "middle" in [s.name for s in solvers]
    sign = 1 if task.direction == "higher" else -1
    values = [sign * s.val for s in solvers]
    assert values == sorted(set(values))


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("split", ["val", "test"])
def test_answers_are_shown_nowhere_and_score_best(name: str, split: str, tmp_path: Path) -> None:
    """The agent sees each id of the split, in another table, without the column to predict."""
    task = tasks.load(name)
    agent = prepare(task).agent
    shown = (agent / "data" / f"{split}.csv").read_text().splitlines()
    assert TABLES[name] not in shown[0].split(",")
    hidden = answers(task, split)
    assert [row.partition(",")[0] for row in hidden] == [row.partition(",")[0] for row in shown]
    (tmp_path / task.artefact).write_text("\ufeff" + "\r\n".join(hidden), newline="")
    best = score(task, tmp_path, split)
    assert best == (1.0 if task.direction == "higher" else 0.0)


@pytest.mark.parametrize("name", TABLES)
def test_a_submission_that_cannot_be_graded_is_explained(name: str, tmp_path: Path) -> None:
    task = tasks.load(name)
    header, first, *rest = answers(task)
    column = TABLES[name]
    begin = f"must begin with the line id,{column}"
    every = "\n".join([header, first, *rest])
    for text, said in {
        "": begin,
        every.replace(header, f"{column},id", 1): begin,
        f"{header}\n": f"lacks {len(rest) + 1} of the {len(rest) + 1}",
        "\n".join([header, *rest]): f"lacks 1 of the {len(rest) + 1}",
        f"{every}\n{first}": "is there twice",
        f"{header}\n{first},0": "line 2: 3 cells, expected 2",
        f"{header}\n\xff": "not readable",
    }.items():
        assert said in refusal(task, tmp_path, text), text[:80]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e400", "", "a house", "-1e12", "0x10"])
def test_what_is_no_number_in_the_range_is_refused(name: str, value: str, tmp_path: Path) -> None:
    task = tasks.load(name)
    header, first, *rest = answers(task)
    changed = f"{first.partition(',')[0]},{value}"
    said = refusal(task, tmp_path, "\n".join([header, changed, *rest]))
    assert "line 2:" in said
    assert "expected a number from" in said


@pytest.mark.parametrize("name", TABLES)
def test_another_seed_is_another_split_and_the_same_seed_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tasks.load(name)
    first = prepare(task).digest
    assert prepare(task.on(numbered(7))).digest != first
    monkeypatch.setenv("AIR_CACHE", str(tmp_path))
    assert prepare(task).digest == first


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("value", ["", "2", "nan", "0.5", "yes", "-1", "١"])
def test_what_is_no_label_is_refused(name: str, value: str, tmp_path: Path) -> None:
    task = tasks.load(name)
    header, first, *rest = answers(task)
    changed = f"{first.partition(',')[0]},{value}"
    place = tmp_path / task.artefact
    place.write_text("\n".join([header, changed, *rest]), encoding="utf-8")
    said = message(task, tmp_path)
    assert "line 2:" in said
    assert "expected 0 or 1" in said


def test_no_review_is_in_two_splits() -> None:
    data = prepare(tasks.load("foodReviews")).agent / "data"
    texts = []
    for split in ("train", "val", "test"):
        with (data / f"{split}.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        texts.append({"".join(c for c in row["text"].lower() if c.isalnum()) for row in rows})
        assert len(texts[-1]) == len(rows) >= 1000
    assert not texts[0] & texts[1] | texts[0] & texts[2] | texts[1] & texts[2]


def test_the_metrics_of_house_prices_are_those_of_their_formulas(tmp_path: Path) -> None:
    """All prices e times too high: the log is off by 1 everywhere."""
    task = tasks.load("amesHousing")
    header, *rows = answers(task)
    prices = {row.partition(",")[0]: float(row.partition(",")[2]) for row in rows}
    mean = sum(prices.values()) / len(prices)
    for predicted, expected in (
        ({row: price * 2.718281828459045 for row, price in prices.items()}, ("rmse_log", 1.0)),
        (dict.fromkeys(prices, mean), ("r2", 0.0)),
    ):
        lines = [header, *(f"{row},{value!r}" for row, value in predicted.items())]
        (tmp_path / "submission.csv").write_text("\n".join(lines))
        said = grade(task, tmp_path)
        assert said["metrics"][expected[0]] == pytest.approx(expected[1], abs=1e-9)


def test_forecasts_are_scaled_by_the_change_over_a_year_of_their_own_series(tmp_path: Path) -> None:
    """A forecast that is off by one such change everywhere scores 1."""
    task = tasks.load("forecasting")
    known: dict[str, list[float]] = {}
    for row in (prepare(task).agent / "data" / "train.csv").read_text().splitlines()[1:]:
        series, _, _, value = row.split(",")
        known.setdefault(series, []).append(float(value))
    change = {
        series: sum(abs(b - a) for a, b in zip(values, values[12:], strict=False)) / 168
        for series, values in known.items()
    }
    lines = ["id,employed"]
    for row in answers(task)[1:]:
        name, value = row.split(",")
        lines.append(f"{name},{float(value) + change[name.partition('-')[0]]!r}")
    (tmp_path / "submission.csv").write_text("\n".join(lines))
    said = grade(task, tmp_path)
    assert said["metrics"] == pytest.approx({"mase": 1.0, "mase_late": 1.0})


@pytest.mark.parametrize("seed", [1912, 7])
def test_nothing_after_the_cut_is_shown_of_any_series(seed: int) -> None:
    data = prepare(tasks.load("forecasting").on(numbered(seed))).agent / "data"
    rows = [row.split(",") for row in (data / "train.csv").read_text().splitlines()[1:]]
    times: dict[str, list[int]] = {}
    for series, t, month, _ in rows:
        assert (int(month) - int(rows[0][2])) % 12 == (int(t) - 1) % 12
        times.setdefault(series, []).append(int(t))
    assert set(map(tuple, times.values())) == {tuple(range(1, 181))}
    halves = [
        {row.split(",")[1] for row in (data / f"{split}.csv").read_text().splitlines()[1:]}
        for split in ("val", "test")
    ]
    assert not halves[0] & halves[1]
    assert halves[0] | halves[1] == set(times)


def test_the_metrics_of_ratings_are_those_of_their_formulas(tmp_path: Path) -> None:
    """Every prediction half a star too high."""
    task = tasks.load("recommendation")
    lines = ["id,rating"]
    for row in answers(task)[1:]:
        name, rating = row.split(",")
        lines.append(f"{name},{float(rating) + 0.5}")
    (tmp_path / "submission.csv").write_text("\n".join(lines))
    said = grade(task, tmp_path)
    assert said["metrics"] == pytest.approx({"rmse": 0.5, "mae": 0.5})


def test_users_and_movies_are_numbered_anew() -> None:
    """With the published numbers in their order, the first ratings of the source would tell."""
    tables = []
    for seed in (1912, 7):
        text = (
            prepare(tasks.load("recommendation").on(numbered(seed))).agent / "data" / "movies.csv"
        ).read_text()
        tables.append([row.partition(",")[2] for row in text.splitlines()[1:]])
    assert sorted(tables[0]) == sorted(tables[1])
    assert tables[0] != tables[1]
