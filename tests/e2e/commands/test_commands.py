"""The commands as a user runs them: processes, exit codes, one line for bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from air import tasks
from air.testing import ScriptedServer, replies
from air.trajectories import read
from tests import fork_server
from tests.e2e.conftest import attempt, containers_in_full

BIN = Path(sys.executable).parent


def command(
    name: str, *args: str | Path, cwd: Path, **env: str
) -> subprocess.CompletedProcess[str]:
    """One command of ours, from a folder that is not the checkout; see `fork_server`."""
    argv = [name, *map(str, args)]
    env = {**os.environ, **env}
    return fork_server.of_this_run().run(argv, cwd=cwd, env=env, seconds=600)


def cold(name: str, *args: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A command as a user starts it: by its entry point, in a process of its own."""
    return subprocess.run(
        [BIN / name, *map(str, args)],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=600,
    )


def bad(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2, one line, no traceback."""
    assert result.returncode == 2, result.stdout + result.stderr
    error = result.stderr.strip()
    assert error.startswith("error: ")
    assert "\n" not in error
    for word in words:
        assert word in error


@pytest.mark.docker  # in process boxes: test_commands.py
def test_vf_eval_plays_our_tasks_with_an_endpoint(tmp_path: Path) -> None:
    with ScriptedServer(replies(attempt(2, 2, "submit"))) as server:
        flags = ["-m", "scripted", "-r", "2", "--no-push", "-o", tmp_path, "--run.dir", "r"]
        flags += ["--env.taskset.tasks", '["titanic"]', "--env.agent.runtime.type", "docker"]
        flags += ["--client.base-url", server.url, "--client.api-key-var", "AIR_TEST_KEY"]
        result = cold("vf-eval", "air", *flags, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = (tmp_path / "r" / "traces.jsonl").read_text().splitlines()
    traces = [trace for line in lines for trace in json.loads(line).get("traces", [])]
    assert len(traces) == 2
    for trace in traces:
        assert trace["ok"]
        assert trace["agent"]["config"]["harness"]["id"] == "air"
        assert trace["rewards"]["delta"]["score"] > 0
        assert 0 < trace["metrics"]["test_score"] < 1


def test_eval_of_an_endpoint_prints_the_scores(tmp_path: Path) -> None:
    with ScriptedServer(replies(attempt(2, 2, "submit"))) as server:
        flags = ["--tasks", "titanic", "--episodes", "2", "--runtime", "subprocess"]
        result = command("air", "eval", server.url, *flags, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "titanic" in result.stdout
    assert "100%" in result.stdout


def test_eval_plays_what_needs_no_gpu_unless_told_otherwise(tmp_path: Path) -> None:
    flags = ["--episodes", "1", "--max-turns", "1", "--runtime", "subprocess"]
    # Without an artefact nothing is graded: what each starter scores is another test's.
    with ScriptedServer(replies("Done.\n```bash\nrm -r -- *\nsubmit\n```")) as server:
        result = command("air", "eval", server.url, *flags, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "left out, since they need a GPU: " in result.stderr
    rows = {line.split()[0] for line in result.stdout.splitlines() if line.strip()}
    assert rows & {*tasks.available()} == {n for n in tasks.available() if not tasks.load(n).gpus}


@containers_in_full
def test_demos_are_trajectories_and_conversations(runtime: str, tmp_path: Path) -> None:
    flags = ["--tasks", "prisonersDilemma", "--episodes", "3", "--runtime", runtime]
    result = command("air", "demos", tmp_path / "d", *flags, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    paths = list((tmp_path / "d" / "trajectories").glob("*.jsonl"))
    assert len(paths) == 3
    assert all(list(read(path))[-1]["ok"] for path in paths)
    talks = (tmp_path / "d" / "demos.jsonl").read_text().splitlines()
    assert len(talks) == 3
    assert json.loads(talks[0])["messages"][-1]["role"] == "assistant"
    bad(command("air", "demos", tmp_path / "d", *flags, cwd=tmp_path), "is not empty")


def test_shipped_run_files_are_found_from_any_folder(tmp_path: Path) -> None:
    result = command("rl", "@", "configs/quickstart.toml", "--dry-run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["orchestrator"]["algo"]["type"] == "grpo"


def test_tasks_are_listed_with_what_they_need(tmp_path: Path) -> None:
    out = command("air", "tasks", cwd=tmp_path).stdout
    for word in ("titanic", "digits", "prisonersDilemma", "accuracy", "higher", "cpu"):
        assert word in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["@", "nowhere.toml"], ["nowhere.toml", "no such file"]),
        (["@", "configs/quickstart.toml", "--model.name", "./nothing"], ["./nothing"]),
        (
            ["@", "configs/quickstart.toml", "--deployment.num-train-gpus", "8"],
            ["deployment", "prime-rl is not installed"],
        ),
        (["@", "configs/quickstart.toml", "--max-steps.x", "3"], ["--max-steps.x"]),
    ],
)
def test_bad_input_to_rl(args: list[str], words: list[str], tmp_path: Path) -> None:
    bad(command("rl", *args, cwd=tmp_path), *words)
    assert not list(tmp_path.iterdir())


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    result = command("rl", "@", "nowhere.toml", "--debug", cwd=tmp_path)
    assert result.returncode == 2
    assert "Traceback" in result.stderr


def test_without_docker_a_run_that_needs_it_says_what_to_do(tmp_path: Path) -> None:
    with ScriptedServer(replies(attempt(1, 1))) as server:
        result = command(
            "air",
            "eval",
            server.url,
            "--tasks",
            "titanic",
            cwd=tmp_path,
            DOCKER_HOST="unix:///nowhere/docker.sock",
        )
    bad(result, "DOCKER_HOST=unix:///nowhere/docker.sock", "no Docker engine answers", "subprocess")


def test_a_battery_that_is_terminated_reports_what_it_has_played(tmp_path: Path) -> None:
    report, output = tmp_path / "report.json", tmp_path / "out"
    argv = ["air", "tasks", "check", "digits", "--attacks", "--provider", "process"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # the folder of the trajectories
    with (
        output.open("wb") as log,
        fork_server.of_this_run().spawn(
            [*argv, "--report", str(report)], cwd=tmp_path, env=env, streams=[log, log]
        ) as process,
    ):
        deadline = time.monotonic() + 600
        # Two plain episodes, then four attacks at once in one or two episodes each, and one after them.
        while process.poll() is None and len(list(tmp_path.glob("*-air-attacks/*.jsonl"))) < 11:
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == 130, output.read_text()
    played = len(json.loads(report.read_text())["verdicts"])
    assert played > 0
    assert f"interrupted after {played} of " in output.read_text()


def test_an_unknown_command_lists_the_known_ones(tmp_path: Path) -> None:
    result = cold("air", cwd=tmp_path)
    assert result.returncode == 2
    assert "quickstart" in result.stdout
