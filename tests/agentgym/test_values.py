"""What random players earn on AgentGym's real servers, against values that are worked out apart from them:
`make test-agentgym`. All seeds are fixed."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import subprocess
from dataclasses import dataclass
from statistics import fmean

import pytest

from air.worlds import sources
from tests.agentgym import servers
from tests.agentgym.solvers import gold
from tests.agentgym.test_real_servers import (
    babyai,
    following,
    play,
    sciworld,
    start_of,
    textcraft,
)

__all__ = ["babyai", "sciworld", "textcraft"]
pytestmark = pytest.mark.agentgym


def directly(name: str, script: str, given: object) -> list[float]:
    """Runs a script on the package of an environment, without AgentGym's server. Returns what it prints."""
    ran = subprocess.run(
        [servers.python(name), "-c", script],
        input=json.dumps(given),
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    values: list[float] = json.loads(ran.stdout.splitlines()[-1])
    return values


@dataclass
class Goal:
    """A task of textcraft whose goal has one recipe, of items that no listed recipe makes."""

    task: int
    needs: list[str]
    """The ingredients, each with its amount."""
    craft: str

    @property
    def moves(self) -> list[str]:
        return [*(f"get {need}" for need in self.needs), self.craft]

    def value(self, turns: int) -> float:
        """The expected score of uniformly drawn moves: the chance that `craft` comes after every `get`."""
        chances = {frozenset[str](): 1.0}
        solved = 0.0
        for _ in range(turns):
            after: dict[frozenset[str], float] = {}
            for got, chance in chances.items():
                for move in self.moves:
                    part = chance / len(self.moves)
                    if move == self.craft and len(got) == len(self.needs):
                        solved += part
                        continue
                    to = got if move == self.craft else got | {move}
                    after[to] = after.get(to, 0.0) + part
            chances = after
        return solved


async def goal_of(url: str, task: int) -> Goal | None:
    """Reads a task's recipes; returns None if the goal needs a further recipe."""
    world = sources.load(f"agentgym:textcraft:{task}@{url}").world()
    shown = (await world.reset(0)).text
    await world.close()
    wanted = re.search(r"Goal: craft (.*)\.", shown)
    assert wanted is not None
    recipes = [line.split(" using ") for line in re.findall(r"^craft .*$", shown, re.MULTILINE)]
    made = [output.split(" ", 2)[2] for output, _ in recipes]
    mine = [recipe for item, recipe in zip(made, recipes, strict=True) if item == wanted[1]]
    needs = mine[0][1].split(", ")
    items = [need.split(" ", 1)[1] for need in needs]
    # An item such as `planks` stands for each kind, such as `oak planks`, and cannot be fetched.
    if len(mine) > 1 or any(each.endswith(item) for each in made for item in items):
        return None
    return Goal(task, needs, " using ".join(mine[0]))


async def test_random_play_of_textcraft(textcraft: str) -> None:
    """All sequences of moves are played, so the mean is the expected score itself."""
    found = await asyncio.gather(*(goal_of(textcraft, task) for task in range(120)))
    goals = [
        [goal for goal in found if goal is not None and len(goal.needs) == number][:4]
        for number in (1, 2)
    ]
    assert all(goals)
    turns = 4
    for goal in itertools.chain(*goals):
        task = f"agentgym:textcraft:{goal.task}@{textcraft}"
        players = map(following, itertools.product(goal.moves, repeat=turns))
        played = await asyncio.gather(*(play(task, 0, player, turns) for player in players))
        assert fmean(one["reward"] for one in played) == pytest.approx(goal.value(turns)), goal


WALKS = """
import json, sys
import gymnasium, minigrid
values = []
for seed, moves in json.load(sys.stdin):
    env = gymnasium.make("BabyAI-GoToRedBallGrey-v0").unwrapped
    env.reset(seed=seed)
    earned = 0
    for move in moves:
        ahead = env.grid.get(*env.front_pos)
        # The server refuses a step into a wall or a box, and takes no time for it.
        if move == "move forward" and ahead is not None and ahead.type in ("wall", "box"):
            continue
        earned = env.step(["turn left", "turn right", "move forward"].index(move))[1]
        if earned:
            break
    values.append(earned)
print(json.dumps(values))
"""


async def test_random_play_of_babyai(babyai: str) -> None:
    """The same walks in minigrid itself earn the same, episode by episode."""
    chance = random.Random(0)
    moves = ("turn left", "turn right", "move forward")
    walks = [(seed, chance.choices(moves, (1, 1, 2), k=50)) for seed in range(24)]
    expected = await asyncio.to_thread(directly, "babyai", WALKS, walks)
    played = [
        (await play(f"agentgym:babyai:{40 * seed}@{babyai}", 0, following(walk), 50))["reward"]
        for seed, walk in walks
    ]
    assert played == pytest.approx(expected)
    assert sum(value > 0 for value in expected) >= 3


EXPERIMENTS = """
import json, sys
from scienceworld import ScienceWorldEnv
env = ScienceWorldEnv()
values = []
for name, variation, actions in json.load(sys.stdin):
    env.load(name, variation)
    env.step("look around")  # as the server does
    scores = [0]
    for action in actions:
        _, _, done, info = env.step(action)
        scores.append(info["score"])
        if done or scores[-1] < 0:
            break
    values.append(0 if scores[-1] < 0 else max(scores) / 100)
print(json.dumps(values))
"""


async def test_faulty_solutions_of_sciworld(sciworld: str) -> None:
    """A player that leaves out a fifth of the solution, by chance, earns what it earns in ScienceWorld."""
    chance = random.Random(0)
    ids = [1500]
    starts = [await start_of(sciworld, data) for data in ids]
    paths = await asyncio.to_thread(gold, starts)
    played, experiments = [], []
    for data, start, path in zip(ids, starts, paths, strict=True):
        for _ in range(4):
            actions = [action if chance.random() > 0.2 else "look around" for action in path]
            experiments.append((*start, actions))
            task = f"agentgym:sciworld:{data}@{sciworld}"
            played.append((await play(task, 0, following(actions), len(actions)))["reward"])
    expected = await asyncio.to_thread(directly, "sciworld", EXPERIMENTS, experiments)
    assert played == pytest.approx(expected)
    assert len(set(expected)) > 2
