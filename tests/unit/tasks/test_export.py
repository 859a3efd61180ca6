"""Tasks in the format of Harbor: what the folders hold, what is refused, and how their verifier grades."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from air.cli.main import main
from air.errors import ConfigError
from air.tasks import TaskSpec
from air.tasks.export import harbor
from air.tasks.files import folder_hash
from air.tasks.sources.harbor.folder import read
from air.tasks.sources.harbor.unsupported_features import refusals
from tests.unit.tasks.conftest import REFUSE, SCORE, MakeTask

VERIFY = """
import sys, pathlib; sys.path.insert(0, sys.argv[1])
import verify
sys.exit(verify.main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
"""
SOLVERS = """
[[solver]]
name = "baseline"
script = "true"
val = 1.0
test = 1.0

[[solver]]
name = "good"
script = "echo 2 > answer.txt"
val = 2.0
test = 2.0
"""
LOWEST = {"reward": -1.0, "test_reward": -1.0}


def config(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "task.toml").read_text())


def exported(task: TaskSpec, tmp_path: Path, solvers: str = SOLVERS) -> Path:
    task.solvers.write_text(solvers)
    return harbor.export(task, tmp_path / "out")


def test_a_folder_states_every_limit_and_mode(make_task: MakeTask, tmp_path: Path) -> None:
    ours = make_task()
    folder = exported(ours, tmp_path)
    task = read(folder)
    assert refusals(task) == []
    stated = config(folder)
    environment = {"network_mode", "os", "workdir", "cpus", "memory_mb", "storage_mb", "gpus"}
    for table in (stated["environment"], stated["verifier"]["environment"]):
        assert environment | {"build_timeout_sec", "env"} <= set(table)
        assert table["network_mode"] == "no-network"
    assert {"timeout_sec", "user", "network_mode"} <= set(stated["agent"])
    verifier = {"timeout_sec", "user", "network_mode", "environment_mode", "env", "environment"}
    assert verifier <= set(stated["verifier"])
    assert stated["verifier"]["environment_mode"] == "separate"
    assert stated["artifacts"] == ["/workspace/answer.txt"]
    assert stated["metadata"]["task_hash"] == ours.hash
    assert "nothing" not in stated["metadata"]  # the starter files have the artefact
    assert task.instruction().startswith("Write a number into answer.txt.")
    assert set(task.solution()) == {"solve.sh", "baseline.sh"}


def test_only_the_verifiers_image_has_what_is_hidden(make_task: MakeTask, tmp_path: Path) -> None:
    folder = exported(make_task(), tmp_path)
    agents = [f.relative_to(folder / "environment") for f in folder.rglob("environment/**/*")]
    assert Path("workspace/data/question.txt") in agents
    assert not [f for f in agents if f.name in ("grade.py", "verify.py")]
    (hidden,) = folder.rglob("data/answer.txt")
    assert hidden == folder / "tests" / "grader" / "data" / "answer.txt"
    for file in folder.rglob("*"):
        assert not file.is_file() or str(tmp_path) not in file.read_text()


def test_equal_tasks_give_equal_bytes(make_task: MakeTask, tmp_path: Path) -> None:
    task = make_task()
    first = exported(task, tmp_path)
    second = harbor.export(task, tmp_path / "again")
    assert folder_hash(first) == folder_hash(second)
    assert read(first).digest == read(second).digest


def test_a_task_without_solvers_has_no_solution(make_task: MakeTask, tmp_path: Path) -> None:
    folder = harbor.export(make_task(), tmp_path / "out")
    assert not (folder / "solution").exists()
    assert refusals(read(folder)) == []


@pytest.mark.parametrize(
    ("toml", "reason"),
    [
        ("gpus = 1\n", "need a GPU"),
        ("grader.gpus = 1\n", "need a GPU"),
        ('data.downloads = [{name = "x", url = "https://x.org/x"}]\n', "downloads"),
        ('network = ["x.org:8080"]\n', "network: "),
    ],
)
def test_what_cannot_be_exported(
    make_task: MakeTask, tmp_path: Path, toml: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        harbor.export(make_task(toml=toml), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_named_hosts_are_an_allowlist(make_task: MakeTask, tmp_path: Path) -> None:
    stated = config(exported(make_task(toml='network = ["x.org"]\n'), tmp_path))
    for table in (stated["agent"], stated["environment"]):
        assert (table["network_mode"], table["allowed_hosts"]) == ("allowlist", ["x.org"])
    assert stated["verifier"]["environment"]["network_mode"] == "no-network"


def test_the_command(
    make_task: MakeTask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, out = make_task(), tmp_path / "out"
    command = ["tasks", "export", "tiny", "--task-root", str(task.folder.parent), "--to"]
    assert main([*command, "harbor", str(out)]) == 0
    assert capsys.readouterr().out == f"{out / 'tiny'}\n"
    assert main([*command, "harbor", str(out)]) == 2
    assert "already" in capsys.readouterr().err
    (out / "tiny" / "old").touch()
    assert main([*command, "harbor", str(out), "--force"]) == 0
    assert not (out / "tiny" / "old").exists()
    (out / "tiny" / "task.toml").unlink()
    assert main([*command, "harbor", str(out), "--force"]) == 2  # a folder of something else stays
    assert (out / "tiny" / "README.md").exists()
    assert main([*command, "harbor", str(task.folder.parent), "--force"]) == 2
    assert (task.folder / "starter").exists()  # the task itself stays
    assert main([*command, "zip", str(out)]) == 2
    assert "known: harbor" in capsys.readouterr().err
    assert main([*command, "harbor", str(out), "--all"]) == 2


class Verifier:
    """The verifier of an exported task, which grades below a folder that stands for its container's root."""

    def __init__(self, task: TaskSpec, tmp_path: Path) -> None:
        self.root = tmp_path / "root"
        self.workspace = self.root / "workspace"
        self.workspace.mkdir(parents=True)
        self._tests = harbor.export(task, tmp_path / "out") / "tests"

    def run(self) -> tuple[int, dict[str, float] | None, str]:
        """Returns the exit status, the rewards and the output."""
        command = [sys.executable, "-c", VERIFY, str(self._tests), str(self.root)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        file = self.root / "logs" / "verifier" / "reward.json"
        rewards = json.loads(file.read_text()) if file.exists() else None
        return ended.returncode, rewards, ended.stdout + ended.stderr


def test_the_verifier_pays_phi_and_reports_the_metrics(make_task: MakeTask, tmp_path: Path) -> None:
    verifier = Verifier(make_task(), tmp_path)
    (verifier.workspace / "answer.txt").write_text("1.5")
    metrics = {"val_score": 1.5, "val_other": 1.0, "test_score": 1.5, "test_other": 1.0}
    assert verifier.run()[:2] == (0, {"reward": 0.5, "test_reward": 0.5, **metrics})


def test_repeated_gradings_are_averaged(make_task: MakeTask, tmp_path: Path) -> None:
    grade = 'end(0, json.dumps({"metrics": {"score": float(given) + int(args.seed)}}))'
    verifier = Verifier(make_task(grade, toml="grader.repeats = 2\n"), tmp_path)
    (verifier.workspace / "answer.txt").write_text("1")
    code, rewards, _ = verifier.run()
    assert (code, rewards and rewards["reward"]) == (0, 0.5)  # the mean of 1 and 2


def test_an_artefact_that_cannot_be_graded_is_worth_least(
    make_task: MakeTask, tmp_path: Path
) -> None:
    verifier = Verifier(make_task(toml="limits.artefact_mb = 0.0001\n"), tmp_path)
    answer = verifier.workspace / "answer.txt"
    assert verifier.run()[:2] == (0, LOWEST)  # it is missing
    answer.write_text("1" * 1000)
    assert verifier.run()[:2] == (0, LOWEST)  # it is too large
    answer.write_text("")
    code, rewards, output = verifier.run()
    assert (code, rewards) == (0, LOWEST)
    assert "it is empty" in output  # the grader's message
    answer.unlink()
    answer.mkdir()
    assert verifier.run()[:2] == (0, LOWEST)
    answer.rmdir()
    (tmp_path / "hidden").write_text("2")
    answer.symlink_to(tmp_path / "hidden")
    code, rewards, output = verifier.run()
    assert (code, rewards) == (0, LOWEST)
    assert "is a link" in output


FOLDER = 'end(0, json.dumps({"metrics": {"score": 2.0}}))'


def test_links_in_a_folder_are_refused(make_task: MakeTask, tmp_path: Path) -> None:
    task = make_task(f"given = ''\n{FOLDER}")
    task = task.model_copy(update={"artefact": "out/", "more_artefacts": ("answer.txt",)})
    verifier = Verifier(task, tmp_path)
    (verifier.workspace / "answer.txt").write_text("1")
    out = verifier.workspace / "out"
    out.mkdir()
    assert verifier.run()[:2] == (0, LOWEST)  # it is empty
    (out / "x").mkdir()
    (out / "x" / "y").write_text("1")
    code, rewards, _ = verifier.run()
    assert (code, rewards and rewards["reward"]) == (0, 1.0)
    (out / "all").symlink_to(verifier.root)
    assert verifier.run()[:2] == (0, LOWEST)


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        ("sys.exit(7)", "the grader ended with 7"),
        ("end(0, '[' * 100_000)", "the grader ended with 0, but no result"),
    ],
)
def test_a_grader_that_only_this_artefact_breaks_blames_the_artefact(
    failure: str, words: str, make_task: MakeTask, tmp_path: Path
) -> None:
    verifier = Verifier(make_task(REFUSE + failure), tmp_path)
    (verifier.workspace / "answer.txt").write_text("1")
    code, rewards, output = verifier.run()
    assert (code, rewards) == (0, LOWEST)
    assert words in output


def test_a_grader_that_is_broken_pays_nothing(make_task: MakeTask, tmp_path: Path) -> None:
    verifier = Verifier(make_task("sys.exit(7)"), tmp_path)
    (verifier.workspace / "answer.txt").write_text("1")
    code, rewards, output = verifier.run()
    assert (code, rewards) == (1, None)
    assert "failed on an empty artefact too" in output


def test_nothing_that_the_grader_started_is_left(make_task: MakeTask, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    start = f"""
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))
        os.closerange(0, 3)
        os.execvp("sleep", ["sleep", "600"])
    os._exit(0)
os.wait()
while not os.path.exists({str(pid)!r}): pass
"""
    verifier = Verifier(make_task(start + SCORE), tmp_path)
    (verifier.workspace / "answer.txt").write_text("1")
    assert verifier.run()[0] == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


LONG = """
import sys, pathlib; sys.path.insert(0, sys.argv[1])
import verify
settings = {"grade_seconds": 0.2, "runs_agent_code": False}
grader = verify.Grader(settings, pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
print(grader._run(["sleep", "600"]))
"""


def test_a_grader_that_takes_too_long_is_ended(make_task: MakeTask, tmp_path: Path) -> None:
    tests = harbor.export(make_task(), tmp_path / "out") / "tests"
    (tmp_path / "workspace").mkdir()
    command = [sys.executable, "-c", LONG, str(tests), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout == "(124, 'took over 0.2 s')\n"
