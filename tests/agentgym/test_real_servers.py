"""Scripted players, a training step and hostile actions on AgentGym's real servers: `make test-agentgym`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx
import pytest

from air.actions.base import Action
from air.trajectories import load
from air.worlds import sources
from tests.agentgym import servers
from tests.agentgym.solvers import Crafter, Player, Walker, gold
from tests.e2e.commands.test_commands import command
from tests.e2e.conftest import warm

pytestmark = pytest.mark.agentgym


def started(name: str, folder: Path) -> Iterator[str]:
    with servers.running(Path(os.environ["AIR_AGENTGYM_ROOT"]), name, folder / "log") as url:
        yield url


@pytest.fixture(scope="module")
def textcraft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from started("textcraft", tmp_path_factory.mktemp("textcraft"))


@pytest.fixture(scope="module")
def babyai(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from started("babyai", tmp_path_factory.mktemp("babyai"))


@pytest.fixture(scope="module")
def sciworld(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from started("sciworld", tmp_path_factory.mktemp("sciworld"))


@pytest.fixture(scope="module", params=["textcraft", "babyai", "sciworld"])
def each(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The name of an environment, and the address of its server."""
    return request.param, request.getfixturevalue(request.param)


LOOK = {"textcraft": "inventory", "babyai": "turn left", "sciworld": "look around"}
"""A harmless action of each environment."""


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that says a harmless action, half of the time without the action format."""
    talks = [
        [
            {"role": "user", "content": sources.load(f"agentgym:{name}@http://h").instructions},
            {"role": "assistant", "content": reply},
        ]
        for name, look in LOOK.items()
        for reply in (f"Action: {look}", look)
    ]
    return warm(tmp_path_factory.mktemp("speaker"), talks)


async def play(task_id: str, seed: int, player: Player, turns: int = 120) -> dict[str, float]:
    """Plays one episode; returns the world's facts, and the sum of its rewards as `reward`."""
    world = sources.load(task_id).world()
    total = 0.0
    try:
        shown = (await world.reset(seed)).text
        for _ in range(turns):
            step = await world.step(Action(answer=player(shown)))
            shown, total = step.observation.text, total + step.reward
            if step.done:
                break
        return {**world.facts(), "reward": total}
    finally:
        await world.close()


def following(actions: Iterable[str]) -> Player:
    """Returns a player with fixed actions."""
    left = iter(actions)
    return lambda observation: next(left)


async def test_textcraft_is_solved(textcraft: str) -> None:
    task = f"agentgym:textcraft@{textcraft}"
    played = await asyncio.gather(*(play(task, seed, Crafter()) for seed in range(100)))
    assert all(one["reward"] == one["best_score"] == one["success"] for one in played)
    # The player does not know which items are of a kind, such as planks; most goals need none.
    assert sum(one["success"] for one in played) >= 60
    nothing = await asyncio.gather(
        *(play(task, seed, lambda _: "inventory", 5) for seed in range(20))
    )
    assert not any(one["reward"] for one in nothing)


async def test_babyai_is_solved(babyai: str) -> None:
    level = [f"agentgym:babyai:{40 * seed}@{babyai}" for seed in range(20)]  # "go to the red ball"
    played = await asyncio.gather(*(play(task, 0, Walker(), 64) for task in level))
    assert all(one["reward"] == pytest.approx(one["best_score"]) for one in played)
    assert all(0 <= one["best_score"] <= 1 for one in played)
    assert sum(one["success"] for one in played) >= 16
    assert max(one["best_score"] for one in played) > 0.8


async def test_babyai_counts_a_late_success_once(babyai: str) -> None:
    """This level's limit is 64 steps: 40 turns before the success leave a reward below a half."""
    walker = Walker()
    turned = iter(["turn left"] * 40)
    facts = await play(f"agentgym:babyai:0@{babyai}", 0, lambda shown: next(turned, walker(shown)))
    assert facts["success"] == 1
    assert 0 < facts["best_score"] == facts["reward"] < 0.5


async def test_sciworld_is_solved(sciworld: str) -> None:
    ids = [1500, 3700]
    found = [await start_of(sciworld, data) for data in ids]
    for data, actions in zip(ids, gold(found), strict=True):
        facts = await play(f"agentgym:sciworld:{data}@{sciworld}", 0, following(actions))
        assert facts["reward"] == pytest.approx(facts["best_score"])
        assert facts["success"] == 1, (data, facts)


async def start_of(url: str, data: int) -> tuple[str, int]:
    """Returns the name and the variation of one of sciworld's tasks."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=120) as client:
        session = (await client.post("/create")).json()["id"]
        start = (await client.post("/reset", json={"id": session, "data_idx": data})).json()
        await client.post("/close", json={"id": session})
        return start["task_name"], start["var_num"]


async def test_a_wrong_focus_takes_all_back(sciworld: str) -> None:
    actions = ["focus on agent", "focus on picture"]
    facts = await play(f"agentgym:sciworld:0@{sciworld}", 0, following(actions))
    assert facts["raw_score"] == -100
    assert facts["reward"] == facts["best_score"] == 0


HOSTILE = (
    "",
    '{"id": 0, "action": "inventory"}',
    '"}, {"id": 0, "data_idx": 5',
    "\x00\x1b[31m\r\nPOST /close HTTP/1.1",
    "\ud800\udfff ﷽ 🙂 ١٢٣",
    "get " + "9" * 6000 + " oak log",
    "a" * 1_000_000,
    "../../../etc/passwd",
    "inventory; import os; os.abort()",
    "reset task",
    "{}{{}}%s%n$(id)`id`",
)


async def test_hostile_actions_are_observations_and_harm_no_other_session(
    each: tuple[str, str],
) -> None:
    name, url = each
    task = f"agentgym:{name}@{url}"
    other = sources.load(task).world()
    before = (await other.reset(1)).text
    facts = await play(task, 0, following(HOSTILE), turns=len(HOSTILE))
    assert facts["reward"] == 0
    assert facts["num_actions"] == len(HOSTILE)
    after = (await other.step(Action(answer=LOOK[name]))).observation.text
    assert {"textcraft": "not carrying", "babyai": "Available", "sciworld": after}[name] in after
    if name == "sciworld":
        assert after in before
    await other.close()


def test_one_step_is_trained(each: tuple[str, str], speaker: Path, tmp_path: Path) -> None:
    task = "agentgym:{}@{}".format(*each)
    (tmp_path / "run.toml").write_text(
        f"""
max_steps = 1
seq_len = 4096
output_dir = "{tmp_path / "outputs"}"
[run]
name = "r"
[model]
name = "{speaker}"
[orchestrator]
batch_size = 16
group_size = 8
[orchestrator.train.sampling]
max_completion_tokens = 16
[[orchestrator.train.source]]
[orchestrator.train.source.env]
format_penalty = 0.1
[orchestrator.train.source.env.taskset]
id = "air"
tasks = ["{task}"]
examples_per_task = 2
[orchestrator.train.source.env.agent]
max_turns = 3
[orchestrator.train.source.env.agent.harness]
id = "air"
"""
    )
    ran = command("rl", "@", tmp_path / "run.toml", cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    run = tmp_path / "outputs" / "r"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 1
    recorded = [load(path) for path in run.rglob("*.jsonl") if path.parent.name == "trajectories"]
    assert len(recorded) == 16
    assert {one.start.task for one in recorded if one.start} == {task}
    ends = [one.end for one in recorded if one.end and one.end.ok]
    assert len(ends) == len(recorded)
    assert sum(end.facts["num_actions"] for end in ends) > 0
    assert rows[0]["samples"] > 0
    assert rows[0]["optim/grad_norm"] > 0
