"""`air eval --suite`: an endpoint, a model's folder and a run play benchmarks beside published numbers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from air.testing import Message, ScriptedServer
from air.trajectories import load, trajectory_files
from air.worlds.sources import VALIDATION_SEED
from tests.e2e.commands.test_commands import bad, command


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    for name, count in (("gsm8k", 4), ("amc", 2)):
        rows = [{"question": f"{name}: what is {n}/2?", "answer": f"{n}/2"} for n in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def reply(conversation: Sequence[Message]) -> str:
    """Right in other words, except that one question of gsm8k is answered without a box."""
    number = str(conversation[-1]["content"]).partition("what is ")[2].partition("/2?")[0]
    if "gsm8k: what is 3" in str(conversation[-1]["content"]):
        return "1.5"
    return f"First \\boxed{{7}}, but then \\boxed{{{int(number) / 2}}}"


def table_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The rows of the table, with one space between cells."""
    return [" ".join(row.split()) for row in done.stdout.splitlines()]


def test_an_endpoint_is_scored_beside_the_published_rows_and_goes_on(
    data: Path, tmp_path: Path
) -> None:
    with ScriptedServer(reply) as server:
        flags = [
            "--suite",
            "math",
            "--data",
            data,
            "--samples",
            "2",
            "--record-dir",
            tmp_path / "e",
        ]
        argv = ["air", "eval", f"{server.url}/v1", "--model-name", "m", *flags]
        first = command(*argv, cwd=tmp_path)
        assert first.returncode == 0, first.stdout + first.stderr
        table = table_of(first)
        assert "GSM8K m 75.0 ± 25.0 not above 89 4 2 8/8" in table
        assert "AMC m 100.0 ± 0.0 above 52 2 2 4/4" in table
        assert "GSM8K Qwen3-8B-Base, published 89.1" in table
        assert "MATH-500 Agent0 on Qwen3-8B-Base, published 82.4" in table
        assert "left out MATH-500: put rows" in first.stderr
        trajectories = [load(path) for path in trajectory_files(tmp_path / "e")]
        start = trajectories[0].start
        assert start is not None
        assert "Solve the problem." in start.prompt
        assert "Put the final answer in \\boxed{…}." in f"{start.system} {start.prompt}"
        trajectories[3].path.unlink()
        again = command(*argv, cwd=tmp_path)
        assert "m: 11 of 12 episodes are recorded already" in again.stdout
        assert "GSM8K m 75.0 ± 25.0 not above 89 4 2 8/8" in table_of(again)
    starts = [load(path).start for path in trajectory_files(tmp_path / "e")]
    seeds = sorted((one.task, one.seed - VALIDATION_SEED) for one in starts if one)
    tasks = sorted({task for task, _ in seeds})
    assert seeds == [(tasks[0], n) for n in range(4)] + [(tasks[1], n) for n in range(8)]
    (data / "amc.jsonl").write_text('{"question": "What?", "answer": 1}\n')
    changed = command(*argv, cwd=tmp_path)
    assert changed.returncode == 2
    assert "an evaluation of another model or with other settings" in changed.stderr


def test_a_suite_of_multiple_choice_is_scored_beside_the_published_rows(tmp_path: Path) -> None:
    """The model always chooses A, which is right in one of two questions."""
    rows = [{"question": "Who?", "options": ["x", "y"], "answer": letter} for letter in "AB"]
    (tmp_path / "mmlu_pro.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--suite", "general", "--data", tmp_path, "--record-dir", tmp_path / "e"]
    with ScriptedServer(lambda _: "\\boxed{A}") as server:
        done = command("air", "eval", f"{server.url}/v1", "--model-name", "m", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    table = table_of(done)
    assert "MMLU-Pro m 50.0 ± 50.0 not above 51 2 1 2/2" in table
    assert "MMLU-Pro Qwen3-8B-Base, published 51.8" in table
    assert "MMLU-Pro Agent0 on Qwen3-8B-Base, published 63.4" in table
    assert "SuperGPQA Qwen3-8B-Base, published 28.3" in table
    assert "SuperGPQA Agent0 on Qwen3-8B-Base, published 33.0" in table
    assert not any("MATH-500" in row or "GSM8K" in row for row in table)
    assert "left out SuperGPQA: put rows" in done.stderr


def test_a_folder_and_a_run_with_its_start_are_played(
    trained: Path, small: Path, data: Path, tmp_path: Path
) -> None:
    (data / "gsm8k.jsonl").unlink()
    flags = ["--suite", "math", "--data", data, "--samples", "1", "--max-tokens", "4"]
    for model, labels in ((small, [small.name]), (trained / "outputs" / "r", ["start", "step_2"])):
        folder = tmp_path / f"e-{len(labels)}"
        done = command("air", "eval", model, *flags, "--record-dir", folder, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        table = table_of(done)
        for label in labels:
            assert f"AMC {label} 0.0 ± 0.0 not above 52 2 1 2/2" in table


def test_flags_that_do_not_go_together_are_refused(data: Path, tmp_path: Path) -> None:
    suite = ["air", "eval", "m", "--suite", "math"]
    bad(command(*suite, cwd=tmp_path), "--data", "the suite math needs your data")
    bad(
        command(*suite, "--data", data, "--tasks", "digits", cwd=tmp_path),
        "--tasks",
        "leave it out",
    )
    bad(command(*suite, "--data", data, "--episodes", "3", cwd=tmp_path), "--episodes", "--samples")
    bad(
        command("air", "eval", "m", "--samples", "3", cwd=tmp_path), "--samples", "add --suite math"
    )
    bad(
        command(*suite, "--data", tmp_path, cwd=tmp_path),
        "no file of the suite math",
        "gsm8k.jsonl",
    )
