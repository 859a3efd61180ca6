"""One run on a game, a question, a research task, an AgentGym server and an OpenEnv server."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from air import actions
from air.trajectories import Trajectory, load, trained_tokens
from air.worlds import sources
from tests.e2e.commands.test_commands import command
from tests.e2e.conftest import talk, warm
from tests.e2e.train.test_train import rows
from tests.environment_server import FaultyServer
from tests.episodes_server import serving

GAME, QUESTION, RESEARCH = "game:blocksworld-text", "question:gsm8k5-level1", "titanic"
SERVED = "question:gsm8k5-level2"
"""The task that the OpenEnv server offers."""
WEIGHTS = {"game": 3, "question": 2, "agentgym": 2, "openenv": 2, RESEARCH: 1}
"""The weight of each source. Their sum is the number of groups in a step, so each step has exact shares."""
GROUP, STEPS = 2, 2
REPLAYED = {"game", "question", RESEARCH}
"""The sources whose episodes replay. A server does not promise the same results again."""


def kind(task: str) -> str:
    return task.partition(":")[0]


def lesson(format_name: str, asked: str, answer: str, then: str) -> list[dict[str, str]]:
    """A conversation in which the policy sees how an action of a world is written."""
    written = actions.get(format_name).render("go", actions.Action(answer=answer))
    return [
        {"role": "system", "content": actions.get(format_name).instructions},
        {"role": "user", "content": asked},
        {"role": "assistant", "content": written},
        {"role": "user", "content": f"{then}\n[2 turns left]"},
        {"role": "assistant", "content": written},
    ]


async def lessons() -> list[list[dict[str, str]]]:
    """Conversations of all kinds, with the prompts that the run will have."""
    talks = [talk(m, 2) for m in (1, 2)]
    for seed in range(2):
        for task, shown, answer in (
            (GAME, sources.load(GAME), "(move 1 to 0)"),
            (QUESTION, sources.load(QUESTION), "7"),
            (SERVED, sources.load("openenv:http://h"), "7"),
        ):
            world = sources.load(task).world()
            first = (await world.reset(seed)).text
            again = (await world.step(actions.Action(answer=answer))).observation.text
            await world.close()
            asked = f"{shown.instructions}\n\n{first}"
            talks.append(lesson(shown.format, asked, answer, again))
        corridor = sources.load("agentgym:textcraft@http://h")
        asked = f"{corridor.instructions}\n\nGoal: 3 forward."
        talks.append(lesson(corridor.format, asked, "forward", f"place {seed + 1}"))
    return talks


def run_toml(folder: Path, model: Path, tasks: Sequence[str]) -> Path:
    path = folder / "run.toml"
    weights = {task: WEIGHTS[kind(task)] for task in tasks}
    groups = sum(weights.values())
    table = ", ".join(f"{json.dumps(task)} = {weight}" for task, weight in weights.items())
    path.write_text(
        f"""
max_steps = {STEPS}
seq_len = 896
output_dir = "{folder / "outputs"}"
[run]
name = "r"
[model]
name = "{model}"
[orchestrator]
batch_size = {groups * GROUP}
group_size = {GROUP}
[orchestrator.train.sampling]
max_completion_tokens = 48
[[orchestrator.train.source]]
[orchestrator.train.source.env]
credit = "segment"
[orchestrator.train.source.env.taskset]
id = "air"
tasks = {json.dumps(list(tasks))}
weights = {{ {table} }}
examples_per_task = {groups * STEPS // len(tasks)}
[orchestrator.train.source.env.agent]
max_turns = 3
[orchestrator.train.source.env.agent.runtime]
type = "docker"
[orchestrator.train.source.env.agent.harness]
id = "air"
max_observation_tokens = 64
"""
    )
    return path


@pytest.mark.docker
async def test_five_kinds_of_sources_train_in_one_run(tmp_path: Path) -> None:
    model = await asyncio.to_thread(warm, tmp_path, await lessons())
    async with FaultyServer().running() as gym, serving(SERVED, max_sessions=8) as served:
        remote = [f"agentgym:textcraft@{gym.url}", f"openenv:{served.url}#max_turns=3"]
        tasks = [GAME, QUESTION, *remote, RESEARCH]
        file = run_toml(tmp_path, model, tasks)
        ran = await asyncio.to_thread(command, "rl", "@", file, cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    folder = tmp_path / "outputs" / "r"
    episodes = [load(path) for path in (folder / "trajectories").glob("*.jsonl")]
    counts = Counter(kind(one.start.task) for one in episodes if one.start)
    assert counts == {name: weight * GROUP * STEPS for name, weight in WEIGHTS.items()}
    assert all(one.end and one.end.ok for one in episodes)
    check_metrics(rows(tmp_path), tasks)
    check_credit(folder, episodes)
    replayed = await asyncio.to_thread(command, "air", "replay", folder, cwd=tmp_path)
    check_replays(replayed, episodes)


def check_metrics(steps: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> None:
    """Each step has the share of each source, and nothing failed."""
    assert len(steps) == STEPS
    for row in steps:
        assert (row["failed_episodes"], row["train/updated"]) == (0, 1)
        shares = {task: numbers["episodes"] for task, numbers in row["tasks"].items()}
        assert shares == {task: WEIGHTS[kind(task)] * GROUP for task in tasks}
        total = sum(shares[task] * row["tasks"][task]["reward"] for task in tasks)
        assert row["reward"] == pytest.approx(total / sum(shares.values()))
        assert row["world/num_actions"] > 0


def check_credit(folder: Path, episodes: Sequence[Trajectory]) -> None:
    """In every kind of source, a reply is paid for its segment, and all payments of an episode add up to its
    reward. A segment ends with an action that has a reward or a `validate`, the last one with the episode."""
    steps = [trained_tokens.read(folder, step) for step in range(1, STEPS + 1)]
    talks = {talk.episode: talk for step in steps if step for talk in step.conversations}
    earning: set[str] = set()
    for one in episodes:
        assert one.start is not None
        assert one.end is not None
        conversation = talks[one.path.stem]
        payments = conversation.payments
        paid = sum(sum(payment.terms.values()) for payment in payments)
        assert paid == pytest.approx(one.end.reward)
        ends = {step.turn for step in one.steps if step.reward}
        ends |= {validation.turn for validation in one.validations}
        bounds = [0, *sorted(ends)[:-1], len(one.steps)]
        for turn, reply in enumerate(conversation.replies, start=1):
            first = max(end for end in bounds if end < turn)
            last = min(end for end in bounds if end >= turn)
            own = [n for n, payment in enumerate(payments) if first < payment.turn <= last]
            assert own == list(range(*conversation.messages[reply].paid or ()))
        if ends and one.end.reward:
            earning.add(kind(one.start.task))
    assert earning == set(WEIGHTS)


def check_replays(replayed: CompletedProcess[str], episodes: Sequence[Trajectory]) -> None:
    """Each episode matches its replay, except those of servers, of which each is refused in one line."""
    refused = replayed.stderr.count("does not answer equal actions always alike")
    matched = [line.split()[2] for line in replayed.stdout.splitlines() if "matched /" in line]
    expected = [kind(one.start.task) for one in episodes if one.start]
    own = Counter(name for name in expected if name in REPLAYED)
    assert Counter(kind(task.rstrip(":")) for task in matched) == own, replayed.stdout
    assert refused == len(episodes) - own.total(), replayed.stderr
    assert replayed.returncode == 2
