"""verifiers' own commands over our plugin, run as a user runs them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from air import paths, tasks
from air.testing import Message, ScriptedServer, replies
from air.trajectories import read
from tests.e2e.conftest import attempt
from tests.fork_server import of_this_run

OLD = importlib.metadata.version("verifiers").startswith("0.3.")
"""verifiers 0.3 has the commands without `vf-`; its `vf-eval` is that of the API before v1."""
SHIPPED = paths.shipped("tasks")


def vf(command: str, *args: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """One of verifiers' commands, which must end well."""
    argv = [command if OLD else f"vf-{command}", *map(str, args)]
    env = {**os.environ, "NO_COLOR": "1"}
    result = of_this_run().run(argv, cwd=cwd, env=env, seconds=600)
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def episodes(run: Path) -> list[dict[str, Any]]:
    """The episodes of a run, as verifiers saved them."""
    return [json.loads(line) for line in (run / "traces.jsonl").read_text().splitlines()]


def test_a_resumed_eval_plays_only_what_is_missing_and_a_replay_keeps_the_rewards(
    tmp_path: Path,
) -> None:
    broken = True
    asked: list[str] = []

    def script(talk: Sequence[Message]) -> str:
        titanic = any("titanic" in str(m["content"]).lower() for m in talk)
        asked.append("titanic" if titanic else "prisonersDilemma")
        if titanic and broken:
            raise ConnectionError("the model server breaks down")  # it closes the connection
        return replies(attempt(1, 1), attempt(2, 2, "submit"))(talk)

    with ScriptedServer(script) as server:
        flags = ["-m", "scripted", "-r", "2", "--no-push", "-o", tmp_path, "--run.dir", "run"]
        flags += ["--env.taskset.tasks", '["titanic", "prisonersDilemma"]']
        flags += ["--env.agent.runtime.type", "subprocess", "--env.record-dir", tmp_path / "rec"]
        flags += ["--client.base-url", server.url, "--client.api-key-var", "AIR_TEST_KEY"]
        vf("eval", "air", *flags, cwd=tmp_path)
        first = episodes(tmp_path / "run")
        assert sorted(e["ok"] for e in first) == [False, False, True, True]
        for failed in (e for e in first if not e["ok"]):
            check_failed(failed["traces"][0])
        broken, asked[:] = False, []
        saved = next((tmp_path / "run" / "configs").rglob("eval.json"))
        vf("eval", "@", saved, "--resume", cwd=tmp_path)
    assert asked == ["titanic"] * 4
    both = episodes(tmp_path / "run")
    kept = {e["id"] for e in first if e["ok"]}
    assert len(both) == 4
    assert all(e["ok"] for e in both)
    assert kept < {e["id"] for e in both}
    check_records(tmp_path / "rec", [e["traces"][0] for e in both], failed=2)

    vf("replay", tmp_path / "run", "-o", tmp_path / "again", "--no-rich", cwd=tmp_path)
    again = {e["traces"][0]["id"]: e["traces"][0] for e in episodes(tmp_path / "again")}
    for trace in (e["traces"][0] for e in both):
        assert again[trace["id"]]["rewards"] == trace["rewards"]
        assert again[trace["id"]]["metrics"] == trace["metrics"]


def check_failed(trace: dict[str, Any]) -> None:
    """A failure of ours is counted, with its times and isolation, and has no reward."""
    assert not any(trace["rewards"].values())
    assert trace["metrics"]["infrastructure_errors"] == 1
    assert trace["metrics"]["seconds_box"] > 0
    assert trace["info"]["air"]["isolation"] == "process"
    assert "disconnected" in trace["errors"][-1]["message"]


def check_records(folder: Path, traces: list[dict[str, Any]], *, failed: int) -> None:
    """Our records and verifiers' traces say the same: each kept trace has one record."""
    ended = {path.stem: list(read(path))[-1] for path in folder.glob("*.jsonl")}
    assert len(ended) == len(traces) + failed
    assert sum(not end["ok"] for end in ended.values()) == failed
    for trace in traces:
        air, end = trace["info"]["air"], ended[trace["info"]["air"]["episode"]]
        assert end["ok"]
        scores = {name: reward["score"] for name, reward in trace["rewards"].items()}
        assert scores == pytest.approx(end["terms"])
        assert sum(scores.values()) == pytest.approx(end["reward"])
        assert scores["delta"] == pytest.approx(sum(air["deltas"]))
        assert trace["metrics"] == pytest.approx(end["metrics"])
        assert trace["metrics"]["validates"] == len(air["deltas"]) == len(air["scores"]) == 2
        assert trace["metrics"]["score"] == pytest.approx(air["scores"][-1])
        assert trace["metrics"]["seconds_grading"] > 0
        assert trace["metrics"]["seconds_box"] > 0
        assert trace["metrics"]["infrastructure_errors"] == 0
        assert trace["metrics"]["process_isolation"] == 1


def test_validate_plays_the_recorded_solvers_and_tells_a_wrong_record(tmp_path: Path) -> None:
    root = tmp_path / "tasks"
    shutil.copytree(SHIPPED / "prisonersDilemma", root / "prisonersDilemma")
    file = root / "prisonersDilemma" / "solvers.toml"
    *others, last = file.read_text().split("[[solver]]")
    file.write_text("[[solver]]".join([*others, re.sub(r"(?m)^val = .*$", "val = 9.5", last)]))
    flags = ["--taskset.tasks", '["titanic", "prisonersDilemma"]', "--no-rich"]
    flags += ["--taskset.task-roots", json.dumps([str(root), str(SHIPPED)])]
    flags += ["--runtime.type", "subprocess", "-o", str(tmp_path), "--run.dir", "run"]
    said = vf("validate", "air", *flags, cwd=tmp_path).stderr
    assert re.search(
        r"titanic: baseline: accuracy val=0\.6933\d* test=0\.6933\d* as recorded", said
    )
    assert re.search(r"titanic: good: accuracy val=0\.8166\d* test=0\.7933\d* as recorded", said)
    assert re.search(r"prisonersDilemma: .* val is [\d.]+, recorded 9\.5", said)
    lines = (tmp_path / "run" / "results.jsonl").read_text().splitlines()
    rows = {row["name"]: row for row in map(json.loads, lines)}
    assert rows["titanic"]["reason"] == "valid"
    assert rows["prisonersDilemma"]["reason"] == "invalid"
    if not OLD:  # the untouched task is scored too: titanic has no artefact yet
        assert rows["titanic"]["noop"]["reward"] == tasks.load("titanic").phi_clip[0]


@pytest.mark.docker
def test_debug_runs_a_command_in_a_container_where_the_task_is_laid_out(tmp_path: Path) -> None:
    command = "ls data; python3 solve.py && head -1 submission.csv; ls /grader"
    flags = ["--taskset.tasks", '["titanic"]', "--command", command, "-o", tmp_path / "run"]
    flags += ["--runtime.type", "docker", "--runtime.image", "air-base"]
    vf("debug", "air", *flags, cwd=tmp_path)
    (episode,) = episodes(tmp_path / "run")
    (trace,) = episode["traces"]
    debug = trace["info"]["debug"]
    assert debug["stdout"].split() == ["test.csv", "train.csv", "val.csv", "id,survived"]
    assert "/grader" in debug["stderr"]  # labels and graders are nowhere
    assert trace["info"]["air"]["isolation"] == "container"
