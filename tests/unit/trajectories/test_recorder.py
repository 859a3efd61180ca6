"""Trajectory files: appended line by line, read back whatever happened to the last one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from air.cli.main import main
from air.errors import ConfigError, InfrastructureError
from air.trajectories import VERSION, Recorder, read
from air.trajectories.conversations import messages, to_sft


def written(folder: Path) -> Path:
    with Recorder(folder, "e1") as recorder:
        recorder.write("start", task="t", system="S", prompt="P")
        recorder.write(
            "step", reply="R1", observation="more than O1", shown="O1", unknown_field=[1]
        )
        recorder.write("step", reply="R2", observation="O2", shown="O2")
        recorder.write("end", ok=True)
    return folder / "e1.jsonl"


def test_lines_come_back_in_order_with_fields_that_nobody_knows(tmp_path: Path) -> None:
    lines = list(read(written(tmp_path)))
    assert [line["type"] for line in lines] == ["start", "step", "step", "end"]
    assert lines[1]["unknown_field"] == [1]
    assert all(line["v"] == VERSION for line in lines)


def test_a_line_is_on_disk_before_the_recorder_is_closed(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "e2")
    recorder.write("start", system="", prompt="")
    assert len(list(read(tmp_path / "e2.jsonl"))) == 1
    recorder.close()
    recorder.close()


def test_a_half_written_last_line_is_skipped(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text()[:-20])
    assert len(list(read(path))) == 3


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = written(tmp_path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:-5], *lines[2:]]) + "\n")
    with pytest.raises(ConfigError, match=r"e1\.jsonl:2"):
        list(read(path))


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_text('{"v": 99, "type": "start"}\n')
    with pytest.raises(ConfigError, match="newer"):
        list(read(path))


def test_one_writer_a_file(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(InfrastructureError, match="cannot record"):
        Recorder(tmp_path, "e1")


def test_without_a_folder_nothing_is_recorded() -> None:
    with Recorder(None, "e") as recorder:
        recorder.write("start")
    assert recorder.path is None


def test_a_conversation_ends_with_its_last_reply(tmp_path: Path) -> None:
    assert [(m["role"], m["content"]) for m in messages(written(tmp_path))] == [
        ("system", "S"),
        ("user", "P"),
        ("assistant", "R1"),
        ("user", "O1"),
        ("assistant", "R2"),
    ]


def test_sft_skips_episodes_without_a_reply(tmp_path: Path) -> None:
    paths = [written(tmp_path)]
    with Recorder(tmp_path, "silent") as recorder:
        recorder.write("start", task="t", system="S", prompt="P")
    out = tmp_path / "out" / "sft.jsonl"
    assert to_sft([*paths, tmp_path / "silent.jsonl"], out) == 1
    assert len(json.loads(out.read_text())["messages"]) == 5


def test_what_is_no_trajectory_is_said_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "e1.jsonl"
    path.write_text("{}\n{}\n")
    with pytest.raises(ConfigError, match="not a line of a trajectory"):
        messages(path)
    with pytest.raises(ConfigError, match="cannot write"):
        to_sft([], path / "out.jsonl")


def test_a_lone_surrogate_can_be_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text().replace('"R1"', '"\\ud800"'))
    command = ["trajectories", "export", str(path)]
    assert main([*command, "--to", "sft", "--out", str(tmp_path / "s.jsonl")]) == 0
    assert main([*command, "--to", "atif", "--out", str(tmp_path / "atif")]) == 0
    assert '"?"' in (tmp_path / "atif" / "e1.json").read_text()
    assert main([*command, "--to", "atif", "--out", str(path)]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_an_error_does_not_drive_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "e1.jsonl"
    start = {"v": 2, "type": "start", "task": "t", "harness": "air", "origin": "\x1b]0;mine\x07x"}
    path.write_text(json.dumps(start) + "\n")
    assert main(["replay", str(path)]) == 2
    path.write_text(json.dumps({**start, "v": 10**9, "type": "\x1b[2J"}) + "\n")
    assert (
        main(["trajectories", "export", str(path), "--to", "sft", "--out", str(tmp_path / "o")])
        == 2
    )
    assert "\x1b" not in capsys.readouterr().err
