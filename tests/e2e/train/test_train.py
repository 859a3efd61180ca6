"""Training runs of the embedded engine with a real small policy: token-exact, resumable, clean at the end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import verifiers.v1 as vf

from air.cli.main import main
from air.sandbox.ops import orphans
from air.train.config import overrides
from air.train.config.run_config import RunConfig
from air.train.evaluation.play import served
from air.train.loop.rollout import seeded
from air.train.model import policy as policies
from air.train.monitors import wandb_file
from air.trajectories import trained_tokens
from air.trajectories.run_comparison import read_run
from tests.e2e.commands.test_commands import bad, command
from tests.e2e.conftest import containers_in_full, research, run_toml, train
from tests.fork_server import ForkedCommand, of_this_run

MONITORS = (
    ["--monitors.wandb.offline", "true", "--embedded.tensorboard", "true"]
    if find_spec("wandb") and find_spec("tensorboard")
    else []
)
"""Flags that switch both monitors on, if their packages are installed, as `make` does."""


def rows(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "outputs" / "r" / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@containers_in_full
async def test_an_episode_is_one_token_exact_sample(runtime: str, small: Path) -> None:
    policy = policies.load(small)
    config = research(["titanic"], runtime, harness={"tokenizer": str(small)}, max_turns=3)
    env = vf.load_environment(config)
    traces = []
    async with (
        served(policy, temperature=1.0, max_tokens=96, max_model_len=1536) as ctx,
        env.serving(),
    ):
        task = next(iter(env.taskset))
        for _ in range(6):
            episode = await env.run_slot(env.slots(task)[0], ctx)
            assert episode.ok, episode.errors or episode.traces[0].errors
            traces += episode.traces
    assert any(trace.num_turns > 1 for trace in traces)
    for trace in traces:
        check_exact(policy, trace)


def check_exact(policy: policies.Policy, trace: Any) -> None:
    """One branch, and what the trainer recomputes is what the sampler reported."""
    branch, logprobs = check_tokens(policy, trace)
    import torch

    from air.train.model.logprobs import token_logprobs

    ids = torch.tensor([branch.token_ids])
    with torch.no_grad():
        again = token_logprobs(policy.model, ids, 1.0)[0].tolist()
    theirs = [x for x, sampled in zip(again, branch.sampled_mask, strict=True) if sampled]
    assert theirs == pytest.approx(logprobs, abs=2e-3)


def check_tokens(
    policy: policies.Policy, trace: Any, tools: Sequence[Any] = ()
) -> tuple[Any, list[float]]:
    """One branch; prompts are what the renderer makes of them; the mask is what was drawn, no more.

    `tools` are those that each request offers."""
    (branch,) = trace.branches
    renderer = policy.renderer()
    opening = [{"role": n.message.role, "content": n.message.content} for n in branch.nodes[:2]]
    offered = [dict(tool) for tool in tools] or None
    ids = list(renderer.render_ids(opening, tools=offered, add_generation_prompt=True))
    mask = [False] * len(ids)
    for node, shown in zip(branch.nodes[2::2], [*branch.nodes[3::2], None], strict=False):
        drawn = [t for t, sampled in zip(node.token_ids, node.mask, strict=True) if sampled]
        prompt, ids, mask = ids, [*ids, *drawn], [*mask, *[True] * len(drawn)]
        if shown is not None:
            turn = [{"role": shown.message.role, "content": shown.message.content}]
            ids = list(renderer.bridge_to_next_turn(prompt, drawn, turn).token_ids)
            mask += [False] * (len(ids) - len(mask))
    assert branch.token_ids == ids
    assert branch.sampled_mask == mask
    assert sum(mask) == sum(call.usage.completion_tokens for call in trace.calls)
    assert sum(node.sampled for node in branch.nodes) == trace.num_turns
    logprobs = [
        x for x, sampled in zip(branch.logprobs, branch.sampled_mask, strict=True) if sampled
    ]
    assert all(x <= 0 for x in logprobs)
    return branch, logprobs


def check_metrics(row: dict[str, Any]) -> None:
    """The step was played by the weights that it then trained, and each metric is documented."""
    version = row["step"] - 1
    assert row["weights_version"] == version
    assert (row["off_policy/max"], row["off_policy/tokens"]) == (0, 0)
    assert row["versions"][str(version)]["tokens"] == row["train/tokens"]
    assert 0 <= row["logprob_diff/mean"] <= row["logprob_diff/max"] < 1e-2
    assert row["train/agg/effective/num_branches/max"] == 1
    assert row["train/agg/effective/agent/reward/mean"] == pytest.approx(row["reward"])
    assert row["advantages/min"] < 0 < row["advantages/max"]
    assert sum(source["groups"] for source in row["sources"].values()) == row["groups"]
    page = (Path(__file__).parents[3] / "docs" / "training.md").read_text()
    table = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    names = [re.escape(name) for cell in table for name in re.findall("`([^`]+)`", cell)]
    pattern = re.compile("|".join(re.sub("<[a-z]+>", "[^/]+", name) for name in names))
    assert [name for name in row if name != "step" and not pattern.fullmatch(name)] == []


def test_a_run_trains_and_leaves_what_it_should(trained: Path, tmp_path: Path) -> None:
    check_run(trained, tmp_path)


@pytest.mark.docker
def test_a_run_in_containers_does_the_same(small: Path, tmp_path: Path) -> None:
    train(tmp_path, small, "docker")
    check_run(tmp_path, tmp_path)


def check_run(where: Path, cwd: Path) -> None:
    """What `train` left in the folder `where`."""
    said = (where / "said").read_text()
    folder = where / "outputs" / "r"
    first, second = rows(where)
    assert (first["step"], second["step"]) == (1, 2)
    assert first["episodes"] == 8
    assert first["failed_episodes"] == 0
    assert first["multi_branch_episodes"] == 0
    assert first["mismatch_kl/all/mean"] < 1e-4
    assert second["mismatch_kl/all/mean"] < 1e-4  # the server samples from the new weights
    assert len(list((folder / "trajectories").glob("*.jsonl"))) == 16
    for row in (first, second):
        check_metrics(row)
    check_groups(folder, [first, second])
    check_tokens_of_step(folder, second)
    check_seeds(folder)
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["step_1", "step_2"]
    resolved = overrides.build(RunConfig, overrides.read_files([f"@{folder / 'config.json'}"]))
    assert resolved.max_steps == 2
    assert "step 2" in said
    (line,) = [line for line in said.splitlines() if line.startswith("step 2 ")]
    assert line in (folder / "log.txt").read_text()
    assert "titanic" in said
    assert f"air eval {folder / 'checkpoints' / 'step_2'}" in said
    shown = sum(value for name, value in first.items() if name.startswith("reward/"))
    assert first["reward"] == pytest.approx(shown)
    reported = command("air", "report", folder, "--json", cwd=cwd)
    (run,) = json.loads(reported.stdout)["runs"]
    assert run["episodes"] == {"well": 16, "failed": 0, "unfinished": 0}
    assert (run["steps"], run["reward_last_quarter"]) == (2, second["reward"])
    mean = (first["reward"] + second["reward"]) / 2
    assert sum(run["terms"].values()) == pytest.approx(mean)
    weights = [
        policies.load(folder / "checkpoints" / f"step_{n}").model.state_dict() for n in (1, 2)
    ]
    assert any(
        not a.equal(b) for a, b in zip(weights[0].values(), weights[1].values(), strict=True)
    )


def check_tokens_of_step(folder: Path, row: dict[str, Any]) -> None:
    """`tokens/` has the tokens that were sampled, and the numbers with which the step trained them."""
    assert trained_tokens.recorded_steps(folder) == [1, 2]
    tokens = trained_tokens.read(folder, row["step"])
    assert tokens is not None
    assert len(tokens.conversations) == row["episodes"] - row["failed_episodes"]
    for one in tokens.conversations:
        text = (folder / "trajectories" / "traces" / f"{one.trace}.jsonl").read_text()
        nodes = json.loads(text)["traces"][0]["nodes"]
        assert [m.token_ids.tolist() for m in one.messages] == [n["token_ids"] for n in nodes]
        assert [m.sampled.tolist() for m in one.messages] == [n["mask"] for n in nodes]
        (end,) = (
            line
            for path in (folder / "trajectories").glob(f"{one.episode}.jsonl")
            for line in map(json.loads, path.read_text().splitlines())
            if line["type"] == "end"
        )
        paid = sum(sum(payment.terms.values()) for payment in one.payments)
        assert paid == pytest.approx(end["reward"])
    replies = [m for c in tokens.conversations for m in c.messages if m.paid is not None]
    assert sum(len(m.logprobs) for m in replies) == row["sampled_tokens"]
    ratios = np.concatenate([m.ratios[m.advantages != 0] for m in replies])
    assert len(ratios) == row["train/tokens"]
    kl = (ratios - np.log(ratios) - 1).mean()
    assert kl == pytest.approx(row["mismatch_kl/all/mean"], abs=1e-6)


def check_seeds(folder: Path) -> None:
    """Each episode draws with a seed of its own, which the run's seed decides."""
    drawn = set()
    for path in (folder / "trajectories" / "traces").glob("*.jsonl"):
        (trace,) = json.loads(path.read_text())["traces"]
        drawn.add(frozenset(call["sampling"]["seed"] for call in trace["calls"]))
    ctx = vf.ModelContext(model="m", client=vf.EvalClientConfig())
    texts = [f"sampling 0 {s} {g} {e}" for s in (1, 2) for g in (0, 1) for e in range(4)]
    assert drawn == {frozenset([seeded(ctx, text).sampling.seed]) for text in texts}


def check_groups(folder: Path, steps: list[dict[str, Any]]) -> None:
    """Every episode is in one group, with what it earned and how that compares with the others."""
    lines = (folder / "groups.jsonl").read_text().splitlines()
    groups = [json.loads(line) for line in lines]
    assert [(g["step"], g["group"]) for g in groups] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    members = [one for group in groups for one in group["episodes"]]
    names = {path.stem for path in (folder / "trajectories").glob("*.jsonl")}
    assert {one["episode"] for one in members} == names
    for group in groups:
        rewards = [one["reward"] for one in group["episodes"]]
        advantages = [one["advantage"] for one in group["episodes"]]
        assert advantages == pytest.approx([r - sum(rewards) / 4 for r in rewards])
    for row in steps:
        own = [g["episodes"] for g in groups if g["step"] == row["step"]]
        rewards = [one["reward"] for episodes in own for one in episodes]
        assert sum(rewards) / len(rewards) == pytest.approx(row["reward"])


def test_a_run_goes_on_from_an_earlier_step_and_loses_nothing(small: Path, tmp_path: Path) -> None:
    file = run_toml(tmp_path, small, "subprocess", batch_size=4)
    assert command("rl", f"@{file}", *MONITORS, cwd=tmp_path).returncode == 0
    bad(command("rl", f"@{file}", cwd=tmp_path), "is there already")
    folder = tmp_path / "outputs" / "r"
    with (folder / "groups.jsonl").open("a") as groups:
        groups.write('{"step": 3, "group": 0}\n{"step": 3, "gr')  # as a killed run leaves it
    (folder / "checkpoints" / ".step_3.4194305").mkdir()
    second = (folder / "checkpoints" / "step_2" / "model.safetensors").read_bytes()
    before = {path.name for path in (folder / "trajectories").glob("*.jsonl")}
    flags = ["--resume.step", "1", "--trainer.optim.lr", "2e-3"]
    again = command("rl", f"@{folder / 'config.json'}", *flags, cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    branch = folder / "branches" / "after_step_1"
    assert f"what the run made after step 1 is now in {branch}" in again.stdout
    for place, steps in ((folder, [1, 2]), (branch, [2])):
        lines = (place / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == steps
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["step_1", "step_2"]
    assert (branch / "checkpoints" / "step_2" / "model.safetensors").read_bytes() == second
    assert (folder / "checkpoints" / "step_2" / "model.safetensors").read_bytes() != second
    aside = {path.name for path in (branch / "trajectories").glob("*.jsonl")}
    assert len(aside) == 4
    assert aside < before
    run = read_run(folder)
    assert run.counts() == {"well": 8, "failed": 0, "unfinished": 0}
    assert {one.start.model for one in run.outcomes if one.start} == {str(small)}
    assert json.loads((folder / "config.json").read_text())["resume"] is None
    if MONITORS:
        check_monitors(folder, branch)
    bad(
        command("rl", f"@{file}", "--resume.step", "7", "--max-steps", "9", cwd=tmp_path),
        "there: 1, 2",
    )


def check_monitors(folder: Path, branch: Path) -> None:
    """Weights & Biases knows the second part as a run of its own, and TensorBoard only the step that
    counts."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    rewards = events.Scalars("reward")
    assert [event.step for event in rewards] == [1, 2]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [event.value for event in rewards] == pytest.approx([row["reward"] for row in rows])
    ids = []
    for place in (branch, folder):
        run_id = wandb_file(place).read_text().splitlines()[0]
        (part,) = (folder / "wandb").glob(f"offline-run-*-{run_id}/run-{run_id}.wandb")
        content = part.read_bytes()
        assert b"mismatch_kl/all/mean" in content
        assert (b"r-from-step-1" in content) == (place == folder)
        ids.append(run_id)
    assert len({*ids}) == 2


def test_a_run_in_which_every_episode_fails_says_why(small: Path, tmp_path: Path) -> None:
    file = run_toml(tmp_path, small, "subprocess", max_steps=1, batch_size=4)
    done = command("rl", f"@{file}", "--seq-len", "100", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    why = "the commonest failure (4 of 4): "
    assert f"step 1: 4 of 4 episodes failed; {why}" in done.stdout
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert line.startswith(f"error: no episode ended well, so nothing was learnt; {why}")
    assert "exceeds maximum context length" in line
    assert "play it:" not in done.stdout


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model.name", "/no/such/model"], ["/no/such/model"]),
        (["--orchestrator.train.source.0.env.taskset.tasks", '["nope"]'], ["nope", "titanic"]),
        (["--trainer.optim.lr", "quick"], ["--trainer.optim.lr", "quick"]),
        (["--embedded.port", "{port}"], ["{port}"]),
        (["--output-dir", "/proc/nowhere"], ["/proc/nowhere"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    flags: list[str],
    words: list[str],
    small: Path,
    tmp_path: Path,
    taken: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = run_toml(tmp_path, small, "subprocess")
    flags = [flag.format(port=taken) for flag in flags]
    assert main(["rl", f"@{file}", *flags]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ")
    assert "\n" not in error
    for word in words:
        assert word.format(port=taken) in error


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own, too small for a checkpoint."""
    folder = tmp_path / "outputs"
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=300k", "air-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(argv, check=False).returncode:
        pytest.skip("this user may not mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("left_kib", [0, 200])
def test_a_full_disk_is_one_line_and_exit_code_2(
    left_kib: int, full: Path, small: Path, tmp_path: Path
) -> None:
    with (full / "ballast").open("wb", buffering=0) as ballast:
        ballast.write(b"x" * ((300 - left_kib) << 10))
    done = command("rl", f"@{run_toml(tmp_path, small, 'subprocess')}", cwd=tmp_path)
    assert done.returncode == 2, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, done.stderr[-2000:]
    assert re.search("disk full|disk is full|No space left", lines[0])
    assert str(full) in lines[0]
    assert "Traceback" not in done.stderr


def test_a_reward_term_that_fails_stops_a_run_with_one_line(small: Path, tmp_path: Path) -> None:
    file = run_toml(tmp_path, small, "subprocess")
    terms = "[orchestrator.train.source.env.terms]\n'math:floor' = 1.0\n"
    file.write_text(file.read_text() + terms)
    done = command("rl", f"@{file}", cwd=tmp_path)
    assert done.returncode == 1, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, done.stderr[-2000:]
    for words in ("math:floor: the reward term raised TypeError", "remove it from `terms`"):
        assert words in lines[0]
    assert not (tmp_path / "outputs" / "r" / "metrics.jsonl").exists()
    assert "Traceback" not in done.stderr


STOPPING = """
import os, signal
def estimator(rewards):
    if os.path.exists(os.environ["STOP"]):
        os.remove(os.environ["STOP"])
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    return [0.0 if reward is None else float(number) for number, reward in enumerate(rewards)]
"""
"""An estimator, which a run calls in the middle of an update."""


@contextmanager
def started(file: Path) -> Iterator[ForkedCommand]:
    """`rl` with the first step under way; its output goes into the file `out` beside the run's.
    It stops itself by two signals, in the middle of an update, when the file `stop` is beside the run's."""
    (file.parent / "stopping.py").write_text(STOPPING)
    argv = ["rl", f"@{file}", "--max-steps", "500"]
    argv += ["--embedded.estimator.import-path", "stopping:estimator"]
    env = os.environ | {"PYTHONPATH": str(file.parent), "STOP": str(file.parent / "stop")}
    metrics = file.parent / "outputs" / "r" / "metrics.jsonl"
    output = file.parent / "out"
    with (
        output.open("wb") as log,
        of_this_run().spawn(argv, cwd=file.parent, env=env, streams=[log, log]) as process,
    ):
        deadline = time.monotonic() + 300
        while not metrics.is_file():
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield process


@containers_in_full
def test_two_signals_during_an_update_keep_what_is_done_and_say_how_to_go_on(
    runtime: str, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = tmp_path / "outputs" / "r" / "checkpoints"
    with started(run_toml(tmp_path, small, runtime)) as process:
        while not list(checkpoints.glob("step_*")):
            assert process.poll() is None
            time.sleep(0.05)
        assert main(["rl", f"@{tmp_path / 'run.toml'}", "--resume"]) == 2
        assert "another run is under way in this folder" in capsys.readouterr().err
        (tmp_path / "stop").touch()
        assert process.wait(120) == 130, (tmp_path / "out").read_text()
    out = (tmp_path / "out").read_text()
    assert "--resume" in out
    assert "Traceback" not in out
    assert out.count("stopping already") == 1
    done = len(rows(tmp_path))
    assert [row["step"] for row in rows(tmp_path)] == list(range(1, done + 1))
    assert {f"step_{step}" for step in range(1, done + 1)} == {
        p.name for p in checkpoints.iterdir()
    }
    assert not (checkpoints.parent / ".lock").exists()
    assert not boxes_of(process.pid)


@pytest.mark.docker
def test_sigkill_leaves_no_running_box(small: Path, tmp_path: Path) -> None:
    with started(run_toml(tmp_path, small, "docker")) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    time.sleep(5)  # none for a moment is not none: the engine may be starting one
    assert not boxes_of(process.pid)
    orphans.collect()  # what the engine made, and nobody started
    assert not boxes_of(process.pid, states=None)


def boxes_of(pid: int, states: Sequence[str] | None = ("running",)) -> list[str]:
    """The containers that a process owns and that are in one of these states; None: in any."""
    from air.errors import MissingError
    from air.sandbox.docker import engine

    try:
        boxes = engine.containers_of_air()
    except MissingError:
        return []
    mine = [box for box in boxes if box["Labels"]["air.owner"].split(":")[-2] == str(pid)]
    return [box["Id"] for box in mine if states is None or box["State"] in states]
