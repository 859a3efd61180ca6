"""`grader.shared`: files of `tasks/_shared` and of the starter, copied into the prepared grader."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from air import paths, tasks
from air.errors import ConfigError
from air.tasks.data import prepare
from air.tasks.spec import TaskSpec
from tests.unit.tasks.conftest import MakeTask

READS = 'import extra\nend(0, json.dumps({"metrics": {"score": extra.SCORE}}))'
SHIPPED = paths.shipped("tasks") / "_shared"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The folder `_shared` beside the task that `make_task` makes, with one file."""
    folder = tmp_path / "tasks" / "_shared"
    folder.mkdir(parents=True)
    (folder / "extra.py").write_text("SCORE = 1.0\n")
    return folder


def grader_of(task: TaskSpec) -> dict[str, str]:
    return {path.name: path.read_text() for path in prepare(task).grader.glob("*.py")}


def sharing(*names: str) -> str:
    return f"[grader]\nshared = {list(names)!r}\n"


@pytest.mark.usefixtures("own")
def test_shared_files_lie_beside_the_grader_and_not_before_the_agent(make_task: MakeTask) -> None:
    task = make_task(READS, toml=sharing("_shared/extra.py", "starter/answer.txt"))
    prepared = prepare(task)
    assert (prepared.grader / "extra.py").read_text() == "SCORE = 1.0\n"
    assert (prepared.grader / "answer.txt").read_text() == "1"
    assert not list(prepared.agent.rglob("extra.py"))


def test_a_folder_of_tasks_without_shared_files_has_those_of_air(make_task: MakeTask) -> None:
    task = make_task(toml=sharing("_shared/table.py"))
    assert grader_of(task)["table.py"] == (SHIPPED / "table.py").read_text()


def test_files_beside_the_tasks_come_before_those_of_air(make_task: MakeTask, own: Path) -> None:
    (own / "table.py").write_text("mine = True\n")
    assert grader_of(make_task(toml=sharing("_shared/table.py")))["table.py"] == "mine = True\n"


def test_a_changed_shared_file_is_another_task(make_task: MakeTask, own: Path) -> None:
    without = make_task().hash
    first = make_task(toml=sharing("_shared/extra.py"))
    (own / "other.py").write_text("not used\n")
    assert make_task(toml=sharing("_shared/extra.py")).hash == first.hash != without
    old = prepare(first)
    (own / "extra.py").write_text("SCORE = 2.0\n")
    second = make_task(toml=sharing("_shared/extra.py"))
    assert second.hash != first.hash
    assert prepare(second).digest != old.digest


@pytest.mark.usefixtures("own")
def test_shared_files_are_no_task(make_task: MakeTask) -> None:
    folder = make_task().folder.parent
    assert tasks.available([folder]) == ["tiny"]
    assert "_shared" not in tasks.available()


@pytest.mark.parametrize(
    ("names", "said", "remedy"),
    [
        (["_shared/extr.py"], "there is no file '_shared/extr.py'", r"_shared/NAME; known: .*extra.py"),
        (["starter/extra.py"], "there is no file 'starter/extra.py'", "known: answer.txt"),
        (["extra.py"], "there is no file 'extra.py'", "starter/NAME or _shared/NAME"),
        (["../_shared/extra.py"], "there is no file '../_shared/extra.py'", "starter/NAME"),
        (["_shared/../tiny/data.py"], "there is no file", "starter/NAME"),
        (["_shared/"], "there is no file", "starter/NAME"),
        (["_shared/extra.py", "_shared/extra.py"], "would overwrite another extra.py", "rename"),
        (["_shared/grade.py"], "would overwrite another grade.py", "rename"),
    ],
)  # fmt: skip
def test_a_name_that_cannot_be_copied_is_one_line_with_its_key(
    make_task: MakeTask, own: Path, names: list[str], said: str, remedy: str
) -> None:
    (own / "grade.py").write_text("")
    with pytest.raises(ConfigError) as caught:
        make_task(toml=sharing(*names))
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert "task.toml" in text
    assert "`grader.shared`" in text
    assert said in text
    assert re.search(remedy, text), text


def test_every_shipped_file_is_used_and_no_grader_has_a_copy_of_its_own() -> None:
    """Also of none of the starter's files: the agent practises under the grader's own rules."""
    used = set()
    for name in tasks.available():
        task = tasks.load(name)
        used |= {path for path in task.shared if path.parent == SHIPPED}
        others = [*SHIPPED.glob("*.py"), *(task.folder / "starter").glob("*.py")]
        for file in (task.folder / "grader").glob("*.py"):
            assert file.read_bytes() not in [other.read_bytes() for other in others], file
    assert used == set(SHIPPED.glob("*.py"))


@pytest.mark.parametrize("name", tasks.available())
def test_a_grader_of_code_has_the_shared_runner_and_command_line(name: str) -> None:
    task = tasks.load(name)
    names = [path.name for path in task.shared]
    assert ("runner.py" in names) == (task.trust == "code")
    assert "from grading import" in (task.folder / "grader" / "grade.py").read_text()
