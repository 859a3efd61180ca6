"""A checkout in MLGym's form as tasks: what is read, what is withheld, and why something is not there."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from air import tasks
from air.errors import ConfigError, MissingError
from air.sandbox.pool.box_pool import Pool
from air.tasks import downloads
from air.tasks.data import prepare
from air.tasks.files import folder_hash, walk
from air.tasks.sources.mlgym import Checkout, find_checkout
from air.tasks.sources.mlgym.table import SHIPPED, Entry, read_table
from air.tasks.spec import TaskSpec
from air.tasks.splits import numbered
from tests.unit.tasks.mlgym.tree import BROKEN, SECONDS, make_tree, rows

OTHER = numbered(2**62 + 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "checkout")


def load(root: Path, name: str) -> TaskSpec:
    return tasks.load(f"mlgym:{name}", mlgym_root=root)


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_what_stands_in_the_files_and_in_the_table(root: Path) -> None:
    task = load(root, "lamps")
    assert (task.id, task.name) == ("mlgym:lamps", "The lamps")
    assert task.description == "Guess colours.\nLAMPS:\nAbout lamps.\n\nWrite submission.csv."
    assert (task.metric, task.direction, task.artefacts) == ("hits", "higher", ("submission.csv",))
    assert (task.target, task.trust) == (0.9, "data")
    assert task.limits.exec_seconds == task.limits.grade_seconds == SECONDS
    policy = load(root, "policy")
    assert policy.artefacts == ("src/", "checkpoints/")
    assert policy.limits.grade_seconds > policy.limits.exec_seconds


def test_trust_follows_from_how_a_task_is_evaluated(root: Path) -> None:
    names = {
        "lamps": "data",
        "coin": "code",
        "order": "code",
        "steps": "evaluator",
        "policy": "evaluator",
    }
    assert {name: load(root, name).trust for name in names} == names
    assert load(root, "words").trust == "evaluator"
    for name, trust in names.items():
        task = load(root, name)
        assert task.grader_spec("docker").second_user == (trust != "data")
        assert not task.box_spec("docker").second_user


def test_baselines_come_from_the_config_then_from_the_table(root: Path) -> None:
    assert load(root, "lamps").baseline == 0.35  # the first of its scores, whatever the case
    assert load(root, "coin").baseline == 0.5  # the config states none
    assert load(root, "words").baseline == 4.0  # the table insists


def test_a_missing_timeout_is_mlgyms_own(root: Path) -> None:
    edit(root / "configs" / "tasks" / "coin.yaml", training_timeout=None)
    assert load(root, "coin").limits.exec_seconds == 3600


REASONS = {
    "nodata": "the checkout lacks its data data/gone/data",
    "nodataset": "there is no configs/datasets/no.yaml",
    "noclass": "MLGym has no task class BaseMLTask",
    "noscript": "its evaluation script other.py is not among its starter code",
    "nostarter": "the checkout lacks its starter code data/lamps/none.py",
    "outside": "its path data/lamps/../../../x.py leads out of the checkout",
    "holes": "its description has a placeholder that MLGym does not fill: 'more'",
    "noentry": "air's table has no entry for it, which configs/air.toml can add",
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_used_says_why_in_one_line(root: Path, name: str) -> None:
    status = Checkout(root).status(name)
    assert (status.state, status.reason, status.task) == ("missing", REASONS[name], None)
    with pytest.raises(MissingError, match=f"^task mlgym:{name}: ") as caught:
        load(root, name)
    assert REASONS[name] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "cannot be read"),
        pytest.param("[" * 100_000, "cannot be read", id="deep"),
        ("name: x", "`id`: Field required"),
        ("- 1", "(top level)"),
    ],
)
def test_a_bad_yaml_file_is_named(root: Path, text: str, said: str) -> None:
    (root / "configs" / "tasks" / "coin.yaml").write_text(text)
    reason = Checkout(root).status("coin").reason
    assert reason.startswith("configs/tasks/coin.yaml")
    assert said in reason


def test_what_this_machine_may_lack_is_told_but_loads(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_GPU_INVENTORY", "none")
    status = Checkout(root).status("hub")
    assert status.state == "needs"
    assert status.reason == (
        "2 gpu (here: 0), image air-own (make it, and air images build ./own), "
        f"data (air tasks fetch mlgym:hub --mlgym-root {root})"
    )
    assert status.task is not None
    assert status.task.gpus == 2
    ready = [
        name for name in Checkout(root).names() if Checkout(root).status(name).state == "ready"
    ]
    assert ready == [
        *("anywhere", "coin", "formulas", "houses", "lamps", "order", "policy", "steps", "words")
    ]
    monkeypatch.setenv("AIR_MLGYM_ROOT", str(root))
    assert "(air tasks fetch mlgym:hub)" in Checkout(root).status("hub").reason
    unlisted = Checkout(root).status("unlisted").reason
    assert unlisted == "some/set (name its files under `downloads` in configs/air.toml)"


def test_a_task_that_can_do_without_a_gpu_takes_one_where_there_is_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_GPU_INVENTORY", "none")
    task = load(root, "anywhere")
    assert (task.gpus, task.description.splitlines()[-1]) == (0, "Train small networks.")
    monkeypatch.setenv("AIR_GPU_INVENTORY", "0=GPU-aaaa")
    task = load(root, "anywhere")
    assert task.gpus == 1
    assert "small networks" not in task.description


def test_what_differs_from_mlgym_is_told(root: Path) -> None:
    assert load(root, "order").description == "Do well at order.\n\nIt runs apart."
    assert load(root, "coin").description == "Do well at coin."


def test_what_lies_on_a_hub_is_fetched_and_stands_in_the_workspace_under_its_name(
    root: Path,
) -> None:
    task = load(root, "hub")
    with pytest.raises(MissingError, match="air tasks fetch mlgym:hub --mlgym-root"):
        prepare(task)
    folder = downloads.folder(task)
    folder.mkdir(parents=True)
    (folder / "some--set--train.csv").write_text("lamp\n1\n")
    digest = hashlib.sha256(b"lamp\n1\n").hexdigest()
    (folder / "some--set--train.csv.sha256").write_text(digest)
    prepared = prepare(task)
    for place in (prepared.agent, prepared.grader / "mlgym"):
        assert (place / "some/set/train.csv").read_text() == "lamp\n1\n"


@pytest.mark.slow
def test_formulas_are_generated_for_the_grader_alone(root: Path) -> None:
    prepared = prepare(load(root, "formulas"))
    assert (prepared.grader / "mlgym/data/dataset.pkl").is_file()
    assert not (prepared.agent / "data").exists()


def test_the_working_directory_does_not_matter(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    task = load(Path("checkout"), "lamps")
    monkeypatch.chdir("/")
    assert (prepare(task).agent / "evaluate.py").is_file()
    assert task.hash == load(root, "lamps").hash


def test_where_the_checkout_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIR_MLGYM_ROOT", raising=False)
    assert find_checkout() is None
    with pytest.raises(MissingError, match=r"set mlgym_root .*, --mlgym-root, or AIR_MLGYM_ROOT"):
        tasks.load("mlgym:lamps")
    monkeypatch.setenv("AIR_MLGYM_ROOT", str(root))
    assert tasks.load("mlgym:lamps").metric == "hits"
    monkeypatch.setenv("AIR_MLGYM_ROOT", "/nowhere")
    with pytest.raises(MissingError, match=r"^AIR_MLGYM_ROOT: no checkout of MLGym at /nowhere"):
        tasks.load("mlgym:lamps")
    assert load(root, "lamps").metric == "hits"  # what is said outright counts more
    with pytest.raises(MissingError, match=r"mlgym:lamp: there is no such config"):
        load(root, "lamp")


def test_answers_and_unknown_files_stay_with_the_grader(root: Path) -> None:
    prepared = prepare(load(root, "lamps"))
    shown = sorted(file.relative_to(prepared.agent).as_posix() for file in walk(prepared.agent))
    assert shown == ["data/test.csv", "data/train.csv", "evaluate.py"]
    assert (prepared.grader / "mlgym/data/answers.csv").is_file()
    assert (prepared.grader / "mlgym/data/extra/notes.txt").is_file()


def test_nobodys_memory_is_laid_out(root: Path) -> None:
    prepared = prepare(load(root, "coin"))
    assert not list(prepared.agent.parent.rglob("memory*"))


def test_the_checkout_is_only_read(root: Path) -> None:
    before = folder_hash(root)
    for name in ("lamps", "coin", "order", "steps", "policy", "words", "houses"):
        prepare(load(root, name))
    assert folder_hash(root) == before


def test_whatever_decides_a_score_is_in_the_hash(root: Path) -> None:
    seen = {load(root, "lamps").hash}
    for name, text in {
        "data/lamps/evaluate.py": "print(1)",
        "data/lamps/data/answers.csv": "lamp,colour\n",
        "configs/datasets/lamps.yaml": json.dumps(
            {"name": "L", "description": "x", "data_path": "data/lamps/data", "is_local": True}
        ),
    }.items():
        (root / name).write_text(text)
        seen.add(load(root, "lamps").hash)
    edit(root / "configs/tasks/lamps.yaml", training_timeout=7)
    seen.add(load(root, "lamps").hash)
    table = root / "configs/air.toml"
    table.write_text(table.read_text().replace('"train.csv", ', ""))
    seen.add(load(root, "lamps").hash)
    assert len(seen) == 6


def test_data_that_mlgym_splits_with_a_script_is_split_here(root: Path) -> None:
    task = load(root, "houses")
    prepared, other = prepare(task), prepare(task.on(OTHER))
    counts = {p.stem: len(rows(p)) for p in (prepared.agent / "data").iterdir()}
    assert counts == {"train": 70, "validation": 10, "test": 21}
    assert "SalePrice" not in rows(prepared.agent / "data/test.csv")[0]
    answers = "mlgym/data/answer.csv"
    assert len(rows(prepared.grader / answers)) == 21
    assert (prepared.grader / answers).read_text() != (other.grader / answers).read_text()
    shutil.copytree(prepared.grader / "mlgym/data", root / "data/houses/data")
    own = prepare(load(root, "houses").on(OTHER))  # the user ran MLGym's script: it holds
    assert (own.grader / answers).read_text() == (prepared.grader / answers).read_text()


def test_data_may_lie_elsewhere_behind_a_link(root: Path, tmp_path: Path) -> None:
    (root / "data/lamps/data").rename(tmp_path / "large")
    (root / "data/lamps/data").mkdir()
    assert Checkout(root).status("lamps").reason == "the checkout lacks its data data/lamps/data"
    (root / "data/lamps/data").rmdir()
    (root / "data/lamps/data").symlink_to(tmp_path / "large")
    prepared = prepare(load(root, "lamps"))
    assert (prepared.agent / "data/train.csv").is_file()
    assert (prepared.grader / "mlgym/data/answers.csv").is_file()


async def test_data_and_evaluation_script_are_write_protected(root: Path) -> None:
    task = load(root, "lamps")
    async with Pool(1) as pool, pool.lease(task.box_spec("process")) as box:
        await tasks.stage(task, box)
        result = await box.exec("stat -c '%a %n' evaluate.py data/*", timeout=60)
    assert result.text.split("\n")[:3] == [
        *("444 evaluate.py", "444 data/test.csv", "444 data/train.csv")
    ]


async def test_what_is_not_there_need_not_be_protected(root: Path) -> None:
    table = root / "configs/air.toml"
    table.write_text(table.read_text().replace('data = ["train.csv", "test.csv"]', 'data = ["x"]'))
    task = load(root, "lamps")
    assert prepare(task).protected == ("evaluate.py",)
    async with Pool(1) as pool, pool.lease(task.box_spec("process")) as box:
        await tasks.stage(task, box)


def test_the_shipped_table_is_sound() -> None:
    entries = read_table(Path("/nowhere"))
    assert len(entries) == 17
    for name, entry in entries.items():
        assert isinstance(entry, Entry)
        assert not (entry.player and not entry.probe), name
    for name in ("titanic", "imageCaptioningCOCO", "imageClassificationFMnist"):
        assert entries[name].caveat  # scores that mean less than they seem to


FULL = """[coin]
metric = "a"
artefact = ["x"]
direction = "higher"
baseline = 2
target = 3
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FULL + "metrik = 'x'\n", "no key `metrik`"),
        ("[coin]\nlike = 'none'\n", "there is no full entry 'none'"),
        ("coin = 1\n", "is no table"),
        (FULL.replace("target = 3", "target = 1"), "target is worse than baseline"),
    ],
)
def test_a_bad_entry_names_file_and_task(root: Path, text: str, said: str) -> None:
    (root / "configs" / "air.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"air\.toml: coin: ") as caught:
        Checkout(root)
    assert said in str(caught.value)
    assert SHIPPED.is_file()
