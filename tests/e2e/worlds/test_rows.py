"""The shipped run file of rows with a tool trains: chains of one question, real calls, exact tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from air.env.config import ResearchEnvConfig
from air.paths import shipped
from air.train.config import overrides
from air.train.config.run_config import RunConfig
from air.train.model import policy as policies
from air.train.model.logprobs import token_logprobs
from air.trajectories import load, trained_tokens
from tests.e2e.commands.test_commands import command
from tests.e2e.conftest import played_by, warm

FILE = shipped("configs") / "agentfly" / "small.toml"
ROOT = FILE.parents[2]
"""The folder to which the path of the rows in the file is relative."""
ONE_QUESTION = ["--orchestrator.train.source.0.env.taskset.examples-per-task", "1"]
QUESTION, PRODUCT = "What is 30 times 15?", "450"
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "30 * 15"}}\n</tool_call>'
CHAINS = 8


def environment() -> ResearchEnvConfig:
    config = overrides.build(RunConfig, overrides.read_files(["@", str(FILE), *ONE_QUESTION]))
    (source,) = config.orchestrator.train.source
    assert isinstance(source.env, ResearchEnvConfig)
    return source.env


async def conversations(*answers: str) -> list[list[dict[str, str]]]:
    """The messages of episodes in which a scripted model calls the calculator, and gives these answers."""
    said = iter([reply for answer in answers for reply in (CALL, answer)])
    async with played_by(lambda _: next(said), environment()) as play:
        traces = [(await play()).traces[0] for _ in answers]
    assert [trace.reward for trace in traces] == [float(answer == PRODUCT) for answer in answers]
    messages = [[node.message for node in trace.nodes] for trace in traces]
    assert all(QUESTION in str(one[1].content) for one in messages)
    return [[{"role": m.role, "content": str(m.content)} for m in one] for one in messages]


def test_the_run_file_of_agentfly_trains_on_chains_with_real_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    model = warm(tmp_path, asyncio.run(conversations(PRODUCT, "451")))
    flags = ["--model.name", model, "--max-steps", "1", "--ckpt.interval", "1", *ONE_QUESTION]
    flags += [f"--orchestrator.{name}={CHAINS}" for name in ("batch-size", "group-size")]
    flags += ["--output-dir", tmp_path, "--run.name", "r"]
    done = command("rl", "@", FILE, *flags, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "r"
    (row,) = lines(folder / "metrics.jsonl")
    assert (row["episodes"], row["failed_episodes"], row["multi_branch_episodes"]) == (CHAINS, 0, 0)
    check_group(folder, row)
    check_tokens(folder, policies.load(model))
    before, after = (policies.load(one).model for one in (model, folder / "checkpoints" / "step_1"))
    changed = [
        not torch.equal(*pair)
        for pair in zip(before.state_dict().values(), after.state_dict().values(), strict=True)
    ]
    # Chains that all earn the same teach nothing; here some are right, and some wrong.
    assert any(changed) == bool(row["train/updated"]) == (row["zero_spread_groups"] == 0)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_group(folder: Path, row: dict[str, Any]) -> None:
    """All chains are one group. Each is an episode of its own, and says why it ended."""
    (group,) = lines(folder / "groups.jsonl")
    rewards = [one["reward"] for one in group["episodes"]]
    assert len({one["episode"] for one in group["episodes"]}) == len(rewards) == CHAINS
    assert set(rewards) <= {0.0, 1.0}
    mean = sum(rewards) / CHAINS
    assert [one["advantage"] for one in group["episodes"]] == pytest.approx(
        [reward - mean for reward in rewards]
    )
    assert row["reward"] == pytest.approx(mean)
    episodes = [load(folder / "trajectories" / f"{e['episode']}.jsonl") for e in group["episodes"]]
    shown = [step.shown for one in episodes for step in one.steps if step.shown]
    assert any(f"{PRODUCT}\n[2 turns left]" in text for text in shown)
    for one, reward in zip(episodes, rewards, strict=True):
        assert one.end is not None
        assert one.end.why in {"done", "turns", "length", "context"}
        assert reward == 0.0 or one.end.why == "done"


def check_tokens(folder: Path, policy: policies.Policy) -> None:
    """The policy that sampled computes the log-probabilities that the sampler reported, on the recorded
    tokens."""
    step = trained_tokens.read(folder, 1)
    assert step is not None
    assert len(step.conversations) == CHAINS
    for one in step.conversations:
        tokens = [token for message in one.messages for token in message.token_ids.tolist()]
        sampled = [own for message in one.messages for own in message.sampled.tolist()]
        reported = [x for message in one.messages for x in message.logprobs.tolist()]
        with torch.no_grad():
            again = token_logprobs(policy.model, torch.tensor([tokens]), 1.0)[0].tolist()
        assert drawn(again, sampled) == pytest.approx(reported, abs=2e-3)


def drawn(values: Sequence[float], sampled: Sequence[bool]) -> list[float]:
    return [value for value, own in zip(values, sampled, strict=True) if own]
