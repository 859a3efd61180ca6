"""200 episodes at once on a connection that drops, delays and errs: no wrong reward, failures counted."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from air.actions.base import Action
from air.errors import InfrastructureError
from air.worlds import sources
from tests.episodes_server import serving
from tests.faulty_proxy import KINDS, between

TASK = "question:gsm8k5"
ANSWERS = ("7", "no number", "12", "no", "3")
EPISODES = 200


async def played(task: sources.WorldTask, seed: int) -> list[tuple[float, bool]]:
    """The rewards of one episode, and after which one it was over."""
    world = task.make()
    steps: list[tuple[float, bool]] = []
    try:
        await world.reset(seed)
        for answer in ANSWERS:
            step = await world.step(Action(answer=answer))
            steps.append((step.reward, step.done))
            if step.done:
                break
    finally:
        await world.close()
    return steps


async def test_no_wrong_reward_and_every_failure_counted() -> None:
    right = {seed: await played(sources.load(TASK), seed) for seed in range(EPISODES)}
    results: Counter[str] = Counter()

    async def one(task: sources.WorldTask, seed: int) -> None:
        try:
            steps = await played(task, seed)
        except InfrastructureError:
            results["failed"] += 1
        else:
            assert steps == right[seed]
            results["whole"] += 1

    async with (
        serving(TASK, max_sessions=48) as served,
        between(served.url, share=0.2, seed=5) as (address, proxy),
    ):
        task = sources.load(f"openenv:{address}#field=message&tools=false")
        await asyncio.gather(*(one(task, seed) for seed in range(EPISODES)))
    harmful = sum(proxy.faults.values()) - proxy.faults[""] - proxy.faults["late"]
    assert results["failed"] == harmful
    assert results["whole"] == EPISODES - harmful
    assert results["whole"] > 0
    assert set(proxy.faults) == {"", *KINDS}
    assert served.server.places.taken == 0


@pytest.mark.parametrize("kind", [*(kind for kind in KINDS if kind != "late"), "no answer"])
async def test_a_lost_connection_is_never_replaced(kind: str) -> None:
    async with serving(TASK) as served, between(served.url, share=0.0, seed=0) as (address, proxy):
        patience = 0.2 if kind == "no answer" else 600
        task = sources.load(f"openenv:{address}#field=message&tools=false&timeout={patience}")
        world = task.make()
        await world.reset(1)
        proxy.share, proxy.kinds = 1.0, [kind]
        failures = []
        for _ in range(3):
            with pytest.raises(InfrastructureError) as caught:
                await world.step(Action(answer="no"))
            failures.append(str(caught.value))
            proxy.share = 0.0
        assert len(set(failures)) == 1  # the first failure, again and again
        await world.close()
        await world.close()
    assert sum(proxy.faults.values()) == 2  # nothing was sent after the fault
