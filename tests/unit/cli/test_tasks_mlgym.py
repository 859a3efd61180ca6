"""`air tasks --mlgym-root`: the list with its states, and a check in process boxes, on a small tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from air.cli.main import main
from tests.unit.tasks.mlgym.tree import BROKEN, guesses, make_tree

pytestmark = pytest.mark.slow

SOLVERS = f"""
[[solver]]
name = "baseline"
script = '''
cat > submission.csv << 'END'
{guesses(14).decode()}END
'''
val = 0.35
test = 0.35
known = KNOWN
known_within = 0.01

[[solver]]
name = "good"
script = '''
cat > submission.csv << 'END'
{guesses(36).decode()}END
'''
val = 0.9
test = 0.9
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AIR_MLGYM_ROOT", raising=False)
    monkeypatch.setenv("AIR_GPU_INVENTORY", "none")
    return make_tree(tmp_path / "checkout")


def record(root: Path, known: str) -> None:
    (root / "configs" / "air").mkdir()
    (root / "configs" / "air" / "lamps.toml").write_text(SOLVERS.replace("KNOWN", known))


def test_the_list_shows_state_and_trust(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "--mlgym-root", str(root)]) == 0
    shown = capsys.readouterr().out
    lines = {line.split()[0]: line for line in shown.splitlines() if line.startswith("mlgym:")}
    assert lines["mlgym:lamps"].split() == [
        *("mlgym:lamps", "hits", "higher", "0.35", "0.9", "data", "ready")
    ]
    assert lines["mlgym:steps"].split()[2:] == ["lower", "45", "10", "evaluator", "ready"]
    assert "needs: 2 gpu (here: 0), image air-own" in lines["mlgym:hub"]
    assert "an image of your own" not in shown
    for name in BROKEN:
        assert " missing: " in lines[f"mlgym:{name}"]
    told = [line for line in shown.splitlines() if line.startswith("trust: ")]
    assert (
        "so this code can make it print any score: mlgym:formulas, mlgym:policy, mlgym:steps, "
        "mlgym:words" in told[0]
    )
    assert told[1] == "trust: a toy: mlgym:policy"
    assert any(line.startswith("titanic ") for line in shown.splitlines())


def test_the_variable_is_as_good_as_the_flag(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["tasks", "--mlgym-root", str(root)])
    by_flag = capsys.readouterr().out
    monkeypatch.setenv("AIR_MLGYM_ROOT", str(root))
    main(["tasks"])
    assert capsys.readouterr().out == by_flag.replace(f" --mlgym-root {root}", "")
    assert main(["tasks", "--mlgym-root", "/nowhere"]) == 2
    assert "no checkout of MLGym at /nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("before", [True, False])
def test_a_check_compares_with_recorded_and_known_scores(
    root: Path, capsys: pytest.CaptureFixture[str], before: bool
) -> None:
    record(root, "0.355")
    flag = ["--mlgym-root", str(root)]
    check = ["check", "mlgym:lamps", "--provider", "process"]
    assert main(["tasks", *flag, *check] if before else ["tasks", *check, *flag]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[:5] == ["mlgym:lamps", "good", "0.9000", "0.9000", "1.00"]
    assert lines[2].endswith(" ok")


def test_a_score_that_others_know_otherwise_is_a_mismatch(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(root, "0.4")
    command = ["tasks", "check", "mlgym:lamps", "--provider", "process", "--mlgym-root", str(root)]
    assert main(command) == 1
    assert "baseline: val is 0.35, known 0.4 ± 0.01" in capsys.readouterr().err


def test_checking_all_says_what_was_not_checked(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(root, "0.35")
    (tmp_path / "none").mkdir()
    command = ["tasks", "--task-root", str(tmp_path / "none"), "check", "--all"]
    assert main([*command, "--provider", "process", "--mlgym-root", str(root)]) == 0
    shown = capsys.readouterr().out.splitlines()
    skipped = [line for line in shown if line.startswith("not checked: ")]
    assert len(skipped) == len(BROKEN) + 10
    assert "not checked: mlgym:coin: ready: no recorded solvers" in skipped
    assert [line for line in shown if line.startswith("mlgym:")][-1].endswith(" ok")


def test_a_task_without_solvers_is_one_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "check", "mlgym:coin", "--mlgym-root", str(root)]) == 2
    error = capsys.readouterr().err
    assert "error: task mlgym:coin: no solvers are recorded" in error
    assert "air shell mlgym:coin" in error
