"""Episodes with real tool calls are token-exact in each action format: the trainer trains on the sampled
tokens, and on no others. They record why they ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf

from air.env.config import ResearchEnvConfig
from air.testing import Script, ScriptedServer, replies
from air.train.algorithms import GRPOConfig
from air.train.evaluation.play import served
from air.train.loop.rollout import Group, Rollout, Source, context, play_group, seeded
from air.train.loop.samples import samples
from air.train.model import policy as policies
from air.trajectories import Trajectory, load
from tests.e2e.conftest import played_by, research, warm
from tests.e2e.train.test_train import check_exact, check_tokens

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


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer and chat template are used; a script says what it samples."""
    texts = ["What is 6 * 7? <answer>42</answer> <search> <tool_call> name arguments expression"]
    folder = tmp_path_factory.mktemp("untrained") / "m"
    return policies.build(folder, texts, hidden=32, layers=1, heads=2, vocab=320)


def asked(folder: Path, tools: str, options: str, **settings: Any) -> ResearchEnvConfig:
    """The environment of one question with these `tools`, a list in TOML. It records its episodes."""
    (folder / "rows.jsonl").write_text('{"question": "What is 6 * 7?", "answer": "42"}\n')
    task = folder / "task.toml"
    task.write_text(
        f'data = "rows.jsonl"\nchecker = "math_string_equal"\nturns = 3\ntools = {tools}\n'
    )
    name = f"rows:{task}#split=all&{options}"
    record_dir = folder / "records"
    return research([name], "subprocess", max_turns=None, record_dir=record_dir, **settings)


@asynccontextmanager
async def group_of(
    size: int,
    script: Script,
    config: ResearchEnvConfig,
    policy: policies.Policy,
    max_tokens: int | None = None,
) -> AsyncIterator[Group]:
    """Plays a group as training does: the client sends token ids, and the server samples the script."""
    env = vf.load_environment(config)
    with ScriptedServer(script, policy.tokenizer) as server:
        url = server.url.removesuffix("/v1")
        ctx = context(policy, url, temperature=1.0, max_tokens=max_tokens)
        async with env.serving():
            tasks = list(env.taskset)
            yield await play_group(Source("s", 1.0, size, env, tasks), tasks[0], ctx)


def recorded(folder: Path) -> list[Trajectory]:
    return [load(path) for path in (folder / "records").glob("*.jsonl")]


def call(name: str, **arguments: Any) -> str:
    said = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{said}\n</tool_call>"


PASSAGES = [
    {"title": "Moby-Dick", "text": "A captain hunts a white whale."},
    {"title": "Emma", "text": "A young woman arranges marriages."},
    {"title": "Oceans", "text": "They are salty, and they are deep."},
]
CALCULATE = call("calculator", expression="6 * 7")
SAID = {
    "search_r1": (
        '[{ name = "search", corpus = "passages.jsonl", top = 1 }]',
        "<think>Hm.</think>\n<search>the white whale</search>",
        "<think>So.</think>\n<answer>42</answer>",
        "<information>[1] Moby-Dick\nA captain hunts a white whale.\n[",
    ),
    "tool_calls": ('["calculator"]', f"Hm.\n{CALCULATE}", "42", "42\n["),
}
"""For each format: the tools, a reply that calls one, a reply with the answer, and how the result begins."""


@pytest.mark.parametrize("name", SAID)
async def test_scripted_calls_are_trained_on_the_sampled_tokens(
    name: str, untrained: Path, tmp_path: Path
) -> None:
    """Searches in tags, and calls that the server takes out of the text."""
    tools, calls, answers, shown = SAID[name]
    lines = [f"{json.dumps(one)}\n" for one in PASSAGES]
    (tmp_path / "passages.jsonl").write_text("".join(lines))
    policy = policies.load(untrained)
    config = asked(tmp_path, tools, f"format={name}")
    async with group_of(1, replies(calls, answers), config, policy) as group:
        (rollout,) = group.rollouts
    assert rollout.ok, rollout.error
    trace = rollout.trace
    assert (trace.reward, trace.metrics["tool_calls"], trace.metrics["tool_errors"]) == (1, 1, 0)
    result = trace.nodes[3].message
    assert str(result.content).startswith(shown)
    assert result.role == ("tool" if name == "tool_calls" else "user")
    (trajectory,) = recorded(tmp_path)
    assert trajectory.start is not None
    assert bool(trajectory.start.tools) == (name == "tool_calls")
    branch, _ = check_tokens(policy, trace, trajectory.start.tools)
    drawn = [t for t, own in zip(branch.token_ids, branch.sampled_mask, strict=True) if own]
    assert policy.tokenizer.decode(drawn) == f"{calls}<|im_end|>{answers}<|im_end|>"
    (sample,) = samples([group], GRPOConfig().build(), 1.0, keep_zeros=True)
    assert list(sample.token_ids) == list(branch.token_ids)
    assert list(sample.mask) == list(branch.sampled_mask)


LONG = "42 " * 400
ENDS: dict[str, tuple[Sequence[str], int | None, str, dict[str, int]]] = {
    # replies, limit of the context, why the episode ended, and the metrics that are not 0
    "a reply without a call": ([CALCULATE, "42"], None, "done", {"turns": 2, "answered": 1}),
    "a tool that ends it": (
        [CALCULATE, call("answer", answer="42")],
        None,
        "done",
        {"turns": 2, "answered": 1},
    ),
    "no turn is left": ([CALCULATE], None, "turns", {"turns": 3}),
    "the context is full": ([CALCULATE], 64, "context", {"turns": 1, "context_ends": 1}),
    "a reply is cut": ([CALCULATE, LONG], None, "length", {"turns": 2, "cut_replies": 1}),
    "a reply is cut by the context": (
        [LONG],
        64,
        "context",
        {"turns": 1, "cut_replies": 1, "context_ends": 1},
    ),
}


@pytest.mark.parametrize("way", ENDS)
async def test_an_episode_records_why_it_ended(way: str, untrained: Path, tmp_path: Path) -> None:
    said, limit, why, counts = ENDS[way]
    harness = {"max_context_tokens": limit}
    config = asked(tmp_path, '["calculator", "answer"]', "format=tool_calls", harness=harness)
    policy = policies.load(untrained)
    async with group_of(1, replies(*said), config, policy, max_tokens=160) as group:
        (rollout,) = group.rollouts
    assert rollout.ok, rollout.error
    metrics = rollout.trace.metrics
    names = ("turns", "answered", "context_ends", "cut_replies")
    assert {name: metrics[name] for name in names if metrics[name]} == counts
    assert rollout.terms["world"] == counts.get("answered", 0)
    (trajectory,) = recorded(tmp_path)
    assert trajectory.end is not None
    assert rollout.info["why_ended"] == trajectory.end.why == why
    cut = bool(counts.get("cut_replies"))
    assert trajectory.steps[-1].problem == ("length" if cut else "")
    # Also an episode without an answer is trained on.
    assert len(samples([group], GRPOConfig().build(), 1.0, keep_zeros=True)) == 1


STATEFUL = """
import itertools

from air.errors import InfrastructureError
from air.tools import tool

CALLS = itertools.count()


class State:
    def __init__(self, context):
        self.number = 0


@tool(state=State)
def count(state) -> str:
    "Counts."
    state.number += 1
    return f"number {state.number}"


@tool
def fetch() -> str:
    "Fails once."
    if next(CALLS) == 0:
        raise InfrastructureError("the disk is full")
    return "fetched"
"""


async def test_chains_of_a_prompt_have_their_own_tools_and_fail_alone(tmp_path: Path) -> None:
    """AgentFly's batch fails with one chain. Here a chain that fails is left out of the group."""
    (tmp_path / "own.py").write_text(STATEFUL)
    env = vf.load_environment(
        asked(tmp_path, '["own.py:count", "own.py:fetch"]', "format=tool_calls")
    )
    # Without token ids: the lock of renderers belongs to one event loop.
    with ScriptedServer(replies(*map(as_message, ("count", "fetch")), "42")) as server:
        client = vf.EvalClientConfig(base_url=server.url, api_key_var="AIR_TEST_KEY")
        ctx = vf.ModelContext(model="scripted", client=client)
        async with env.serving():
            tasks = list(env.taskset)
            group = await play_group(Source("s", 1.0, 4, env, tasks), tasks[0], ctx)
    good = [one for one in group.rollouts if one.ok]
    (failed,) = (one for one in group.rollouts if not one.ok)
    assert "the disk is full" in str(failed.error)
    for rollout in good:
        shown = [str(node.message.content) for node in rollout.trace.nodes]
        assert shown[3].startswith("number 1\n[")
        assert (rollout.trace.reward, rollout.info["why_ended"]) == (1, "done")
    assert len({rollout.trace.id for rollout in good}) == len(good) == 3
    assert len(recorded(tmp_path)) == 4


def as_message(name: str) -> dict[str, Any]:
    """A message of the model that calls a tool without arguments."""
    function = {"name": name, "arguments": "{}"}
    call = {"id": "call_0", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}
