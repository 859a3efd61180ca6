"""Scripted players of AgentGym's environments, which read only what an agent is shown."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Protocol

from tests.agentgym import servers


class Player(Protocol):
    """Plays one episode: gets an observation, and returns the next action."""

    def __call__(self, observation: str) -> str: ...


class Crafter:
    """Solves textcraft: makes what a recipe asks for, by the listed recipes, and fetches the rest."""

    def __init__(self) -> None:
        self._plan: Iterator[str] = iter(())

    def __call__(self, observation: str) -> str:
        if "Goal: craft " in observation:
            self._plan = iter(self.plan(observation))
        return next(self._plan, "inventory")

    def plan(self, first: str) -> list[str]:
        """Returns the actions that craft the goal."""
        recipes: dict[str, tuple[int, list[tuple[int, str]], str]] = {}
        for line in re.findall(r"^craft .*$", first, re.MULTILINE):
            made, needs = line.removeprefix("craft ").split(" using ")
            count, item = made.split(" ", 1)
            parts = [part.split(" ", 1) for part in needs.split(", ")]
            recipes.setdefault(item, (int(count), [(int(n), name) for n, name in parts], line))
        goal = re.search(r"Goal: craft (.*)\.", first)
        assert goal is not None
        actions: list[str] = []
        self._make(goal[1], 1, recipes, actions, ())
        return actions

    def _make(
        self,
        item: str,
        amount: int,
        recipes: dict[str, tuple[int, list[tuple[int, str]], str]],
        actions: list[str],
        above: tuple[str, ...],
    ) -> None:
        if item not in recipes or item in above:
            actions.append(f"get {amount} {item}")
            return
        count, needs, line = recipes[item]
        for _ in range(-(-amount // count)):
            for number, need in needs:
                self._make(need, number, recipes, actions, (*above, item))
            actions.append(line)


class Walker:
    """Solves babyai's levels whose goal is to go to an object: goes there, or looks for it."""

    def __init__(self) -> None:
        self._goal = ""
        self._turns = 0

    def __call__(self, observation: str) -> str:
        if match := re.match(r"Your goal: go to (?:the|a) (.*)", observation):
            self._goal = match[1]
        possible = re.findall(r'"([^"]+)"', observation.partition("Available actions:")[2])
        for action in possible:
            if re.match(rf"go to {re.escape(self._goal)} \d+$", action):
                return action
        self._turns += 1
        if self._turns % 5 == 0 and "move forward" in possible:
            return "move forward"
        return "turn right"


def gold(data: list[tuple[str, int]]) -> list[list[str]]:
    """Returns sciworld's own solutions of tasks, given by their names and variations."""
    script = (
        "import json, sys\n"
        "from scienceworld import ScienceWorldEnv\n"
        "env = ScienceWorldEnv()\n"
        "paths = []\n"
        "for name, variation in json.load(sys.stdin):\n"
        "    env.load(name, variation, generateGoldPath=True)\n"
        "    paths.append(env.get_gold_action_sequence())\n"
        "print(json.dumps(paths))\n"
    )
    ran = subprocess.run(
        [servers.python("sciworld"), "-c", script],
        input=json.dumps(data),
        capture_output=True,
        text=True,
        check=True,
    )
    paths: list[list[str]] = json.loads(ran.stdout.splitlines()[-1])
    return paths
