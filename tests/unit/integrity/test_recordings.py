"""Which recorded trajectories belong to which Harbor task, and what is refused."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from air.cli import harbor_check
from air.cli.main import main
from air.errors import ConfigError, MissingError
from air.integrity.gate.check import digest_of
from air.integrity.gate.hacks import HACKS
from air.integrity.gate.recordings import LARGEST_FILE, RecordedHacks, read_recorded_hacks
from tests.harbor.features import SETTINGS
from tests.harbor.folders import write
from tests.harbor.recordings import ran, save, trajectory

LISTS = trajectory(ran("ls"))
TWO = {"harbor:set/a": Path("set/a"), "harbor:set/b": Path("set/b")}
ONE = {"harbor:set/a": Path("set/a")}


def _names(recorded: RecordedHacks) -> dict[str, list[str]]:
    assert all(hack.recording for hacks in recorded.by_task.values() for hack in hacks)
    return {task: [hack.name for hack in hacks] for task, hacks in recorded.by_task.items()}


def test_trajectories_belong_to_the_task_whose_folder_has_their_name(tmp_path: Path) -> None:
    for name in ("a/2/trajectory.json", "a/1.json", "c/1.json", "1.json"):
        save(tmp_path / name, LISTS)
    save(tmp_path / "a" / "result.json", {"reward": 1})
    hacks = {"harbor:set/a": ["trajectory:1.json", "trajectory:2/trajectory.json"]}
    assert _names(read_recorded_hacks(tmp_path, TWO)) == hacks
    assert _names(read_recorded_hacks(tmp_path, ONE)) == hacks


def test_all_trajectories_belong_to_the_only_task(tmp_path: Path) -> None:
    save(tmp_path / "v5" / "trial" / "trajectory.json", LISTS)
    file = save(tmp_path / "v6.json", LISTS)
    names = ["trajectory:v5/trial/trajectory.json", "trajectory:v6.json"]
    assert _names(read_recorded_hacks(tmp_path, ONE)) == {"harbor:set/a": names}
    assert _names(read_recorded_hacks(file, ONE)) == {"harbor:set/a": ["trajectory:v6.json"]}


def test_files_without_commands_are_skipped_as_in_a_trial_of_terminus_2(tmp_path: Path) -> None:
    agent = tmp_path / "a" / "trial" / "agent"
    save(agent / "trajectory.json", LISTS)
    save(agent / "trajectory.cont-1.json", LISTS)
    summary = save(agent / "trajectory.summarization-1-summary.json", trajectory())
    save(agent.parent / "result.json", {"reward": 1})
    broken = agent.parent / "broken.json"
    broken.write_text("{")
    outside = save(tmp_path.parent / f"{tmp_path.name}.json", LISTS)
    (agent / "link.json").symlink_to(outside)
    os.mkfifo(agent / "pipe.json")
    large = agent / "large.json"
    with large.open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    recorded = read_recorded_hacks(tmp_path, TWO)
    names = [f"trajectory:trial/agent/trajectory{end}.json" for end in (".cont-1", "")]
    assert _names(recorded) == {"harbor:set/a": names}
    assert recorded.skipped == (large, summary, broken)


def test_two_tasks_may_not_share_trajectories(tmp_path: Path) -> None:
    save(tmp_path / "a" / "1.json", LISTS)
    with pytest.raises(ConfigError, match="/a: 2 tasks have a folder of this name"):
        read_recorded_hacks(tmp_path, {**ONE, "harbor:other/a": Path("other/a")})


def test_what_is_no_trajectory_of_a_task_is_refused(tmp_path: Path) -> None:
    file = save(tmp_path / "1.json", LISTS)
    with pytest.raises(MissingError, match="nowhere: does not exist"):
        read_recorded_hacks(tmp_path / "nowhere", ONE)
    with pytest.raises(ConfigError, match=r"1.json: is one trajectory, and 2 tasks are checked"):
        read_recorded_hacks(file, TWO)
    with pytest.raises(ConfigError, match="contains no ATIF trajectory with shell"):
        read_recorded_hacks(tmp_path, TWO)
    other = save(tmp_path / "other.json", {"steps": []})
    with pytest.raises(ConfigError, match=r"other.json: schema_version: is no trajectory in ATIF"):
        read_recorded_hacks(other, ONE)
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(ConfigError, match=r"broken.json: is no readable JSON"):
        read_recorded_hacks(broken, ONE)
    with pytest.raises(ConfigError, match="contains a shell command or keystrokes"):
        read_recorded_hacks(save(tmp_path / "none" / "1.json", trajectory()), ONE)
    with pytest.raises(ConfigError, match="contains no ATIF trajectory"):
        read_recorded_hacks(tmp_path / "none", ONE)


def test_only_chooses_all_trajectories_or_one(tmp_path: Path) -> None:
    for name in ("1.json", "2.json"):
        save(tmp_path / name, LISTS)
    replays = read_recorded_hacks(tmp_path, ONE).by_task

    def chosen(*only: str, attacks: bool = True) -> tuple[int, list[str]]:
        arguments = argparse.Namespace(attacks=attacks, only=list(only))
        hacks, by_task = harbor_check._chosen(arguments, replays)
        return len(hacks), [hack.name for hack in by_task.get("harbor:set/a", ())]

    both = ["trajectory:1.json", "trajectory:2.json"]
    assert chosen() == (len(HACKS), both)
    assert chosen(attacks=False) == (0, [])
    assert chosen("trajectories") == (0, both)
    assert chosen("trajectory:2.json", "empty-files") == (1, both[1:])
    assert chosen("empty-files") == (1, [])


def test_the_command_says_what_it_does_not_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = next(one for one in SETTINGS if one.name == "existing-image")
    write([replace(task, name=name) for name in ("a", "b")], tmp_path / "tasks")
    save(tmp_path / "hacks" / "a" / "1.json", LISTS)
    save(tmp_path / "hacks" / "a" / "2.json", trajectory())
    arguments = argparse.Namespace(attacks=True, trajectories=tmp_path / "hacks")
    ids = ["harbor:a", "harbor:b", "harbor:absent"]
    assert list(harbor_check._replays(arguments, ids, tmp_path / "tasks")) == ["harbor:a"]
    assert capsys.readouterr().err.splitlines() == [
        f"nothing to replay in {tmp_path}/hacks/a/2.json",
        "no trajectories for harbor:b, harbor:absent",
    ]


async def test_a_file_name_that_is_no_text_has_a_digest(tmp_path: Path) -> None:
    save(tmp_path / os.fsdecode(b"\xff.json"), LISTS)
    [hack] = read_recorded_hacks(tmp_path, ONE).by_task["harbor:set/a"]
    assert hack.name == "trajectory:\udcff.json"
    task: Any = SimpleNamespace(hash="hash", rules=SimpleNamespace(images=()))
    digests = [await digest_of(task, hacks) for hacks in ((), [hack], [replace(hack, name="b")])]
    assert len(set(digests)) == 3


def test_the_command_names_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write([next(one for one in SETTINGS if one.name == "existing-image")], tmp_path)
    save(tmp_path / "1.json", LISTS)
    monkeypatch.chdir(tmp_path)
    check = ["tasks", "check", "harbor:existing-image", "--trajectories", "1.json"]
    for arguments, says in (
        (check, "--trajectories: has no effect without --attacks"),
        (["tasks", "check", "titanic", *check[3:]], "--trajectories: applies only to Harbor tasks"),
        (
            [*check, "--attacks", "--only", "trajectory:2.json"],
            "there is no hack 'trajectory:2.json'",
        ),
        ([*check[:-1], "2.json", "--attacks"], "2.json: does not exist"),
    ):
        assert main(arguments) == 2
        assert says in capsys.readouterr().err
