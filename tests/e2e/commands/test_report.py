"""`air report` on runs that scripted agents really played in process boxes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from air.cli.main import main
from air.rewards.normalise import phi_on
from air.tasks import load
from air.train.evaluation.scripted_agent import demonstrate
from air.train.loop.rollout import Rollout
from air.trajectories.run_comparison import read_run
from tests.e2e.commands.test_commands import bad, command

TASKS = ["titanic", "prisonersDilemma"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def played(folder: Path) -> list[Rollout]:
    """Two recorded runs, `first` and `second`; the episodes of the first."""

    async def both() -> list[Rollout]:
        first, second = (folder / name / "trajectories" for name in ("first", "second"))
        await demonstrate(["titanic"], 2, second, seed=5, runtime="subprocess")
        return await demonstrate(TASKS, 3, first, seed=1, runtime="subprocess")

    return asyncio.run(both())


def test_recorded_runs_are_reported_as_they_were_played(
    played: list[Rollout], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(folder / name) for name in ("first", "second")]
    assert main(["report", *runs, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    for name in TASKS:
        mine = [r for r in played if r.task == name]
        found = {
            view: next(r for r in rows if (r["task"], r["method"]) == (name, "first"))
            for view, rows in report["rows"].items()
        }
        for view, metric in (("best_attempt", "best_score"), ("last_submission", "score")):
            scores = [r.metric(metric) for r in mine]
            assert found[view]["n"] == found[view]["scored"] == 3
            assert found[view]["mean"] == pytest.approx(sum(scores) / 3)  # type: ignore[arg-type]
            assert found[view]["best"] == max(scores)  # type: ignore[type-var]
        tests = [r.metric("test_score") for r in mine]
        assert found["last_submission"]["test"] == pytest.approx(sum(tests) / 3)  # type: ignore[arg-type]
        assert report["tasks"][name]["baseline"] == load(name).baseline
    first, second = report["runs"]
    assert first["episodes"] == {"well": 6, "failed": 0, "unfinished": 0}
    assert second["episodes"]["well"] == 2
    assert sum(first["terms"].values()) == pytest.approx(sum(r.reward for r in played) / 6)
    for view in report["profiles"].values():
        assert set(view["aup"]) == {"first", "second", "baseline"}
        assert len(view["tau"]) == len(view["rho"]["first"]) == 500
        assert "second" in view["ratios"]["prisonersDilemma"]["infeasible"]
    check_text(runs, capsys)


def check_text(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *runs, "--last", "2"]) == 0
    out = capsys.readouterr().out
    for words in ("best attempt", "last submission", "AUP", "accuracy ↑", "in process boxes"):
        assert words in out
    assert "…" not in out  # no number is cut
    assert "second: has no episode of prisonersDilemma" in out
    assert "methods have from" not in out  # two each


def test_what_an_episode_records_is_enough_to_pay_it_again(
    played: list[Rollout], folder: Path
) -> None:
    for one in read_run(folder / "first").outcomes:
        assert one.start is not None
        assert one.last is not None
        delta = phi_on(load(one.start.task), one.last)
        assert one.terms["delta"] == pytest.approx(delta)
        assert one.reward == pytest.approx(sum(one.terms.values()))


def test_a_bad_run_is_one_line_and_the_others_are_reported(
    played: list[Rollout], folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "a.jsonl").write_text("[]\n")
    good = folder / "second"
    mixed = command("air", "report", tmp_path / "torn", good, good, "nowhere", cwd=tmp_path)
    assert mixed.returncode == 2
    lines = mixed.stderr.strip().splitlines()
    assert [line.split(":")[0] for line in lines] == ["error"] * 3
    for line, words in zip(lines, ("a.jsonl", "named twice", "nowhere"), strict=True):
        assert words in line
    assert "titanic" in mixed.stdout
    bad(command("air", "report", "nowhere", cwd=tmp_path), "nowhere", "no such run")
    bad(command("air", "report", good, "--last", "0", cwd=tmp_path), "--last", "1 or more")
