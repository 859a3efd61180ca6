"""`air tasks new` and `air tasks record`: a task that runs as it is made, and scores written down."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from air import tasks
from air.cli.main import main
from air.tasks.check import Checked, read_solvers
from air.tasks.data import prepare
from air.tasks.record_scores import record
from air.tasks.spec import TaskSpec

pytestmark = pytest.mark.slow


@pytest.fixture
def made(tmp_path: Path) -> Path:
    assert main(["tasks", "new", "curve", "--dir", str(tmp_path / "mine")]) == 0
    return tmp_path / "mine"


def command(root: Path, action: str, *more: str) -> int:
    return main(
        ["tasks", "--task-root", str(root), action, "curve", "--provider", "process", *more]
    )


def test_a_new_task_passes_its_check_untouched(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(made, "check") == 0
    assert command(made, "check", "--split-seed", "7") == 0
    out = capsys.readouterr().out
    assert [line.split()[1] for line in out.splitlines()[1:4]] == ["baseline", "middle", "good"]


def test_a_new_task_is_whole(made: Path) -> None:
    task = tasks.load("curve", [made])
    assert task.description.strip()
    for file in ("README.md", "data.py", "solvers.toml", "starter/solve.py", "grader/grade.py"):
        assert (task.folder / file).is_file()
        assert "NAME" not in (task.folder / file).read_text()
    assert "# curve" in (task.folder / "README.md").read_text()
    assert [p.name for p in made.iterdir()] == ["curve"]


def test_without_a_folder_it_is_made_in_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tasks", "new", "curve"]) == 0
    assert (tmp_path / "tasks" / "curve" / "task.toml").is_file()
    assert "air tasks --task-root tasks check curve" in capsys.readouterr().out
    assert main(["tasks", "new", "curve", "--dir", "two words"]) == 0
    assert "air tasks --task-root 'two words' record curve" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["", "..", "a/b", "a.b", "7up", "a b", "mlgym:x", "/tmp/x", "a" * 65, "ä", "x\n"]
)
def test_a_bad_name_is_refused_in_one_line(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tasks", "new", name, "--dir", str(tmp_path / "mine")]) == 2
    said = capsys.readouterr().err
    assert "is no task name" in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "mine").exists()


def test_an_existing_task_is_left_alone(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (made / "curve" / "README.md").write_text("mine")
    assert main(["tasks", "new", "curve", "--dir", str(made)]) == 2
    said = capsys.readouterr().err
    assert "already" in said
    assert len(said.splitlines()) == 1
    assert (made / "curve" / "README.md").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["tasks", "new", "curve", "--dir", str(tmp_path / "file")]) == 2
    said = capsys.readouterr().err
    assert "cannot be made" in said
    assert len(said.splitlines()) == 1


def test_what_was_measured_is_recorded(made: Path) -> None:
    folder = made / "curve"
    assert command(made, "record") == 0  # another NumPy fits another last digit
    kept = {name: (folder / name).read_text() for name in ("solvers.toml", "task.toml")}
    for name, text in kept.items():
        blurred = [
            line.replace("= ", "= 1") if line.startswith(("val", "test", "baseline")) else line
            for line in text.splitlines(keepends=True)
        ]
        (folder / name).write_text("".join(blurred))
    assert command(made, "check") == 1
    assert command(made, "record") == 0
    assert {name: (folder / name).read_text() for name in kept} == kept


def test_solvers_without_scores_get_their_first(made: Path) -> None:
    task = tasks.load("curve", [made])
    before = tomllib.loads(task.solvers.read_text())
    lines = task.solvers.read_text().splitlines(keepends=True)
    task.solvers.write_text("".join(x for x in lines if not x.startswith(("val", "test"))))
    rows = [
        Checked(
            task.id, one.name, val=old["val"], test=old["test"], exec_seconds=1, grade_seconds=1
        )
        for one, old in zip(read_solvers(task, recording=True), before["solver"], strict=True)
    ]
    record(task, rows)
    assert tomllib.loads(task.solvers.read_text()) == before


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("solvers.toml", "python3 solve.py 2", "exit 4", "good: its script ended with 4"),
        ("task.toml", "target = 0.3", "target = 1.9", "`(top level)`"),
        ("solvers.toml", "python3 solve.py 1", "python3 solve.py x", "invalid literal"),
    ],
)
def test_what_cannot_be_recorded_changes_nothing(
    made: Path, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str, said: str
) -> None:
    path = made / "curve" / file
    path.write_text(path.read_text().replace(old, new))
    if file == "task.toml":  # a baseline that is declared better than it is
        path.write_text(path.read_text().replace("baseline = 1.7", "baseline = 2.7"))
    before = path.read_text()
    assert command(made, "record") == 2
    assert said in capsys.readouterr().err
    assert path.read_text() == before


def grade(task: TaskSpec, text: str, place: Path) -> subprocess.CompletedProcess[str]:
    (place / "submission.csv").write_text(text)
    script = prepare(task).grader / "grade.py"
    options = ["--artefact", place, "--split", "val", "--seed", "0", "--out", place / "out.json"]
    argv = [sys.executable, "-B", script, *options]
    return subprocess.run([str(a) for a in argv], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must begin with the line id,y"),
        ("id,y\n", "lacks 100 of the 100 val ids"),
        ("id,y\n1,nan\n", "'nan', expected a number"),
        ("id,y\n1,-inf\n", "'-inf', expected a number"),
        ("id,y\n1,1e300\n", "'1e300', expected a number"),
        ("id,y\n1,one\n", "'one', expected a number"),
        ("id,y\n1,1\n1,1\n", "is there twice"),
        ("id,y\n1,1,1\n", "3 cells, expected 2"),
    ],
)
def test_the_new_graders_words(made: Path, tmp_path: Path, text: str, said: str) -> None:
    result = grade(tasks.load("curve", [made]), text, tmp_path)
    assert result.returncode == 3, result.stderr
    assert said in (tmp_path / "out.json").read_text()


@pytest.mark.parametrize(
    ("before", "problem"),
    [
        (
            "import time; TIMES = time.time_ns()",
            "its grader is not deterministic: the same artefact",
        ),
        (
            "import pathlib, sys\n"
            "if 'test' in sys.argv and not any(\n"
            "    path.read_bytes() for path in pathlib.Path(sys.argv[2]).iterdir()\n"
            "): raise KeyError('x')",
            "its grader fails on an empty artefact: grader of task curve: exit 1: KeyError: 'x'",
        ),
    ],
)
def test_a_grader_that_is_not_deterministic_is_named(
    made: Path, capsys: pytest.CaptureFixture[str], before: str, problem: str
) -> None:
    grader = made / "curve" / "grader" / "grade.py"
    text = grader.read_text().replace("from __future__ import annotations\n", "")
    if "TIMES" in before:
        assert '"rmse": ' in text
        text = text.replace('"rmse": ', '"rmse": TIMES * 1e-6 + ')
    grader.write_text(f"{before}\n{text}")
    assert command(made, "check") == 1
    said = capsys.readouterr().err
    assert problem in said
    assert "curve, good: " in said
