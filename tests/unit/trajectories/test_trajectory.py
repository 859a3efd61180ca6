"""The typed reader: every version, unknown fields, cut-off files."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path

import pytest

from air.errors import ConfigError
from air.trajectories import VERSION, Recorder, load
from air.trajectories.artefacts import READ_BYTES, ArtefactStore, read_artefact

V1 = Path(__file__).with_name("v1.jsonl")


def written(folder: Path) -> Path:
    with Recorder(folder, "e") as recorder:
        recorder.write("start", task="titanic", episode="e", system="S", prompt="P", soon={"x": 1})
        recorder.write(
            "step",
            turn=1,
            reply="R1",
            reasoning="Hm.",
            action="ls",
            call={"script": "ls", "tool": None, "ending": None, "later": 1},
            observation="all of it",
            shown="some",
            diff={"text": "d", "files": [{"path": "a", "status": "added", "added": 1}]},
            tokens={"nodes": [0, 3], "prompt": 10, "completion": 2},
        )
        recorder.write("validate", turn=1, score=0.5, phi=0.1, anchor=0.0, delta=0.1)
        recorder.write("validate", turn=1, score=0.5, automatic=True)
        recorder.write(
            "end", ok=True, reward=0.1, terms={"delta": 0.1}, metrics={"seconds_exec": 2.0}
        )
    return folder / "e.jsonl"


def test_all_that_was_written_comes_back_typed(tmp_path: Path) -> None:
    one = load(written(tmp_path))
    assert one.version == VERSION
    assert one.start is not None
    assert one.start.task == "titanic"
    (step,) = one.steps
    assert (step.observation, step.shown) == ("all of it", "some")
    assert step.call is not None
    assert step.call.script == "ls"
    assert step.diff is not None
    assert step.diff.files[0].path == "a"
    assert step.tokens is not None
    assert step.tokens.nodes == (0, 3)
    assert [v.automatic for v in one.validations] == [False, True]
    assert one.validations_of(step) == [one.validations[0]]
    assert one.end is not None
    assert one.end.times == {"exec": 2.0}
    assert [m["content"] for m in one.messages()] == ["S", "P", "R1", "some"]
    assert [m.get("reasoning_content") for m in one.messages()] == [None, None, "Hm.", None]


def test_version_1_is_read() -> None:
    one = load(V1)
    assert one.version == 1
    assert one.steps[0].shown.startswith("hi\n")
    assert all(
        step.observation is None and step.call is None and step.reasoning is None
        for step in one.steps
    )
    assert one.validations[0].score == 0.7
    assert one.end is not None
    assert one.end.reward == 0.25


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_cut_off_file_is_read_as_far_as_it_goes(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:-cut])
    one = load(path)
    assert len(one.steps) == 1
    assert (one.end is None) == (cut > 1)


def test_a_crash_in_the_middle_of_a_character_loses_that_line_only(tmp_path: Path) -> None:
    path = written(tmp_path)
    with path.open("ab") as file:
        file.write('{"v": 2, "type": "step", "reply": "ü'.encode()[:-1])
    assert load(path).end is not None


def test_an_empty_file_is_an_episode_that_has_not_begun(tmp_path: Path) -> None:
    (tmp_path / "e.jsonl").touch()
    one = load(tmp_path / "e.jsonl")
    assert (one.start, one.steps, one.version) == (None, (), 0)


def test_a_line_that_lacks_what_it_must_have_is_named(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text('{"v": 2, "type": "start"}\n{"v": 2, "type": "end"}\n')
    with pytest.raises(ConfigError, match=r"e\.jsonl:1: start: `task`"):
        load(path)


def test_another_jsonl_file_is_no_trajectory(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(json.dumps({"step": 1, "reward": 0.1}) + "\n{}\n")
    with pytest.raises(ConfigError, match="not a line of a trajectory"):
        load(path)


FILES = {"a.csv": b"1,2\n", "model/w.bin": bytes(range(256))}


def test_an_artefact_is_kept_once_and_comes_back(tmp_path: Path) -> None:
    store = ArtefactStore(tmp_path, most_bytes=1000, most_total=10_000)
    where = store.keep("abcd", FILES)
    before = (tmp_path / where).stat()
    assert store.keep("abcd", FILES) == where
    assert (tmp_path / where).stat() == before
    assert read_artefact(tmp_path, where) == FILES
    assert len(list((tmp_path / "artefacts").rglob("*"))) == 2


def test_artefacts_are_kept_within_bounds(tmp_path: Path) -> None:
    assert ArtefactStore(tmp_path, most_bytes=100, most_total=10_000).keep("aa", FILES) == ""
    first = ArtefactStore(tmp_path, most_bytes=1000, most_total=600)
    assert first.keep("aa", FILES)
    assert first.keep("bb", {"other": bytes(reversed(range(256)))}) == ""
    # A later process counts what is there.
    again = ArtefactStore(tmp_path, most_bytes=1000, most_total=600)
    assert again.keep("cc", {"other": bytes(reversed(range(256)))}) == ""
    assert ArtefactStore(None, most_bytes=1000, most_total=600).keep("aa", FILES) == ""


def test_a_kept_artefact_that_is_damaged_is_named(tmp_path: Path) -> None:
    store = ArtefactStore(tmp_path, most_bytes=1000, most_total=10_000)
    where = store.keep("aa", FILES)
    path = tmp_path / where
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_artefact(tmp_path, where)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_artefact(tmp_path, where.replace("aa", "bb"))


def test_only_what_was_kept_is_read_as_an_artefact(tmp_path: Path) -> None:
    run = tmp_path / "run"
    outside = tmp_path / ArtefactStore(tmp_path, most_bytes=1000, most_total=10_000).keep(
        "aa", FILES
    )
    (run / "artefacts" / "bb").mkdir(parents=True)
    for name in (f"../artefacts/aa/{outside.name}", str(outside), "..", "artefacts/aa/../aa"):
        with pytest.raises(ConfigError, match="is not the name of a stored artefact"):
            read_artefact(run, name)
    (run / "artefacts" / "bb" / "bb.tar.gz").symlink_to(outside)
    with pytest.raises(ConfigError, match="a link out of"):
        read_artefact(run, "artefacts/bb/bb.tar.gz")
    large = run / "artefacts" / "bb" / "cc.tar.gz"
    member = tarfile.TarInfo("large")
    member.size = READ_BYTES + 1
    large.write_bytes(gzip.compress(member.tobuf()))
    with pytest.raises(ConfigError, match="unpacks to more"):
        read_artefact(run, "artefacts/bb/cc.tar.gz")
