"""`rl --inference vllm` as a user runs it, with a real vLLM process: it trains, also an adapter and with
overlap, is started again once when it dies, and is gone when the run is, whatever ended the run.
`make test-vllm`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from air.train.model import policy as policies
from air.train.model.logprobs import token_logprobs
from air.train.model.policy import Policy
from air.train.serving.vllm import die_with_parent
from air.trajectories import trained_tokens
from air.trajectories.trained_tokens import Conversation
from tests.e2e.commands.test_commands import bad, command
from tests.e2e.conftest import run_toml
from tests.e2e.train.test_lora import LORA
from tests.e2e.train.test_overlap import OVERLAP, check_overlap
from tests.e2e.train.test_train import rows

pytestmark = pytest.mark.vllm

WITH = ("--inference", "vllm")
PATIENCE = 1200.0
"""Seconds for anything here: ten times what one start of vLLM took on a busy machine."""
TOLERANCE = 1e-4
"""Largest difference in nats between vLLM's log-probability of a sampled token and the trainer's, both in
float32; about 1e-6 was measured."""


def processes(folder: Path) -> dict[int, str]:
    """The processes whose command line names something below `folder`: vLLM's, its parent's, the run's."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:  # it has ended
            continue
        if str(folder) in line and entry.name != str(os.getpid()):
            found[int(entry.name)] = line
    return found


def descendants(pid: int) -> list[int]:
    """The processes that one has started, and theirs."""
    found = [pid]
    for one in found:
        for thread in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                found += [int(child) for child in thread.read_text().split()]
            except OSError:  # it has ended
                continue
    return found[1:]


def api_server(folder: Path) -> int:
    """The process id of vLLM's API server."""
    (pid,) = [
        pid
        for pid, line in processes(folder).items()
        if "vllm.entrypoints" in line and die_with_parent.__file__ not in line
    ]
    return pid


def until(condition: Callable[[], Any], process: subprocess.Popen[str], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def done(folder: Path) -> list[dict[str, Any]]:
    """The rows of the steps that are done so far."""
    return rows(folder) if (folder / "outputs" / "r" / "metrics.jsonl").is_file() else []


def nothing_left(folder: Path, pids: list[int], seconds: float) -> bool:
    """Whether every process and the copied weights go away in time."""
    deadline = time.monotonic() + seconds
    while (
        processes(folder)
        or any(Path(f"/proc/{pid}").exists() for pid in pids)
        or list((folder / "outputs" / "r").glob(".weights-*"))
    ):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `rl --inference vllm` in `tmp_path`; a failing test leaves no run behind."""
    begun: list[subprocess.Popen[str]] = []

    def one(file: Path, *flags: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "air.cli.main", "rl", f"@{file}", *WITH, *flags]
        with (tmp_path / "stdout").open("w") as out:
            process = subprocess.Popen(argv, stdout=out, stderr=subprocess.PIPE, text=True)
        begun.append(process)
        return process

    yield one
    for process in begun:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def started(start: Start, folder: Path, small: Path) -> subprocess.Popen[str]:
    """A long run, with its first step done."""
    file = run_toml(folder, small, "subprocess", batch_size=4)
    process = start(file, "--max-steps", "500")
    until(lambda: done(folder), process, PATIENCE)
    return process


def test_a_run_trains_through_vllm(small: Path, tmp_path: Path) -> None:
    file = run_toml(tmp_path, small, "subprocess", max_steps=3)
    ran = command("rl", f"@{file}", *WITH, cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "inference: vLLM 0." in ran.stdout
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3]
    for row in rows(tmp_path):
        assert row["failed_episodes"] == 0
        assert row["multi_branch_episodes"] == 0
        assert row["sampled_tokens"] > 0
        assert abs(row["mismatch_kl/all/mean"]) < 1e-6  # each step's new weights reached vLLM
    assert sum(row["train/updated"] for row in rows(tmp_path)) > 1
    folder = tmp_path / "outputs" / "r"
    assert json.loads((folder / "config.json").read_text())["embedded"]["inference"] == "vllm"
    assert (folder / "vllm.log").stat().st_size
    assert nothing_left(tmp_path, [], 0)


def test_each_version_of_an_adapter_is_served_under_its_own_name(
    small: Path, tmp_path: Path
) -> None:
    file = run_toml(tmp_path, small, "subprocess", max_steps=3)
    # An adapter changes little in its first steps, so this learning rate is high.
    flags = (*WITH, *LORA, "--trainer.optim.lr", "5e-3")
    ran = command("rl", f"@{file}", *flags, cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    folder = tmp_path / "outputs" / "r"
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3]
    for row in rows(tmp_path):
        assert row["failed_episodes"] == 0
        assert abs(row["mismatch_kl/all/mean"]) < 1e-6
    assert all(row["train/updated"] for row in rows(tmp_path)[:2])
    names = {step: {f"{small}:{step - 1}"} for step in (1, 2, 3)}
    assert requested(folder) == names
    assert (folder / "checkpoints" / "step_2" / "adapter_config.json").is_file()
    check_versions(folder, small)
    assert nothing_left(tmp_path, [], 0)


def test_with_overlap_each_reply_has_the_version_that_sampled_it(
    small: Path, tmp_path: Path
) -> None:
    file = run_toml(tmp_path, small, "subprocess", max_steps=3)
    ran = command("rl", f"@{file}", *WITH, *OVERLAP, cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    folder = tmp_path / "outputs" / "r"
    check_overlap(folder)
    assert any(row["off_policy/max"] for row in rows(tmp_path))
    assert all(row["failed_episodes"] == 0 for row in rows(tmp_path))
    check_versions(folder, small)
    assert nothing_left(tmp_path, [], 0)


def test_overlap_with_an_adapter_is_refused(small: Path, tmp_path: Path) -> None:
    file = run_toml(tmp_path, small, "subprocess")
    ran = command("rl", f"@{file}", *WITH, *OVERLAP, *LORA, cwd=tmp_path)
    bad(ran, "orchestrator.max_off_policy_steps", "adapter", "set it to 0", '"transformers"')
    assert nothing_left(tmp_path, [], 0)


def requested(folder: Path) -> dict[int, set[str]]:
    """The names of models that the episodes of each step asked vLLM for."""
    steps = {one["episode"]: step for step, one in members(folder)}
    found: dict[int, set[str]] = {}
    for path in (folder / "trajectories" / "traces").glob("*.jsonl"):
        (trace,) = json.loads(path.read_text())["traces"]
        step = steps[trace["info"]["air"]["episode"]]
        found.setdefault(step, set()).update(call["model"] for call in trace["calls"])
    return found


def members(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """The episodes of a run in `groups.jsonl`, each with its step."""
    groups = [json.loads(line) for line in (folder / "groups.jsonl").read_text().splitlines()]
    return [(group["step"], one) for group in groups for one in group["episodes"]]


def check_versions(folder: Path, start: Path) -> None:
    """vLLM's log-probabilities of each reply are those of the weights that the run reports for it, and of no
    other version. `start` has the weights before the first step."""
    checkpoints = [folder / "checkpoints" / f"step_{step}" for step in (1, 2)]
    versions = [policies.load(path) for path in (start, *checkpoints)]
    reported = {one["episode"]: one["reply_versions"] for _, one in members(folder)}
    others: dict[tuple[int, int], float] = {}
    for step in trained_tokens.recorded_steps(folder):
        tokens = trained_tokens.read(folder, step)
        assert tokens is not None
        for one in tokens.conversations:
            apart = [differences(model, one, tokens.temperature) for model in versions]
            for reply, version in enumerate(reported[one.episode]):
                assert apart[version][reply] < TOLERANCE, (step, one.episode, reply, version)
                for other in range(len(versions)):
                    pair = (version, other)
                    others[pair] = max(others.get(pair, 0.0), apart[other][reply])
    print({pair: f"{apart:.1e}" for pair, apart in sorted(others.items())})
    wrong = [apart for (version, other), apart in others.items() if version != other]
    assert min(wrong) > 10 * TOLERANCE  # so a wrong version shows


def differences(model: Policy, conversation: Conversation, temperature: float) -> list[float]:
    """Per reply, the largest difference between the sampler's log-probabilities and this model's."""
    ids = [message.token_ids for message in conversation.messages]
    row = torch.from_numpy(np.concatenate(ids)).long()[None]
    with torch.no_grad():
        ours = token_logprobs(model.model, row, temperature)[0].numpy()
    parts = np.split(ours, np.cumsum([len(one) for one in ids])[:-1])
    return [
        float(np.abs(part[message.sampled] - message.logprobs).max())
        for part, message in zip(parts, conversation.messages, strict=True)
        if message.paid is not None
    ]


def test_a_server_that_dies_is_started_again_once(
    start: Start, small: Path, tmp_path: Path
) -> None:
    process = started(start, tmp_path, small)
    server = api_server(tmp_path)
    until(lambda: playing(tmp_path), process, PATIENCE)
    os.kill(server, signal.SIGKILL)
    until(lambda: any(row["failed_episodes"] for row in done(tmp_path)), process, PATIENCE)
    (hit,) = [row for row in done(tmp_path) if row["failed_episodes"]]
    until(lambda: len(done(tmp_path)) > hit["step"] + 1, process, PATIENCE)
    after = done(tmp_path)[hit["step"]]
    assert after["failed_episodes"] == 0
    assert (
        abs(after["mismatch_kl/all/mean"]) < 1e-6
    )  # the newest weights, not those of the first start
    said = (tmp_path / "stdout").read_text()
    assert said.count("it is started again, once") == 1
    assert "vLLM went away: exit code 137" in said
    failed = [end for end in ends(tmp_path) if end.get("error")]
    assert len(failed) >= hit["failed_episodes"]
    assert not any(end["ok"] or end["reward"] is not None for end in failed)
    pids = descendants(process.pid)
    os.kill(api_server(tmp_path), signal.SIGKILL)
    error = process.communicate(timeout=PATIENCE)[1].strip()
    assert process.returncode == 1, error
    assert error.startswith("error: vLLM went away a second time: exit code 137")
    assert "vllm.log" in error
    assert "--resume" in error
    assert "\n" not in error
    assert nothing_left(tmp_path, pids, 0)
    assert list((tmp_path / "outputs" / "r" / "checkpoints").glob("step_*"))


def playing(folder: Path) -> bool:
    """Whether an episode has begun that did not end."""
    files = (folder / "outputs" / "r" / "trajectories").glob("*.jsonl")
    return any('"type": "end"' not in file.read_text() for file in files)


def ends(folder: Path) -> list[dict[str, Any]]:
    """The last lines of the recorded episodes."""
    files = (folder / "outputs" / "r" / "trajectories").glob("*.jsonl")
    return [json.loads(file.read_text().splitlines()[-1]) for file in files]


def test_sigkill_of_the_run_leaves_no_server(start: Start, small: Path, tmp_path: Path) -> None:
    process = started(start, tmp_path, small)
    pids = descendants(process.pid)
    assert api_server(tmp_path) in pids
    assert list((tmp_path / "outputs" / "r").glob(".weights-*"))
    process.kill()
    process.communicate()
    assert nothing_left(tmp_path, pids, PATIENCE)


def test_ctrl_c_while_it_starts_and_a_start_that_takes_too_long(
    start: Start, small: Path, tmp_path: Path
) -> None:
    file = run_toml(tmp_path, small, "subprocess")
    late = command("rl", f"@{file}", *WITH, "--embedded.inference-start-seconds", "4", cwd=tmp_path)
    assert late.returncode == 1, late.stdout + late.stderr
    lines = [line for line in late.stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    assert "vLLM was not ready after 4 s" in lines[0]
    assert "Traceback" not in late.stderr
    assert nothing_left(tmp_path, [], 0)
    process = start(file)
    until(
        lambda: any("vllm.entrypoints" in p for p in processes(tmp_path).values()),
        process,
        PATIENCE,
    )
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130, error
    assert "Traceback" not in error
    assert nothing_left(tmp_path, [], 0)
