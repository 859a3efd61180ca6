"""Measures how many steps per second the games make on one core, without a model: `make bench-worlds`.

A step is one move and the text of the board after it. A random player plays the episodes. Each has a new
seed, so that the time for making the game's instance counts. The columns: `game` is the game itself; `world,
1` and `world, 5` are the world around it, which parses answers with one and with five moves; `gymnasium` is
the gymnasium environment, if that package is installed. Each number is the median of `--rounds` rounds.

    python bench/worlds.py --games sokoban6 tetris2 --seconds 2
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.table import Table

from air.actions.base import Action
from air.worlds.games import SOURCE, GameWorld, game_kind
from air.worlds.games.world import SEPARATOR

AIM = 20_000
"""The number of steps per second that every game must reach."""
Player = Callable[[str, Iterator[int]], Awaitable[int]]
"""The type of functions that play one episode of a game, whose name they get, and return the number of its
moves. They take the episode's seed from the iterator."""


async def of_game(name: str, seeds: Iterator[int]) -> int:
    """Plays an episode of the game alone, without the world that parses answers; returns the number of
    moves."""
    kind = game_kind(name)
    game, seed = kind.make(), next(seeds)
    rng = random.Random(seed)
    game.reset(seed)
    played = 0
    while not game.over and played < kind.limits.total:
        game.step(rng.choice(game.moves))
        game.text()
        played += 1
    return played


async def of_world(name: str, seeds: Iterator[int], per_turn: int) -> int:
    """Plays an episode of the world around the game, with `per_turn` moves in each answer; returns the number
    of moves."""
    world = SOURCE.load(name).world()
    assert isinstance(world, GameWorld)
    seed = next(seeds)
    rng, moves = random.Random(seed), world.game.moves
    await world.reset(seed)
    done = False
    while not done:
        answer = f" {SEPARATOR} ".join(rng.choices(moves, k=per_turn))
        done = (await world.step(Action(answer=answer))).done
    return int((await world.close())["num_actions"])


async def of_gymnasium(name: str, seeds: Iterator[int]) -> int:
    """Plays an episode of the game's environment for the package gymnasium; returns the number of moves."""
    from air.worlds.games.gym import GameEnv

    env, seed = GameEnv(name, render_mode="ansi"), next(seeds)
    rng, count = random.Random(seed), len(env.game.moves)
    env.reset(seed=seed)
    for played in itertools.count(1):
        _, _, over, truncated, _ = env.step(rng.randrange(count))
        env.render()
        if over or truncated:
            return played
    raise AssertionError


def players() -> dict[str, Player]:
    """Returns the functions to time, by the column of the table."""
    found: dict[str, Player] = {
        "game": of_game,
        "world, 1": lambda name, seeds: of_world(name, seeds, 1),
        "world, 5": lambda name, seeds: of_world(name, seeds, 5),
    }
    if find_spec("gymnasium"):
        import air.worlds.games.gym  # noqa: F401 - so that no round times the import

        found["gymnasium"] = of_gymnasium
    return found


async def rate(player: Player, name: str, seconds: float, seeds: Iterator[int]) -> float:
    """Plays episodes until they have used `seconds` of CPU time; returns the steps per second."""
    steps, began = 0, time.process_time()
    while (used := time.process_time() - began) < seconds:
        steps += await player(name, seeds)
    return steps / used


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", nargs="+", default=SOURCE.names(), help="names without game:")
    parser.add_argument("--seconds", type=float, default=1.0, help="CPU time of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a file for the numbers, as JSON")
    args = parser.parse_args()
    table = Table(title="steps a second on one core, without a model", title_justify="left")
    for column in ("game", *players()):
        table.add_column(column, justify="right")
    results: dict[str, dict[str, float]] = {}
    seeds = (
        itertools.count()
    )  # no seed twice: a group of episodes shares its instance, which is kept
    for name in args.games:
        results[name] = {
            column: statistics.median(
                asyncio.run(rate(player, name, args.seconds, seeds)) for _ in range(args.rounds)
            )
            for column, player in players().items()
        }
        table.add_row(name, *(f"{number:,.0f}" for number in results[name].values()))
    Console().print(table)
    if args.out:
        args.out.write_text(json.dumps(results, indent=1))
    slow = [name for name, numbers in results.items() if numbers["game"] < AIM]
    print(f"below {AIM:,}: {', '.join(slow)}" if slow else f"every game reaches {AIM:,}")
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
