"""The index: what it finds, that it reads only what is new, and that nothing on disk breaks it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from air.cli.main import main
from air.errors import ConfigError, MissingError, UsageError
from air.json_lines import Mark, Tail
from air.trajectories import Recorder
from air.view.index.index_file import IndexFile
from air.view.index.run_discovery import discover
from air.view.index.run_index import Filter, RunIndex
from air.view.index.sqlite_schema import file_of, sort_order


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of three episodes and one that is played."""
    root = tmp_path / "run"
    for number, (task, scores) in enumerate([("a", [0.2, 0.6]), ("a", [0.9]), ("b", [None])]):
        with Recorder(root / "trajectories", f"e{number}") as recorder:
            start(recorder, f"e{number}", task)
            for turn, score in enumerate(scores, start=1):
                recorder.write("step", turn=turn, reply="r", action="x", observation="o", code=0)
                problem = "" if score is not None else "missing"
                recorder.write("validate", turn=turn, score=score, delta=0.1, problem=problem)
            end(recorder, reward=sum(s or 0 for s in scores), ok=task == "a")
    with Recorder(root / "trajectories", "live") as recorder:
        start(recorder, "live", "b")
        recorder.write("step", turn=1, reply="r", action=None, observation="no action")
    members = [{"episode": "e0", "advantage": -0.1}, {"episode": "e1", "advantage": 0.1}]
    line = {"step": 3, "group": 1, "task": "a", "episodes": members}
    (root / "groups.jsonl").write_text(json.dumps(line) + "\n")
    (root / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n{"step": 2, "rew')
    return root


def start(recorder: Recorder, name: str, task: str) -> None:
    recorder.write("start", episode=name, task=task, metric="m", direction="higher", model="mo")


def end(recorder: Recorder, *, reward: float, ok: bool = True) -> None:
    error = None if ok else "GradingError: it broke, größer"
    times = {"seconds_model": 2.0, "seconds_exec": 1.0, "test_score": 0.4}
    recorder.write(
        "end", ok=ok, why="submit", error=error, reward=reward if ok else None, metrics=times
    )


def names(index: RunIndex, wanted: Filter | None = None, sort: str = "oldest") -> list[str]:
    return [one.name for one in index.episodes(wanted, sort=sort)]


def test_episodes_are_found_filtered_and_sorted(folder: Path) -> None:
    index = RunIndex(folder)
    assert index.file.refresh()
    assert not index.file.refresh()
    assert set(names(index)) == {"e0", "e1", "e2", "live"}
    assert names(index, sort="reward, best first")[:2] == ["e1", "e0"]
    assert names(index, sort="longest")[0] == "e0"
    for wanted, found in [
        (Filter(task="b"), {"e2", "live"}),
        (Filter(how="failed"), {"e2"}),
        (Filter(how="unfinished"), {"live"}),
        (Filter(errors=True), {"e2", "live"}),
        (Filter(text="IT BROKE"), {"e2"}),
        (Filter(text="GRÖSSER"), {"e2"}),
        (Filter(text="e1"), {"e1"}),
        (Filter(reward=(0.85, 2)), {"e1"}),
        (Filter(turns=(2, 9)), {"e0"}),
        (Filter(step=3), {"e0", "e1"}),
    ]:
        assert set(names(index, wanted)) == found
        assert index.count(wanted) == len(found)
    assert [one.name for one in index.episodes(sort="oldest", offset=1, limit=2)] == names(index)[
        1:3
    ]
    one = index.episode("e0")
    assert one is not None
    assert (one.step, one.group, one.advantage) == (3, 1, -0.1)
    assert (one.facts.score, one.facts.best, one.facts.test, one.facts.turns) == (0.6, 0.6, 0.4, 2)
    assert [each.name for each in index.group(3, 1)] == ["e0", "e1"]
    assert index.metrics() == [{"step": 1, "reward": 0.5}]
    totals = index.totals()
    assert (totals["episodes"], totals["well"], totals["failed"], totals["unfinished"]) == (
        4,
        2,
        1,
        1,
    )
    assert totals["seconds_model"] == 6.0
    assert [row["task"] for row in index.by_task()] == ["a", "b"]
    assert index.by_task()[0]["best"] == 0.9
    assert index.models() == ["mo"]
    last = index.scores("best", last_quarter=True)
    assert {(one["model"], one["task"], one["value"]) for one in last} == {
        ("mo", "a", 0.6),
        ("mo", "a", 0.9),
    }


def test_a_sort_order_is_found_by_the_beginning_of_its_name() -> None:
    assert sort_order("reward") == "reward, best first"
    assert sort_order("reward, worst first") == "reward, worst first"
    with pytest.raises(ConfigError, match="unknown: luck"):
        sort_order("luck")


def test_a_turn_and_its_validates_are_one_item_and_jumps_find_them(folder: Path) -> None:
    with Recorder(folder / "trajectories", "long") as recorder:
        start(recorder, "long", "a")
        for turn in range(1, 6):
            code = 1 if turn == 4 else 0
            recorder.write("step", turn=turn, reply="r", action=f"do {turn}", code=code)
            if turn in (2, 5):
                recorder.write("validate", turn=turn, score=0.1 * turn, delta=0.1)
        recorder.write("validate", turn=5, score=0.5, automatic=True)
    index = RunIndex(folder)
    index.file.refresh()
    one = index.episode("long")
    assert one is not None
    assert index.items(one) == 5
    assert [index.jump(one, item, "validate") for item in (-1, 0, 1, 4)] == [1, 1, 4, None]
    assert index.jump(one, 4, "validate", back=True) == 1
    assert [index.jump(one, item, "error") for item in (0, 3)] == [3, None]
    lines = index.load(one, index.places(one, 3, 2))
    assert [line["type"] for line in lines] == ["step", "step", "validate", "validate"]
    assert lines[0]["action"] == "do 4"
    assert [place.score for place in index.curve(one)] == [0.2, 0.5, 0.5]


def test_only_what_was_appended_is_read(folder: Path) -> None:
    index = RunIndex(folder)
    index.file.refresh()
    path = folder / "trajectories" / "live.jsonl"
    mark = IndexFile(folder).marks()["live"]
    with path.open("a") as file:
        file.write('{"v": 1, "type": "step", "turn": 2, "action": "y", "code": 0}\n{"v": 1, "ty')
    tail = Tail(path, mark)
    assert [line.offset for line in tail] == [mark.offset]
    assert not tail.from_start
    assert index.file.refresh()
    one = index.episode("live")
    assert one is not None
    assert (one.facts.turns, one.problems) == (2, 0)
    with path.open("a") as file:
        file.write('pe": "end", "ok": true, "reward": 1.5}\n')
    assert index.file.refresh()
    one = index.episode("live")
    assert one is not None
    assert (one.facts.how, one.facts.reward) == ("well", 1.5)


def test_a_file_that_was_written_anew_is_read_anew(folder: Path) -> None:
    index = RunIndex(folder)
    index.file.refresh()
    path = folder / "trajectories" / "e0.jsonl"
    with path.open("w") as file:
        file.write('{"v": 1, "type": "start", "task": "c"}\n')
        file.write('{"v": 1, "type": "end", "ok": true, "reward": 9}\n' + " " * 2000 + "\n")
    (folder / "trajectories" / "e1.jsonl").unlink()
    assert index.file.refresh()
    one = index.episode("e0")
    assert one is not None
    assert (one.facts.task, one.facts.reward, one.facts.turns, one.problems) == ("c", 9.0, 0, 1)
    assert index.episode("e1") is None


def test_two_readers_and_a_new_one_agree(folder: Path) -> None:
    first, second = RunIndex(folder), RunIndex(folder)
    first.file.refresh()
    with Recorder(folder / "trajectories", "new") as recorder:
        start(recorder, "new", "a")
    assert second.file.refresh()
    assert first.file.refresh() is False  # the other one has read it
    assert names(first) == names(second)
    first.file.close()
    assert names(second) == names(RunIndex(folder))


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe not text\n",
        b"[]\n{}\n1\n",
        b'{"type": 3}\n{"type": "step", "turn": 1e400, "code": {}, "exec_seconds": "x"}\n',
        b'{"type": "step", "turn": 99999999999999999999999, "action": "\\ud800"}\n',
        b'{"type": "end", "ok": true, "reward": NaN, "metrics": [1], "terms": 4, "error": {}}\n',
        b'{"type": "start", "task": "\\ud800\\u0000", "direction": 4, "baseline": true}\n',
        b"[" * 200_000 + b"\n",
        b'{"v": 99, "type": "later", "turn": []}\n',
        b"",
    ],
)
def test_whatever_lies_there_hides_no_other_episode(content: bytes, folder: Path) -> None:
    (folder / "trajectories" / "bad.jsonl").write_bytes(content)
    (folder / "groups.jsonl").write_bytes(content)
    index = RunIndex(folder)
    index.file.refresh()
    assert {"e0", "e1", "e2", "live", "bad"} == set(names(index))
    bad = index.episode("bad")
    assert bad is not None
    index.load(bad, index.head(bad))
    index.groups()


def test_a_broken_index_is_made_anew(folder: Path) -> None:
    index = RunIndex(folder)
    index.file.refresh()
    index.file.close()
    file = file_of(folder.resolve())
    for beside in file.parent.iterdir():
        beside.unlink()
    file.write_bytes(b"this is no database, but it is long enough to be looked at" * 100)
    index = RunIndex(folder)
    index.file.refresh()
    assert index.count() == 4


def test_what_cannot_be_used_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingError, match="no such run"):
        IndexFile(folder / "nowhere")
    index = RunIndex(folder)
    index.file.refresh()
    one = index.episode("e0")
    assert one is not None
    places = index.places(one, 0, 1)
    (folder / "trajectories" / "e0.jsonl").write_text("x" * 5000)
    with pytest.raises(ConfigError, match="has changed"):
        index.load(one, places)
    (folder / "trajectories" / "e0.jsonl").unlink()
    with pytest.raises(MissingError, match="is gone"):
        index.load(one, places)
    monkeypatch.setenv("AIR_CACHE", os.devnull)
    with pytest.raises(UsageError, match="AIR_CACHE"):
        RunIndex(folder)


def test_a_mark_of_an_unread_file_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b'{"a": 1}\n{"b": 2}')
    tail = Tail(path, Mark())
    assert [(line.offset, line.length, line.data) for line in tail] == [(0, 9, {"a": 1})]
    assert (tail.mark.offset, tail.mark.size) == (9, 17)


def test_one_bad_file_hides_no_other(folder: Path) -> None:
    inner = folder / "trajectories"
    (inner / "gone.jsonl").symlink_to("nowhere")
    (inner / "loop.jsonl").symlink_to("loop.jsonl")
    (inner / "folder.jsonl").mkdir()
    os.mkfifo(inner / "pipe.jsonl")
    (inner / os.fsdecode(b"\xff.jsonl")).write_text("{}\n")
    odd = [
        {"step": 1, "group": [1], "episodes": [{"episode": "e2", "advantage": {}}]},
        {"step": 2**70, "group": 1, "episodes": []},
        {"step": 2, "group": 2**70, "episodes": 5},
        {"step": 3, "group": 1, "episodes": [{"episode": "\ud800", "advantage": 2**2000}]},
    ]
    with (folder / "groups.jsonl").open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in odd))
    index = RunIndex(folder)
    assert index.file.refresh()
    assert not index.file.refresh()
    assert set(names(index)) == {"e0", "e1", "e2", "live"}


def test_a_file_that_cannot_be_read_is_an_episode_with_a_problem(folder: Path) -> None:
    # Reading /proc/self/mem fails at its first byte, for root too.
    (folder / "trajectories" / "bad.jsonl").symlink_to("/proc/self/mem")
    index = RunIndex(folder)
    assert index.file.refresh()
    assert not index.file.refresh()
    one = index.episode("bad")
    assert one is not None
    assert one.problems == 1
    assert set(names(index)) == {"e0", "e1", "e2", "live", "bad"}
    (folder / "trajectories" / "bad.jsonl").unlink()
    with Recorder(folder / "trajectories", "bad") as recorder:
        start(recorder, "bad", "a")
    assert index.file.refresh()
    one = index.episode("bad")
    assert one is not None
    assert (one.problems, one.facts.task) == (0, "a")


def test_an_output_of_verifiers_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))
    reply = {"message": {"role": "assistant", "content": "done"}, "parent": 0, "sampled": True}
    trace = {
        "id": "t1",
        "nodes": [{"message": {"role": "user", "content": "P"}, "parent": None}, reply],
        "task": {"type": "T", "data": {"task_id": "titanic"}},
        "agent": {"config": {"model": "m"}},
        "rewards": {"delta": {"score": 0.5}},
        "ok": True,
    }
    evaluation = tmp_path / "evals" / "mine"
    evaluation.mkdir(parents=True)
    (evaluation / "traces.jsonl").write_text(json.dumps({"id": "e1", "traces": [trace]}) + "\n")
    for place in (evaluation, evaluation.parent):
        (run,) = discover([place])
        assert (run.name, run.recorded()) == ("mine", 1)
    assert main(["show", str(evaluation)]) == 0
    assert "titanic" in capsys.readouterr().out
    assert sorted(path.name for path in evaluation.iterdir()) == ["traces.jsonl"]
