"""The bug hunt: how the networks that train.py returns are measured, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from air import paths, tasks
from air.tasks.check import read_solvers
from air.tasks.data import prepare
from tests.unit.tasks.shipped.programs import grade, message, module, run, workspace

pytestmark = pytest.mark.slow

TASK = tasks.load("bugHunt")
FOLDER = paths.shipped("tasks") / "bugHunt"
ZERO = {
    "mean": [0] * 6,
    "scale": [1] * 6,
    "hidden": [[0] * 7] * 12,
    "output": [[0] * 13] * 4,
}
"""A network that always answers the first class."""


def returning(place: Path, model: dict[str, Any] | str) -> Path:
    (place / "train.py").write_text(f"def train(rows, labels):\n    return {model}\n")
    return place


def hidden(split: str) -> list[dict[str, Any]]:
    text = (prepare(TASK).grader / "data" / f"{split}.json").read_text()
    found: list[dict[str, Any]] = json.loads(text)
    return found


@pytest.mark.parametrize("split", ["val", "test"])
@pytest.mark.parametrize("label", [0, 3])
def test_a_constant_answer_is_right_where_the_label_is_that(
    tmp_path: Path, split: str, label: int
) -> None:
    output = [[0] * 12 + [int(k == label)] for k in range(4)]
    shares = [one["check"]["labels"].count(label) / 500 for one in hidden(split)]
    said = grade(TASK, returning(tmp_path, ZERO | {"output": output}), split=split)["metrics"]
    assert said["accuracy"] == pytest.approx(sum(shares) / 2)
    assert said["worst_problem"] == pytest.approx(min(shares))


def test_one_unit_worked_out_by_hand(tmp_path: Path) -> None:
    """The first unit sees (x1 - mean) / scale - 1; class 1 is answered where that is positive."""
    model = ZERO | {
        "mean": [0.25, *[0] * 5],
        "scale": [2, *[1] * 5],
        "hidden": [[3, *[0] * 5, -3], *[[0] * 7] * 11],
        "output": [[0] * 13, [5, *[0] * 12], [0] * 12 + [-9], [0] * 12 + [-9]],
    }
    right = [
        label == int((row[0] - 0.25) / 2 > 1)
        for one in hidden("val")
        for row, label in zip(one["check"]["rows"], one["check"]["labels"], strict=True)
    ]
    said = grade(TASK, returning(tmp_path, model))["metrics"]
    assert said["accuracy"] == pytest.approx(sum(right) / 1000)


def test_problems_differ_and_come_from_the_seed(tmp_path: Path) -> None:
    draw = module(FOLDER / "data.py").prepare
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        for kind in ("agent", "grader"):
            (tmp_path / name / kind).mkdir(parents=True)
        draw(tmp_path / name / "agent", tmp_path / name / "grader", seed)
    for file in ("agent/train.csv", "agent/check.csv", "grader/val.json", "grader/test.json"):
        first, again, other = ((tmp_path / name / file).read_bytes() for name in "abc")
        assert first == again != other
    sets = [one[part]["rows"] for split in ("val", "test") for one in hidden(split) for part in one]
    assert [len(rows) for rows in sets] == [400, 500] * 4
    shown = (prepare(TASK).agent / "data" / "train.csv").read_text()
    firsts = [",".join(map(str, rows[0])) for rows in sets]
    assert len({*firsts}) == 8
    assert not any(first in shown for first in firsts)


def test_the_graded_program_is_shown_no_row_that_counts(tmp_path: Path) -> None:
    """What it is given are the training rows alone, and nothing of another problem is left."""
    source = (
        "seen = []\n\n\ndef train(*given):\n    seen.append(given)\n"
        "    assert len(seen) == 1 and len(given) == 2, 'more was given'\n"
        "    assert [len(x) for x in given] == [400, 400], 'other rows were given'\n"
        f"    return {ZERO}\n"
    )
    (tmp_path / "train.py").write_text(source)
    assert "metrics" in grade(TASK, tmp_path)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("None", "returned no dict"),
        ("[1]", "returned no dict"),
        ("{}", "a mean without 6 numbers"),
        (ZERO | {"mean": [0] * 7}, "a mean without 6 numbers"),
        (ZERO | {"scale": [1] * 5 + [0]}, "a scale of 0"),
        (ZERO | {"scale": [1] * 5 + [1e10]}, r"a number in scale that is not within ±1e\+09"),
        (ZERO | {"scale": [1] * 5 + [-(10**400)]}, "a number in scale that is not within"),
        (ZERO | {"scale": [1] * 5 + [True]}, "returned a bool in scale"),
        (ZERO | {"scale": [1] * 5 + ["1"]}, "returned a str in scale"),
        (ZERO | {"hidden": [[0] * 7] * 13}, "a hidden that is no list of 12 lists"),
        (ZERO | {"hidden": [[0] * 8] * 12}, "a hidden without 7 numbers"),
        (ZERO | {"output": [[0] * 13] * 5}, "an? output that is no list of 4 lists"),
        (ZERO | {"output": 7}, "an? output that is no list of 4 lists"),
        ("float('nan')", "returned NaN"),
        ("{'mean': [float('inf')] * 6}", "returned Infinity"),
    ],
)
def test_what_is_no_network_is_refused(
    tmp_path: Path, model: dict[str, Any] | str, said: str
) -> None:
    text = message(TASK, returning(tmp_path, model))
    assert re.search(said, text), text


def test_numbers_at_the_edge_are_computed_with(tmp_path: Path) -> None:
    edge = {"mean": [-1e9] * 6, "scale": [5e-324] * 6, "hidden": [[1e9] * 7, *[[-1e9] * 7] * 11]}
    assert 0 <= grade(TASK, returning(tmp_path, ZERO | edge))["metrics"]["accuracy"] <= 1


def test_equal_files_score_equally_also_by_chance(tmp_path: Path) -> None:
    source = (
        "import random\n\n\ndef train(rows, labels):\n"
        "    unit = lambda n: [random.gauss(0, 1) for _ in range(n)]\n"
        "    many = lambda m, n: [unit(n) for _ in range(m)]\n"
        "    return dict(mean=unit(6), scale=unit(6), hidden=many(12, 7), output=many(4, 13))\n"
    )
    (tmp_path / "train.py").write_text(source)
    assert grade(TASK, tmp_path) == grade(TASK, tmp_path) != grade(TASK, tmp_path, seed=9)


def test_mending_changes_only_what_is_wrong_and_helps_on_the_agents_problem(tmp_path: Path) -> None:
    place = workspace(TASK, tmp_path)
    before = (place / "train.py").read_text().splitlines()
    shown = run(place, "check.py").stdout
    good = read_solvers(TASK)[-1].script.replace("python3 check.py", "true")
    subprocess.run(["bash", "-euc", good], cwd=place, check=True)
    after = (place / "train.py").read_text().splitlines()
    assert len(after) == len(before)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 6
    better = run(place, "check.py").stdout
    assert float(shown.split()[-1]) < 0.6 < 0.85 < float(better.split()[-1])
