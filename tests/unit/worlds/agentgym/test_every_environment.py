"""Every adapter keeps the rules of worlds, and pays what random play of its environment is worth."""

from __future__ import annotations

import itertools
from statistics import fmean

import pytest

from air.actions.base import Action
from air.worlds import conformance, sources
from air.worlds.agentgym.environments import ENVIRONMENTS
from air.worlds.agentgym.sessions import sessions_of
from air.worlds.agentgym.world import AgentGymWorld
from tests.environment_server import LENGTH
from tests.unit.worlds.agentgym.corridors import LIMIT, Corridors, written

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ENVIRONMENTS)
async def test_it_conforms(name: str) -> None:
    async with Corridors(name).running() as server:
        task = sources.load(f"agentgym:{name}@{server.url}")
        forward = [Action(answer=written(name, "forward"))] * LENGTH
        assert await conformance.check(task, forward) == {}
        if ENVIRONMENTS[name].closes:
            assert not server.sessions
        assert not sessions_of(f"{name}@{server.url}", 1).holders
        await server.idle()


MOVES = {"forward": 1, "back": -1, "stay": 0}
LONG = ("babyai", "sciworld", "maze")
"""The environments that are played for a turn more than the way is long. The score of the first two depends
on the number of turns or on each step. The others pay for the end of the way alone, as the third does."""


def turns(name: str) -> int:
    return LENGTH + 1 if name in LONG else LENGTH


def value(name: str) -> float:
    """The expected score of uniformly drawn moves: the distribution over places and best places so far, move
    by move."""
    chances = {(0, 0): 1.0}
    expected = 0.0
    for turn in range(1, turns(name) + 1):
        after: dict[tuple[int, int], float] = {}
        for (place, best), chance in chances.items():
            for step in MOVES.values():
                to, part = place + step, chance / len(MOVES)
                if name == "sciworld":  # each step of the way has points, in whole per cent
                    gain = round(100 * max(best, to) / LENGTH) - round(100 * best / LENGTH)
                    expected += part * gain / 100
                elif to == LENGTH:
                    expected += part * (1 - 0.9 * turn / LIMIT if name == "babyai" else 1)
                if to < LENGTH:
                    state = to, max(best, to)
                    after[state] = after.get(state, 0.0) + part
        chances = after
    return expected


@pytest.mark.parametrize("name", ENVIRONMENTS)
async def test_random_play_earns_what_it_is_worth(name: str) -> None:
    """All sequences of moves are played, so the mean is the expected score itself."""
    server = Corridors(name)
    async with server.running():
        earned = [
            await play(server, moves) for moves in itertools.product(MOVES, repeat=turns(name))
        ]
    assert fmean(earned) == pytest.approx(value(name))


async def play(server: Corridors, moves: tuple[str, ...]) -> float:
    """Plays one episode, and returns the sum of its rewards, which is the world's best score."""
    world = AgentGymWorld(ENVIRONMENTS[server.name], server.url)
    try:
        await world.reset(0)
        total = 0.0
        for move in moves:
            step = await world.step(Action(answer=written(server.name, move)))
            total += step.reward
            if step.done:
                break
        assert total == pytest.approx(world.facts()["best_score"])
        return total
    finally:
        await world.close()
