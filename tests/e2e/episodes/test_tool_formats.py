"""Episodes with real tool calls are token-exact in each action format: the trainer trains on the sampled
tokens, and on no others."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf

from air.env.config import ResearchEnvConfig
from air.testing import replies
from air.train.algorithms import GRPOConfig
from air.train.evaluation.play import served
from air.train.loop.rollout import Group, Rollout, seeded
from air.train.loop.samples import samples
from air.train.model import policy as policies
from tests.e2e.conftest import played_by, research, warm
from tests.e2e.train.test_train import check_exact

PYTHON, BASH = "code_interpreter", "bash"
CALL = '{"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}'
CALLS = {
    "hermes": (PYTHON, f"Hm.\n<tool_call>\n{CALL}\n</tool_call>", "42"),
    "react_input": (
        PYTHON,
        'Thought: Hm.\nAction: code_interpreter\nInput: {"code": "print(6 * 7)"}',
        "Thought: So.\nAnswer: 42",
    ),
    "code": (PYTHON, "Hm.\n```python\nprint(6 * 7)\n```", "42"),
    "action": (PYTHON, "<think>Hm.</think>\n<action>print(6 * 7)</action>", "42"),
    "bash_swe": (BASH, "Hm.\n```bash\necho $((6 * 7))\n```", "42"),
}
"""For each format: the tool, a reply that calls it, and a reply with the answer."""


EPISODES = 4


def config(folder: Path, name: str) -> ResearchEnvConfig:
    """The environment of a question that is asked in the format `name`, with its tool in a process box."""
    tool = CALLS[name][0]
    rows = folder / "rows.jsonl"
    rows.write_text(json.dumps({"question": "What is 6 * 7?", "answer": "42"}) + "\n")
    options = f"checker=math_string_equal&split=all&tools={tool}&turns=3&format={name}"
    return research([f"rows:{rows}#{options}"], "subprocess", max_turns=3)


async def conversation(folder: Path, name: str) -> list[dict[str, str]]:
    """The messages of an episode in which a scripted model calls the tool, and then answers."""
    _, call, answer = CALLS[name]
    async with played_by(replies(call, answer), config(folder, name)) as play:
        (trace,) = (await play()).traces
    messages = [(node.message.role, str(node.message.content)) for node in trace.nodes]
    return [{"role": role, "content": content} for role, content in messages]


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of 0.1 M weights that calls the tool, and then answers, in each of the formats."""
    folder = tmp_path_factory.mktemp("caller")
    return warm(folder, [asyncio.run(conversation(folder, name)) for name in CALLS])


@pytest.mark.parametrize("name", CALLS)
async def test_real_calls_are_trained_on_the_sampled_tokens(
    name: str, caller: Path, tmp_path: Path
) -> None:
    policy = policies.load(caller)
    env = vf.load_environment(config(tmp_path, name))
    traces: list[Any] = []
    async with (
        served(policy, temperature=1.0, max_tokens=96, max_model_len=1024) as ctx,
        env.serving(),
    ):
        task = next(iter(env.taskset))
        for number in range(EPISODES):
            slot = env.slots(task)[0]
            episode = await env.run_slot(slot, seeded(ctx, f"{name} {number}"))
            assert episode.ok, episode.errors or episode.traces[0].errors
            traces += episode.traces
    # The tool ran in an episode: an observation has its result, which no call contains.
    results = [str(node.message.content) for trace in traces for node in trace.nodes]
    assert any("42\n[" in text for text in results)
    assert any(trace.metrics["tool_calls"] >= 1 for trace in traces)
    for trace in traces:
        check_exact(policy, trace)
    group = Group([Rollout("s", "t", [trace]) for trace in traces])
    trained = samples([group], GRPOConfig().build(), 1.0, keep_zeros=True)
    assert len(trained) == EPISODES
    for trace, sample in zip(traces, trained, strict=True):
        (branch,) = trace.branches
        assert list(sample.token_ids) == list(branch.token_ids)
        assert list(sample.mask) == list(branch.sampled_mask)
