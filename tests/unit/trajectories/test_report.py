"""Runs read and compared: recorded with the real recorder, numbers worked by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from air.cli.main import main
from air.errors import ConfigError, MissingError, UsageError
from air.trajectories import Recorder
from air.trajectories.outcome import read_outcome
from air.trajectories.performance_profile import BASELINE
from air.trajectories.run_comparison import Row, TaskFailures, compare, read_run

X = {"task": "x", "metric": "accuracy", "direction": "higher", "baseline": 0.4}
Y = {"task": "y", "metric": "loss", "direction": "lower", "baseline": 4.0}
Scores = list[float | None]


def episode(
    folder: Path,
    name: str,
    task: dict[str, Any],
    scores: Scores,
    *,
    end: dict[str, Any] | None = None,
    **start: Any,
) -> Path:
    """Records one episode as the environment does; `end=None`: one that ended well."""
    told = {"model": "m", "isolation": "container", "task_hash": "h", **task, **start}
    with Recorder(folder, name) as recorder:
        recorder.write("start", episode=name, **told)
        for score in scores:
            recorder.write("step", reply="validate", observation="")
            recorder.write("validate", score=score, delta=0.1)
        good = {"ok": True, "reward": 0.3, "terms": {"delta": 0.5, "format": -0.2}}
        good["metrics"] = {"turns": 3.0, "test_score": scores[-1] if scores else None}
        if end != {}:
            recorder.write("end", **(end or good))
    assert recorder.path is not None
    return recorder.path


FAILED = {"ok": False, "reward": None, "terms": None, "metrics": {}, "error": "BoxDiedError"}


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """Two runs over two tasks."""
    a, b = tmp_path / "a", tmp_path / "b"
    for number, scores in enumerate([[0.5, 0.8, 0.7], [0.6], [0.7, 0.4, None]]):
        episode(a / "trajectories", f"x{number}", X, scores)  # type: ignore[arg-type]
    episode(a / "trajectories", "y0", Y, [3.0, 3.5])
    episode(a / "trajectories", "failed", X, [0.99], end=FAILED)
    episode(a / "trajectories", "running", X, [0.98], end={})
    episode(b / "trajectories", "x0", X, [None])
    episode(b / "trajectories", "y0", Y, [2.0, 5.0])
    return [a, b]


def test_best_attempt_and_last_submission_of_an_episode(tmp_path: Path) -> None:
    high = read_outcome(episode(tmp_path, "x", X, [0.5, None, 0.8, 0.7]))
    assert (high.best, high.last, high.test, high.how) == (0.8, 0.7, 0.7, "well")
    low = read_outcome(episode(tmp_path, "y", Y, [3.0, 2.0, 2.5]))
    assert (low.best, low.last) == (2.0, 2.5)
    lost = read_outcome(episode(tmp_path, "z", X, [0.8, None]))
    assert (lost.best, lost.last) == (0.8, None)
    zero = read_outcome(episode(tmp_path, "0", X, [0.0]))
    assert (zero.best, zero.last) == (0.0, 0.0)


def test_greedy_episodes_are_left_out(two: list[Path]) -> None:
    episode(two[0] / "trajectories", "greedy", X, [0.97])
    assert read_run(two[0]).counts()["well"] == 5
    groups = [{"v": 1, "episodes": [{"episode": "x0"}], "greedy": {"episode": "greedy"}}, {"v": 1}]
    groups.append({"v": 1, "episodes": [], "greedy": {"episode": None, "error": "BoxDiedError"}})
    (two[0] / "groups.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in groups))
    run = read_run(two[0])
    assert run.counts() == {"well": 4, "failed": 1, "unfinished": 1}
    assert compare([run]).rows["best_attempt"][0].best == 0.8
    assert read_run(two[0] / "trajectories").counts() == run.counts()


def test_rows_by_hand(two: list[Path]) -> None:
    """a on x: best 0.8, 0.6, 0.7: mean 0.7, s² = 0.02/2, s/√3; last 0.7, 0.6 and one without a score."""
    report = compare([read_run(path) for path in two])
    best, last = report.rows["best_attempt"], report.rows["last_submission"]
    assert [(row.task, row.method) for row in best] == [
        ("x", "a"),
        ("x", "b"),
        ("y", "a"),
        ("y", "b"),
    ]
    assert (best[0].n, best[0].scored, best[0].best) == (3, 3, 0.8)
    assert best[0].mean == pytest.approx(0.7)
    assert best[0].stderr == pytest.approx(math.sqrt(0.01 / 3))
    assert best[1] == Row("x", "b", 1, 0, None, None, None, None)
    assert best[2] == Row("y", "a", 1, 1, 3.0, 3.0, None, None)
    assert (last[0].n, last[0].scored, last[0].best) == (3, 2, 0.7)
    assert last[0].mean == pytest.approx(0.65)
    assert last[0].test == pytest.approx(0.65)
    assert last[3] == Row("y", "b", 1, 1, 5.0, 5.0, None, 5.0)


def test_the_profiles_are_of_the_best_over_the_episodes(two: list[Path]) -> None:
    """Best attempts: x: a 1, baseline 2, b 2.1; y: b 1, a 1.5, baseline 2.
    Last: x: a 1, baseline 0.7/0.4; y: a 1, baseline 4/3.5, b is worse than the baseline."""
    found = compare([read_run(path) for path in two]).profiles
    best, last = found["best_attempt"].ratios, found["last_submission"].ratios
    assert best["x"].by_method == pytest.approx({"a": 1.0, "b": 2.1, BASELINE: 2.0})
    assert best["y"].by_method == pytest.approx({"a": 1.5, "b": 1.0, BASELINE: 2.0})
    assert last["x"].by_method == pytest.approx({"a": 1.0, "b": 1.05 * 1.75, BASELINE: 1.75})
    assert last["y"].by_method == pytest.approx({"a": 1.0, "b": 1.05 * 8 / 7, BASELINE: 8 / 7})
    assert last["y"].infeasible == {"b"}
    assert set(found["best_attempt"].aup) == {"a", "b", BASELINE}


def test_what_failed_or_did_not_end_is_counted_and_never_scored(two: list[Path]) -> None:
    run = read_run(two[0])
    assert run.counts() == {"well": 4, "failed": 1, "unfinished": 1}
    assert run.terms() == {"delta": pytest.approx(0.5), "format": pytest.approx(-0.2)}


def test_an_episode_that_failed_before_it_began_is_counted(tmp_path: Path) -> None:
    with Recorder(tmp_path, "x") as recorder:
        recorder.write("end", **FAILED)
    assert read_run(tmp_path).counts()["failed"] == 1
    with pytest.raises(ConfigError, match="no episode of them ended well"):
        compare([read_run(tmp_path)])


def test_only_the_last_episodes_of_each_task(tmp_path: Path) -> None:
    for number, score in enumerate([0.9, 0.5, 0.6]):
        path = episode(tmp_path, f"{9 - number}", X, [score])  # names in the other order
        text = path.read_text().splitlines()
        path.write_text("\n".join([*text[:-1], text[-1].replace('"t": ', f'"t": {number + 1}')]))
    episode(tmp_path, "y", Y, [3.0])
    episode(tmp_path, "failed", X, [0.99], end=FAILED)
    run = read_run(tmp_path, last=2)
    assert run.counts() == {"well": 3, "failed": 1, "unfinished": 0}
    (x, y) = compare([run]).rows["best_attempt"]
    assert (x.n, x.best, y.n) == (2, 0.6, 1)


def test_the_steps_of_a_training_run(two: list[Path]) -> None:
    rows = [f'{{"step": {n}, "reward": {n / 10}}}' for n in range(1, 9)]
    metrics = two[0] / "metrics.jsonl"
    metrics.write_text("\n".join([*rows, '{"step": 9, "rew']))
    run = read_run(two[0])
    assert len(run.steps) == 8
    assert run.rewards() == (pytest.approx(0.15), pytest.approx(0.75))
    metrics.write_text('{"step": 1, "reward": null}\n')  # every episode of it failed
    assert read_run(two[0]).rewards() == (None, None)


def test_models_of_one_run_and_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for place in ("one/r", "two/r", "baseline"):
        episode(tmp_path / place, "x", X, [0.5])
    episode(tmp_path / "two/r", "other", X, [0.6], model="n")
    runs = [read_run(tmp_path / place) for place in ("one/r", "two/r", "baseline")]
    assert compare(runs).methods == {
        f"{tmp_path}/one/r": "m",
        f"{tmp_path}/two/r m": "m",
        f"{tmp_path}/two/r n": "n",
        f"{tmp_path}/baseline": "m",
    }


def test_notes_say_what_makes_methods_incomparable(two: list[Path]) -> None:
    episode(two[1] / "trajectories", "x1", X, [0.5], task_hash="g", isolation="process")
    z = {"task": "z", "metric": "Score", "direction": "higher", "baseline": -1.0}
    episode(two[1] / "trajectories", "z0", z, [-0.5], trust="evaluator")
    report = compare([read_run(path) for path in two])
    assert report.notes == [
        "x: recorded with 2 versions of the task's files",
        "a: has no episode of z: infeasible there",
        "b: 1 of 4 episodes in process boxes",
        "b: an artefact can print any score of z",
        "methods have from 1 to 3 episodes of a task, and the best of more is better: --last N takes "
        "equally many",
        "z: no score is feasible, so it is left out of the profiles",
    ]
    assert set(report.profiles["best_attempt"].ratios) == {"x", "y"}


@pytest.mark.parametrize(
    ("key", "value"), [("metric", "r2"), ("direction", "lower"), ("baseline", 0.5)]
)
def test_a_task_that_is_not_the_same_everywhere_is_refused(
    two: list[Path], key: str, value: object
) -> None:
    episode(two[1] / "trajectories", "other", X | {key: value}, [0.5])
    with pytest.raises(ConfigError, match=f"task x has {key}") as caught:
        compare([read_run(path) for path in two])
    assert str(two[1]) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]\n[1]", "not a line of a trajectory"),
        ('{"v": "1"}\n', "not a line of a trajectory"),
        ('{"v": 99}\n', "newer"),
        ('{"step": 1}\n', "not a trajectory"),
        ("nonsense\nnonsense", ":1: not JSON"),
        ('{"type": "start", "task": "x"}\n', "whether higher or lower scores are better"),
        ('{"type": "start", "direction": "up"}\n', "start: `task`"),
        ('{"type": "validate", "score": "0.5"}\n', "validate: `score`"),
        ('{"type": "validate", "score": NaN}\n', "validate: `score`"),
        ('{"type": "end", "ok": true, "t": 1.0}\n', "end: `reward`"),
    ],
)
def test_a_bad_file_is_named_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "bad.jsonl").write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        read_run(tmp_path)
    assert "\n" not in str(caught.value)
    assert "bad.jsonl" in str(caught.value)


def test_bad_metrics_are_named(two: list[Path]) -> None:
    for text in ("nonsense\n{}\n", "[1]\n", '{"reward": "much"}\n', '{"reward": NaN}\n'):
        (two[0] / "metrics.jsonl").write_text(text)
        with pytest.raises(ConfigError, match=r"metrics\.jsonl:1"):
            read_run(two[0])


def test_folders_that_are_no_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere", Path(__file__)):
        with pytest.raises(MissingError) as caught:
            read_run(path)
        assert str(path) in str(caught.value)


def test_failed_episodes_are_counted_by_task(
    two: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    gone = {**Y, "task": "gone"}
    kill = "kill\n\x1b[2J[bold] it"
    for number, action in enumerate((None, "look", kill)):
        failed = {**FAILED, "failed_action": action, "t": 1.0 + number}
        episode(two[1] / "trajectories", f"gone{number}", gone, [], end=failed)
    assert read_run(two[0]).failures() == {"x": TaskFailures(1, 4, 0, None)}
    assert read_run(two[1]).failures() == {"gone": TaskFailures(3, 3, 2, kill)}
    assert main(["report", *map(str, two)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f"x {two[0]} 1 4 0 –" in lines
    assert f"gone {two[1]} 3 3 2 {kill!r}" in lines
    assert main(["report", *map(str, two), "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert runs[1]["failures"]["gone"]["last_action"] == kill
