"""The training that configurations are measured by, and configurations that are refused."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from air import paths, tasks
from air.tasks.data import prepare
from tests.unit.tasks.shipped.programs import grade, message, module, run, workspace

pytestmark = pytest.mark.slow

TASK = tasks.load("hyperparameters")
FOLDER = paths.shipped("tasks") / "hyperparameters"
TRAINING = module(FOLDER / "starter" / "training.py")
PLAIN = {
    "rate": 0.02,
    "decay": 0.95,
    "momentum": 0.5,
    "shrink": 1e-4,
    "scale": 0.5,
    "units": 4,
    "epochs": 3,
}


def config(place: Path, text: str | dict[str, Any]) -> Path:
    (place / "config.json").write_text(text if isinstance(text, str) else json.dumps(text))
    return place


def test_one_step_worked_out_by_hand() -> None:
    """Of two rows with targets 1 and -1 around mean 0, in one epoch, each moves only the bias, since
    hidden weights near nothing give h = 0: b = -0.5 * 0.1 * (0 - 1), then the second row's step with
    half of the first one's speed, in either order."""
    c = PLAIN | {"rate": 0.1, "scale": 0.01, "units": 1, "epochs": 1, "shrink": 1e-8}
    predict = TRAINING.fit(c, [[0.0], [0.0]], [1.0, -1.0])
    first = 0.5 * 0.1  # the speed, and the bias after one step
    second = first + 0.5 * first + 0.5 * 0.1 * (-1 - first)
    assert abs(predict([0.0])) == pytest.approx(abs(second), rel=0.02)


def test_the_score_is_the_error_on_the_hidden_rows_of_the_split(tmp_path: Path) -> None:
    data = prepare(TASK).grader / "data"
    rows, targets = TRAINING.table((data / "train.csv").read_text())
    assert (len(rows), len(rows[0])) == (240, 6)
    predict = TRAINING.fit(PLAIN, rows, targets)
    for split in ("val", "test"):
        hidden, truth = TRAINING.table((data / f"{split}.csv").read_text())
        error = sum((predict(x) - y) ** 2 for x, y in zip(hidden, truth, strict=True)) / 400
        said = grade(TASK, config(tmp_path, PLAIN), split=split)
        assert said == {"metrics": {"mse": pytest.approx(error)}}


def test_the_score_does_not_depend_on_the_graders_seed(tmp_path: Path) -> None:
    place = config(tmp_path, PLAIN)
    assert grade(TASK, place) == grade(TASK, place, seed=5)


def test_the_agent_has_the_training_rows_and_no_other() -> None:
    prepared = prepare(TASK)
    assert [file.name for file in (prepared.agent / "data").iterdir()] == ["train.csv"]
    shown = set((prepared.agent / "data" / "train.csv").read_text().splitlines()[1:])
    for split in ("val", "test"):
        hidden = (prepared.grader / "data" / f"{split}.csv").read_text().splitlines()[1:]
        assert len(hidden) == 400
        assert not shown & set(hidden)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no JSON"),
        ("[" * 5000, "no JSON"),
        (" " * 10_001, "larger than 10 kB"),
        ("[1, 2]", "expected exactly the names rate, decay"),
        ({}, "expected exactly the names"),
        (PLAIN | {"seed": 1}, "expected exactly the names"),
        (PLAIN | {"rate": "0.1"}, "rate is '0.1', expected a number 1e-05 to 1"),
        (PLAIN | {"rate": True}, "rate is True"),
        (PLAIN | {"rate": math.nan}, "rate is nan"),
        (PLAIN | {"scale": math.inf}, "scale is inf"),
        (PLAIN | {"scale": 1e-300}, "scale is 1e-300, expected a number 0.01 to 10"),
        (PLAIN | {"units": 10**400}, "units is 1000"),
        (PLAIN | {"units": 4.0}, "units is 4.0, expected a whole number 1 to 32"),
        (PLAIN | {"epochs": 0}, "epochs is 0"),
        (PLAIN | {"units": 21, "epochs": 20}, "over the budget of 400"),
        (PLAIN | {"rate": 1, "scale": 10, "momentum": 0.0, "decay": 1, "units": 32, "epochs": 12},
         "the training diverged"),
    ],
)  # fmt: skip
def test_what_is_no_configuration_is_refused(
    tmp_path: Path, text: str | dict[str, Any], said: str
) -> None:
    found = message(TASK, config(tmp_path, text))
    assert re.search(said, found), found


def test_a_search_finds_better_than_the_guess(tmp_path: Path) -> None:
    place = workspace(TASK, tmp_path)
    errors = []
    for line in ("method=1 level=1", "method=4 level=1"):
        (place / "config").write_text(line)
        assert run(place, "solve.py").returncode == 0
        errors.append(grade(TASK, place)["metrics"]["mse"])
    assert errors[1] < errors[0] / 3
