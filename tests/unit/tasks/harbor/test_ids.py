"""Ids `harbor:PATH` and the tasks that they name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from air import tasks
from air.errors import ConfigError, MissingError
from air.tasks.sources.harbor.boxes import hosts, resolved
from air.tasks.sources.harbor.datasets import _of_file
from air.tasks.sources.harbor.ids import expanded, locate, named
from air.tasks.sources.harbor.schema import Network
from air.tasks.sources.harbor.settings import HarborSettings
from air.tasks.sources.harbor_images import wanted_of


def make(folder: Path, toml: str = "") -> Path:
    (folder / "tests").mkdir(parents=True)
    environment = 'docker_image = "air-base"\nnetwork_mode = "no-network"\n'
    text = f'artifacts = ["out.txt"]\n{toml}\n[environment]\n{environment}'
    (folder / "task.toml").write_text(text)
    (folder / "instruction.md").write_text("Do it.\n")
    (folder / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    return folder


def test_a_folder_of_tasks_stands_for_its_members(tmp_path: Path) -> None:
    for name in ("b", "a"):
        make(tmp_path / "set" / name)
    ids = ["titanic", "harbor:set", "harbor:set/a/"]
    assert expanded(ids, tmp_path) == ["titanic", "harbor:set/a", "harbor:set/b", "harbor:set/a/"]
    assert locate("harbor:set/b", tmp_path).path == tmp_path / "set" / "b"
    task = tasks.load("harbor:set/b", harbor=HarborSettings(root=tmp_path))
    assert (task.id, task.metric, task.phi_clip) == ("harbor:set/b", "reward", (0.0, 1.0))
    assert task.rules is not None
    assert task.rules.build_command == f"AIR_HARBOR_ROOT={tmp_path} air images build harbor:set/b"
    with pytest.raises(ConfigError, match=r"2 tasks.*harbor:set/a"):
        locate("harbor:set", tmp_path)
    with pytest.raises(MissingError):
        expanded(["harbor:none"], tmp_path)


def test_members_of_a_data_set_are_found_again_with_their_digest(tmp_path: Path) -> None:
    make(tmp_path / "a")
    digest = locate("harbor:a", tmp_path).read().digest
    (tmp_path / "dataset.toml").write_text(
        f'[dataset]\nname = "o/d"\n[[tasks]]\nname = "o/a"\ndigest = "{digest}"\n'
    )
    [member] = expanded(["harbor:dataset.toml"], tmp_path)
    assert member == "harbor:dataset.toml#o/a"
    assert expanded([member], tmp_path) == [member]
    assert locate(member, tmp_path).digest == digest
    (tmp_path / "a" / "instruction.md").write_text("Do something else.\n")
    with pytest.raises(ConfigError, match="digest"):
        tasks.load(member, harbor=HarborSettings(root=tmp_path))


def test_members_of_a_registry_are_found_again(tmp_path: Path) -> None:
    make(tmp_path / "a")
    rows = [{"name": "one", "tasks": [{"name": "x", "path": "a"}]}]
    (tmp_path / "registry.json").write_text(json.dumps(rows))
    assert expanded(["harbor:registry.json"], tmp_path) == ["harbor:registry.json##x"]
    assert expanded(["harbor:registry.json#one"], tmp_path) == ["harbor:registry.json#one#x"]
    for member in ("harbor:registry.json##x", "harbor:registry.json#one#x"):
        assert locate(member, tmp_path).path == tmp_path / "a"
        assert expanded([member], tmp_path) == [member]
    with pytest.raises(MissingError, match="'y'"):
        locate("harbor:registry.json##y", tmp_path)


@pytest.mark.parametrize(
    ("task_id", "names"),
    [
        ("harbor:a", ["a"]),
        ("harbor:dataset.toml", ["o/a", "o/b"]),
        ("harbor:dataset.toml#o/b", ["o/b"]),
        ("harbor:registry.json#one", ["x", "y"]),
        ("harbor:registry.json##y", ["y"]),
        ("harbor:registry.json#one#x", ["x"]),
    ],
)
def test_images_are_built_for_what_an_id_names(
    tmp_path: Path, task_id: str, names: list[str]
) -> None:
    tables = []
    for name in ("a", "b"):
        make(tmp_path / name, f'[task]\nname = "o/{name}"')
        digest = locate(f"harbor:{name}", tmp_path).read().digest
        tables.append(f'[[tasks]]\nname = "o/{name}"\ndigest = "{digest}"\n')
    (tmp_path / "dataset.toml").write_text('[dataset]\nname = "o/d"\n' + "".join(tables))
    rows = [{"name": "x", "path": "a"}, {"name": "y", "path": "b"}]
    (tmp_path / "registry.json").write_text(json.dumps([{"name": "one", "tasks": rows}]))
    assert [task.name for task in named(task_id, tmp_path)] == names
    images, faults = wanted_of(task_id, tmp_path)
    assert ([image.tag for image in images], faults) == (["air-base"] * len(names), [])


def test_the_file_of_a_data_set_is_read_once_for_all_its_tasks(tmp_path: Path) -> None:
    rows = [{"name": f"t{number}", "path": "a"} for number in range(2000)]
    file = tmp_path / "registry.json"
    file.write_text(json.dumps([{"name": "one", "tasks": rows}]))
    _of_file.cache_clear()
    for member in expanded(["harbor:registry.json"], tmp_path)[:50]:
        assert locate(member, tmp_path).path == tmp_path / "a"
    assert _of_file.cache_info().misses == 1
    file.write_text(json.dumps([{"name": "one", "tasks": rows[:1]}]))
    with pytest.raises(MissingError, match="'t7'"):
        locate("harbor:registry.json##t7", tmp_path)


def test_variables_of_this_machine_need_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_TEST_A", "secret")
    closed, opened = HarborSettings(), HarborSettings(host_env=("AIR_TEST_A", "AIR_TEST_NONE"))
    assert resolved({"a": "x", "b": "${AIR_TEST_A:-d}"}, closed, where="t") == {"a": "x", "b": "d"}
    assert resolved({"a": "<${AIR_TEST_A}>"}, opened, where="t") == {"a": "<secret>"}
    with pytest.raises(ConfigError, match=r"AIR_TEST_A.*host_env"):
        resolved({"a": "${AIR_TEST_A}"}, closed, where="t")
    with pytest.raises(ConfigError, match=r"AIR_TEST_NONE.*not set"):
        resolved({"a": "${AIR_TEST_NONE}"}, opened, where="t")


def test_the_network_of_a_phase_comes_before_that_of_the_environment() -> None:
    public, closed = Network(), Network(network_mode="no-network")
    listed = Network(network_mode="allowlist", allowed_hosts=("pypi.org",))
    settings = HarborSettings()
    assert hosts(public, Network(), settings) == ("*",)
    assert hosts(closed, Network(), settings) == ()
    assert hosts(closed, listed, settings) == ("pypi.org",)
    assert hosts(listed, closed, settings) == ()
    assert hosts(public, Network(), HarborSettings(network="none")) == ()


def test_a_variable_that_the_tests_lack_is_named_before_anything_is_played(tmp_path: Path) -> None:
    make(tmp_path / "a", '[verifier.env]\nKEY = "${AIR_TEST_KEY}"\n')
    rules = tasks.load("harbor:a", harbor=HarborSettings(root=tmp_path)).rules
    assert rules is not None
    with pytest.raises(ConfigError, match=r"harbor:a: verifier\.env.*AIR_TEST_KEY"):
        rules.check()
