"""The shipped tasks' own programs, run as they are: starters, graders, and what the options are worth."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from air import tasks
from air.rewards.normalise import phi_on
from air.tasks.check import read_solvers
from air.tasks.data import prepare
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

NAMES = ["titanic", "digits", "prisonersDilemma"]
COMBINATIONS = [(method, level) for method in (1, 2, 3, 4) for level in (1, 2, 3, 4)]


@pytest.fixture(scope="module", autouse=True)
def _shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Data is prepared once in a test run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIR_CACHE", str(once.cache(tmp_path_factory)))
        yield


@pytest.fixture
def cache() -> None:
    """No cache of its own for each test of this file."""


@pytest.mark.parametrize("name", NAMES)
def test_the_starter_scores_the_declared_baseline(name: str, tmp_path: Path) -> None:
    task = tasks.load(name)
    place = workspace(task, tmp_path)
    assert run(place, "solve.py").returncode == 0
    assert grade(task, place)["metrics"][task.metric] == pytest.approx(task.baseline)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("config", "said"), BAD_CONFIGS)
def test_a_bad_config_is_explained(
    name: str, tmp_path: Path, config: str | None, said: str
) -> None:
    assert said in config_error(tasks.load(name), tmp_path, config)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must begin with the line id,survived"),
        ("id,digit\n1,0\n", "must begin with the line id,survived"),
        ("id,survived\n", "lacks 300 of the 300 val ids"),
        ("id,survived\n1,yes\n", "line 2: 'yes', expected 0 or 1"),
        ("id,survived\n1,0,0\n", "line 2: 3 cells"),
        ("id,survived\n1,0\n\n1,1\n", "line 4: id '1' is there twice"),
        ("id,survived\n\xff", "cannot"),
        ("\x00", "must begin"),
    ],
)
def test_a_bad_submission_is_explained(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "submission.csv").write_bytes(text.encode("latin-1"))
    refusal = message(tasks.load("titanic"), tmp_path)
    assert said in refusal or "not readable" in refusal


def test_perfect_and_opposite_submissions(tmp_path: Path) -> None:
    """The answers themselves score 1, their opposites 0; a byte-order mark and CRLF do no harm."""
    task = tasks.load("titanic")
    answers = (prepare(task).grader / "data" / "val.csv").read_text().split()
    flipped = [f"{row[:-1]}{1 - int(row[-1])}" for row in answers[1:]]
    for lines, score in ((answers, 1.0), ([answers[0], *flipped], 0.0)):
        (tmp_path / "submission.csv").write_text("\ufeff" + "\r\n".join(lines), newline="")
        assert grade(task, tmp_path) == {"metrics": {"accuracy": score}}


def test_practice_plays_what_solve_wrote(tmp_path: Path) -> None:
    place = workspace(tasks.load("prisonersDilemma"), tmp_path)
    (place / "config").write_text("method=2 level=1")
    assert run(place, "solve.py").returncode == 0
    command = [sys.executable, "practice.py"]
    result = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True)
    assert "tit for tat: 3.00" in result.stdout


@pytest.mark.parametrize("name", NAMES)
def test_solvers_are_recorded_worst_first(name: str) -> None:
    solvers = read_solvers(tasks.load(name))
    assert [s.name for s in solvers] == ["baseline", "middle", "good"]
    assert [s.val for s in solvers] == sorted(s.val for s in solvers)


@pytest.mark.full
def test_a_policy_has_something_to_learn_and_must_look_at_the_task(tmp_path: Path) -> None:
    """Over the 16 settings φ spreads widely, and each task has another best one."""
    best = set()
    for name in NAMES:
        task = tasks.load(name)
        place = workspace(task, tmp_path / name)
        phis = {}
        for method, level in COMBINATIONS:
            (place / "config").write_text(f"method={method} level={level}\n")
            assert run(place, "solve.py").returncode == 0
            phis[method, level] = phi_on(task, grade(task, place)["metrics"][task.metric])
        values = list(phis.values())
        assert 0.2 <= statistics.mean(values) <= 0.5, (name, phis)
        assert statistics.pstdev(values) >= 0.3, (name, phis)
        assert 0.95 <= max(values) <= 1.1, (name, phis)
        best.add(max(phis, key=lambda setting: phis[setting]))
    assert len(best) == len(NAMES)


PLAYED = [name for name in tasks.available() if tasks.load(name).trust == "code"]


@pytest.mark.parametrize("name", [name for name in PLAYED if not tasks.load(name).data.downloads])
def test_the_luck_of_agent_code_says_nothing_of_what_is_hidden(name: str, tmp_path: Path) -> None:
    """Code that is loaded and not asked yet finds the same numbers, and the same hashes of text, in every
    split of every seed."""
    task = tasks.load(name)
    spy = (
        "import random, sys\nframe, found = sys._getframe(), []\nwhile frame:\n"
        "    found.append(str(frame.f_locals.get('settings')))\n    frame = frame.f_back\n"
        "raise ValueError(hash(str((random.getstate(), found))))\n"
    )
    (tmp_path / task.artefact).write_text(spy)
    texts = {
        grade(task, tmp_path, split, split_seed=seed)["message"]
        for split, seed in (("val", 1912), ("test", 1912), ("val", 5))
    }
    assert len(texts) == 1
    assert "ValueError: " in texts.pop()
