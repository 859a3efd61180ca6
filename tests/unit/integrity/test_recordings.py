"""Which recorded trajectories belong to which Harbor task, and what is refused."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from air.cli import harbor_check
from air.cli.main import main
from air.errors import ConfigError, MissingError
from air.integrity.gate.hacks import HACKS
from air.integrity.gate.recordings import recorded_hacks
from tests.harbor.features import SETTINGS
from tests.harbor.folders import write
from tests.harbor.recordings import ran, save, trajectory

LISTS = trajectory(ran("ls"))
TWO = {"harbor:set/a": Path("set/a"), "harbor:set/b": Path("set/b")}
ONE = {"harbor:set/a": Path("set/a")}


def _names(source: Path, folders: dict[str, Path]) -> dict[str, list[str]]:
    hacks = recorded_hacks(source, folders)
    assert all(hack.recording is not None for ones in hacks.values() for hack in ones)
    return {task: [hack.name for hack in ones] for task, ones in hacks.items()}


def test_trajectories_belong_to_the_task_whose_folder_has_their_name(tmp_path: Path) -> None:
    for name in ("a/2/trajectory.json", "a/1.json", "c/1.json", "1.json"):
        save(tmp_path / name, LISTS)
    save(tmp_path / "a" / "result.json", {"reward": 1})
    of_a = ["trajectory:a/1.json", "trajectory:a/2/trajectory.json"]
    assert _names(tmp_path, TWO) == {"harbor:set/a": of_a}
    assert _names(tmp_path, ONE) == {"harbor:set/a": of_a}


def test_all_trajectories_belong_to_the_only_task(tmp_path: Path) -> None:
    save(tmp_path / "v5" / "trial" / "trajectory.json", LISTS)
    file = save(tmp_path / "v6.json", LISTS)
    names = ["trajectory:v5/trial/trajectory.json", "trajectory:v6.json"]
    assert _names(tmp_path, ONE) == {"harbor:set/a": names}
    assert _names(file, ONE) == {"harbor:set/a": ["trajectory:v6.json"]}


def test_what_is_no_trajectory_of_a_task_is_refused(tmp_path: Path) -> None:
    file = save(tmp_path / "1.json", LISTS)
    with pytest.raises(MissingError, match="nowhere: does not exist"):
        recorded_hacks(tmp_path / "nowhere", ONE)
    with pytest.raises(ConfigError, match=r"1.json: is one trajectory, and 2 tasks are checked"):
        recorded_hacks(file, TWO)
    with pytest.raises(ConfigError, match="contains no ATIF trajectory of a task"):
        recorded_hacks(tmp_path, TWO)
    other = save(tmp_path / "other.json", {"steps": []})
    with pytest.raises(ConfigError, match=r"other.json: schema_version: is no trajectory in ATIF"):
        recorded_hacks(other, ONE)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigError, match=r"broken.json: is no readable JSON"):
        recorded_hacks(tmp_path, ONE)


def test_only_chooses_all_trajectories_or_one(tmp_path: Path) -> None:
    for name in ("1.json", "2.json"):
        save(tmp_path / name, LISTS)
    recorded = recorded_hacks(tmp_path, ONE)

    def chosen(*only: str, attacks: bool = True) -> tuple[int, list[str]]:
        arguments = argparse.Namespace(attacks=attacks, only=list(only))
        hacks, of_tasks = harbor_check._chosen(arguments, recorded)
        return len(hacks), [hack.name for hack in of_tasks.get("harbor:set/a", ())]

    both = ["trajectory:1.json", "trajectory:2.json"]
    assert chosen() == (len(HACKS), both)
    assert chosen(attacks=False) == (0, [])
    assert chosen("trajectories") == (0, both)
    assert chosen("trajectory:2.json", "empty-files") == (1, both[1:])
    assert chosen("empty-files") == (1, [])


def test_the_command_names_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write([next(one for one in SETTINGS if one.name == "existing-image")], tmp_path)
    save(tmp_path / "1.json", LISTS)
    monkeypatch.chdir(tmp_path)
    check = ["tasks", "check", "harbor:existing-image", "--trajectories", "1.json"]
    for arguments, says in (
        (check, "--trajectories: belongs to --attacks"),
        (["tasks", "check", "titanic", *check[3:]], "--trajectories: applies only to Harbor tasks"),
        (
            [*check, "--attacks", "--only", "trajectory:2.json"],
            "there is no hack 'trajectory:2.json'",
        ),
        ([*check[:-1], "2.json", "--attacks"], "2.json: does not exist"),
    ):
        assert main(arguments) == 2
        assert says in capsys.readouterr().err
