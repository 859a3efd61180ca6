"""`air tasks` without Docker: the list, what is refused, and a check in process boxes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from air.cli.main import main

TASK = """
id = "tiny"
name = "Tiny"
description = "Write a number."
metric = "error"
direction = "lower"
baseline = 4.0
target = 2.0
artefact = "answer.txt"
"""
CARELESS = """
import json, pathlib, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
score = float((pathlib.Path(given["--artefact"]) / "answer.txt").read_text())
pathlib.Path(given["--out"]).write_text(json.dumps({"metrics": {"error": score}}))
"""
GRADER = CARELESS.replace(
    "score = ",
    "import os\nif not os.path.getsize(given['--artefact'] + '/answer.txt'):\n"
    "    pathlib.Path(given['--out']).write_text(json.dumps({'message': 'it is empty'}))\n"
    "    sys.exit(3)\nscore = ",
)
"""The same as `CARELESS`, but it refuses an empty artefact, as the start of a run asks of every grader."""
SOLVERS = """
[[solver]]
name = "baseline"
script = "true"
val = 4.0
test = 4.0

[[solver]]
name = "good"
script = "GOOD"
val = 3.0
test = 3.0
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))
    files = {
        "task.toml": TASK,
        "data.py": "def prepare(agent_dir, grader_dir, split_seed):\n    pass\n",
        "starter/answer.txt": "4",
        "grader/grade.py": GRADER,
    }
    for name, text in files.items():
        file = tmp_path / "tasks" / "tiny" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "tasks"


def check(root: Path, good: str, *more: str) -> int:
    (root / "tiny" / "solvers.toml").write_text(SOLVERS.replace("GOOD", good))
    command = ["tasks", "--task-root", str(root), "check", "tiny", "--provider", "process"]
    return main([*command, *more])


def test_the_list(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["task", "metric", "better", "baseline", "target", "needs"]
    assert any(line.split()[:3] == ["titanic", "accuracy", "higher"] for line in lines)
    expected = ["tiny", "error", "lower", "4", "2", "1", "cpu,", "512", "MiB"]
    for action in ([], ["list"]):
        assert main(["tasks", "--task-root", str(root), *action]) == 0
        assert capsys.readouterr().out.splitlines()[1].split() == expected


def test_a_check_that_holds(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(root, "echo 3 > answer.txt") == 0
    assert capsys.readouterr().out.splitlines()[2].split()[:5] == [
        *("tiny", "good", "3.0000", "3.0000", "0.50"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("good", "said"),
    [
        ("echo 2.5 > answer.txt", "tiny, good: val is 2.5, recorded 3; test is 2.5, recorded 3"),
        ("echo 4 > answer.txt", "good is no better than baseline"),
        ("rm answer.txt", "tiny, good: answer.txt cannot be graded"),
        ("echo oh no >&2; exit 4", "tiny, good: its script ended with 4: oh no"),
    ],
)
def test_a_mismatch_is_named(
    root: Path, capsys: pytest.CaptureFixture[str], good: str, said: str
) -> None:
    assert check(root, good) == 1
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_on_another_split_only_the_order_counts(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(root, "echo 2.5 > answer.txt", "--split-seed", "5") == 0
    assert check(root, "echo 5 > answer.txt", "--split-seed", "5") == 1
    assert "good is no better than baseline" in capsys.readouterr().err


def test_a_grader_that_fails_ends_the_check(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "tiny" / "grader" / "grade.py").write_text(CARELESS)
    assert check(root, "echo none > answer.txt") == 1
    assert "error: grader of task tiny: exit 1: ValueError" in capsys.readouterr().err


@pytest.mark.parametrize("given", [[], ["titanic", "--all"], ["titanik"]])
def test_bad_input_is_one_line(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "check", *given]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_baseline_that_disagrees_with_the_task_is_refused(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "tiny" / "task.toml").write_text(TASK.replace("4.0", "5.0"))
    assert check(root, "true") == 2
    assert "solvers.toml: the baseline's val is 4.0, but task.toml declares 5.0" in (
        capsys.readouterr().err
    )


def test_attacks_are_played_and_reported(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "new" / "attacks.json"
    flags = ["--attacks", "--only", "delete-the-artefact", "--report", str(report)]
    assert check(root, "true", *flags) == 0
    verdict = json.loads(report.read_text())["verdicts"][0]
    assert (verdict["result"], verdict["task"]) == ("held", "tiny")
    assert verdict["reward"] <= verdict["bound"]
    assert capsys.readouterr().out.splitlines()[-1] == f"all verdicts: {report}"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--only", "oracle"], "--only: has no effect without --attacks"),
        (["--report", "x"], "--report: has no effect without --attacks"),
        (["--attacks", "--only", "orakel"], "no attack and no family with this name: orakel"),
        (["--attacks", "--split-seed", "3"], "--split-seed: cannot be chosen"),
    ],
)
def test_flags_of_attacks_that_do_nothing_are_refused(
    root: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert check(root, "true", *flags) == 2
    assert said in capsys.readouterr().err


def test_harbors_tasks_are_listed_with_what_they_need_and_why_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIR_HARBOR_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    two = "".join(f'[[steps]]\nname = "{name}"\n' for name in ("a", "b"))
    for name, config in {
        "one": '[environment]\ndocker_image = "air-base"\n',
        "steps": '[environment]\ndocker_image = "air-base"\n' + two,
        "windows": '[environment]\ndocker_image = "x"\nos = "windows"\n',
        "broken": "no_such_key = 1\n",
    }.items():
        for part in (".", "steps/a", "steps/b"):
            (tmp_path / "set" / name / part / "tests").mkdir(parents=True)
            (tmp_path / "set" / name / part / "instruction.md").write_text("Do it.")
            (tmp_path / "set" / name / part / "tests" / "test.sh").write_text("")
        (tmp_path / "set" / name / "task.toml").write_text(config)
    assert main(["tasks", "harbor:set"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["task", "image", "verifier", "steps", "state"]
    assert lines[1].startswith("harbor:set/broken ")
    assert "refused: " in lines[1]
    assert "no_such_key" in lines[1]
    assert lines[2].split() == ["harbor:set/one", "air-base", "shared", "1", "ok"]
    assert lines[3].split() == ["harbor:set/steps", "air-base", "shared", "2", "ok"]
    assert "refused: environment.os: windows" in lines[4]
    assert lines[5] == "4 tasks, 2 of them refused"
    assert main(["tasks", "harbor:set/one", "titanic"]) == 2
    assert "'titanic' is no task of Harbor" in capsys.readouterr().err
