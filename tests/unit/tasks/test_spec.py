"""Tasks as they are declared: what is read, what is refused and with which words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from air import tasks
from air.errors import ConfigError, MissingError
from air.tasks.spec import RewardScale
from tests.unit.tasks.conftest import TOML, MakeTask

SHIPPED = ["digits", "prisonersDilemma", "titanic"]


def test_the_shipped_tasks_are_there() -> None:
    assert set(SHIPPED) <= set(tasks.available())


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_task_is_whole(name: str) -> None:
    task = tasks.load(name)
    assert re.fullmatch(r"[0-9a-f]{64}", task.hash)
    assert len(task.description.strip()) <= 350
    assert "method=1..4 level=1..4" in task.description
    assert (task.folder / "README.md").is_file()
    assert (task.folder / "starter" / "solve.py").is_file()


@pytest.mark.parametrize("name", tasks.available())
def test_a_readme_names_the_baseline_and_the_target_of_its_task(name: str) -> None:
    task = tasks.load(name)
    text = " ".join((task.folder / "README.md").read_text().split())
    if baseline := re.search(r"Baseline: [^().]*\((-?[\d.]*\d)", text):
        decimals = len(baseline[1].partition(".")[2])
        assert baseline[1] == f"{task.baseline:.{decimals}f}"
    else:
        assert name == "smallLanguageModel"  # its baseline is not a measurement: 8 bits a byte
    target = re.search(r"Target: (-?[\d.]*\d)", text)
    assert target is not None
    assert float(target[1]) == task.target


def test_the_shipped_tasks_share_their_boxes() -> None:
    assert len({tasks.load(name).box_spec("docker").model_dump_json() for name in SHIPPED}) == 1


def test_only_graders_that_run_code_have_a_second_user() -> None:
    graders = {name: tasks.load(name).grader_spec("docker") for name in SHIPPED}
    assert [name for name, spec in graders.items() if spec.second_user] == ["prisonersDilemma"]
    assert all(spec.scratch == ("/grader",) for spec in graders.values())
    assert not any(tasks.load(name).box_spec("docker").second_user for name in SHIPPED)


@pytest.mark.parametrize("name", ["", "..", "task"])
def test_an_unknown_task_names_the_known_ones(name: str) -> None:
    with pytest.raises(MissingError, match=r"known: .*digits, .*titanic"):
        tasks.load(name)


@pytest.mark.parametrize("name", ["titanik", "../tasks/titanic", "titanic/starter"])
def test_a_mistyped_task_names_the_one_that_was_meant(name: str) -> None:
    with pytest.raises(MissingError, match=r"did you mean 'titanic'\?"):
        tasks.load(name)


def test_roots_replace_the_shipped_tasks(make_task: MakeTask) -> None:
    task = make_task()
    assert tasks.available([task.folder.parent]) == ["tiny"]
    with pytest.raises(MissingError):
        tasks.load("titanic", [task.folder.parent])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("target = 2.0", "target = 1.0", "target equals baseline"),
        ("target = 2.0", "target = 0.5", "worse than baseline"),
        ("target = 2.0", "target = nan", "`target`"),
        ("target = 2.0", "", "`target`"),
        ("target = 2.0", "target = 2.0\ngoal = 3", "goal"),
        ('"higher"', '"up"', "`direction`"),
        ('"answer.txt"', '"../answer.txt"', "inside the workspace"),
        ('"answer.txt"', '"/etc/passwd"', "inside the workspace"),
        ('id = "tiny"', 'id = "other"', "the folder is 'tiny'"),
        ('id = "tiny"', "id = ", "not valid TOML"),
        ('name = "Tiny"', 'name = "Tiny"\nnormalise = "log-gap"', "needs optimum"),
        ('name = "Tiny"', 'name = "Tiny"\nnormalise = "none"', "needs phi_clip"),
        ('name = "Tiny"', 'name = "Tiny"\nphi_clip = [1, -1]', "low < high"),
        ('name = "Tiny"', 'name = "Tiny"\nfolder = "/etc"', "folder"),
        ('name = "Tiny"', 'name = "Tiny"\nnetwork = ["1.2.3.4"]', "list hosts by name"),
        ('name = "Tiny"', 'name = "Tiny"\nnetwork = ["https://a.org"]', "`network`"),
    ],
)
def test_a_bad_file_is_named_with_its_key(
    make_task: MakeTask, old: str, new: str, said: str
) -> None:
    folder = make_task().folder
    (folder / "task.toml").write_text(TOML.replace(old, new))
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        tasks.load("tiny", [folder.parent])
    assert "task.toml" in str(caught.value)


def test_a_task_without_its_grader_is_refused(make_task: MakeTask) -> None:
    folder = make_task().folder
    (folder / "grader" / "grade.py").unlink()
    with pytest.raises(ConfigError, match=r"grade\.py"):
        tasks.load("tiny", [folder.parent])


def test_the_hash_covers_every_file_and_its_name(make_task: MakeTask) -> None:
    folder = make_task().folder
    seen = {tasks.load("tiny", [folder.parent]).hash}

    def again() -> str:
        return tasks.load("tiny", [folder.parent]).hash

    (folder / "grader" / "__pycache__").mkdir()
    (folder / "grader" / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert {again()} == seen
    (folder / "starter" / "more.txt").write_text("a")
    seen.add(again())
    (folder / "starter" / "more.txt").rename(folder / "starter" / "other.txt")
    seen.add(again())
    (folder / "grader" / "grade.py").write_text("pass")
    seen.add(again())
    assert len(seen) == 4


@pytest.mark.parametrize("trust", ["data", "code"])
def test_the_agents_box_reaches_the_listed_names_and_the_graders_none(
    make_task: MakeTask, trust: str
) -> None:
    task = make_task(toml=f'network = ["example.org", "*.example.com:8443"]\ntrust = "{trust}"\n')
    assert task.box_spec("docker").network == ("example.org", "*.example.com:8443")
    assert task.grader_spec("docker").network == ()
    assert "network example.org" in task.needs()


def test_gpus_are_the_agents_unless_they_are_the_graders(make_task: MakeTask) -> None:
    task = make_task(toml="gpus = 2\n")
    assert task.box_spec("docker").gpus == 2
    assert task.grader_spec("docker").gpus == 0
    assert task.needs().endswith("2 gpu")
    task = make_task(toml="gpus = 2\n[grader]\ngpus = 1\n")
    assert (task.box_spec("docker").gpus, task.grader_spec("docker").gpus) == (2, 1)
    assert task.needs().endswith("2 gpu, 1 gpu for grading")


def test_the_reward_scale_is_the_tasks(make_task: MakeTask) -> None:
    task = make_task(toml="noise_floor = 0.1\n")
    expected = RewardScale(direction="higher", baseline=1.0, target=2.0, noise_floor=0.1)
    assert task.reward_scale() == expected


def test_a_task_can_be_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tasks.load("digits").folder.is_absolute()
