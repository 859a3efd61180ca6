"""Measures how many steps per second the worlds make, without a model: `make bench-worlds`.

A step is one move and the text of the board after it. A random player plays the episodes. Each has a new
seed, so that the time for making the game's instance counts. The columns: `game` is the game itself; `world,
1` and `world, 5` are the world around it, which parses answers with one and with five moves; `gymnasium` is
the gymnasium environment, if that package is installed. Each number is the median of `--rounds` rounds.

The second table has the questions, the shop, and small files of rows and of posed questions, played by
scripted players that need little time, and remote worlds (`remote.py`), whose servers run on this
machine. A step is one turn. Episodes follow one another, or `--at-once` of them are played at a time. Queries
and servers run in other processes, so elapsed time counts, not CPU time. Only games must reach `AIM`, alone
and as a world with one move in each answer.

    python -m bench.worlds --games sokoban6 tetris2 --seconds 2
    python -m bench.worlds --games --worlds question:shop --remote openenv
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.table import Table

from air.actions.base import Action
from air.worlds import sources
from air.worlds.games import SOURCE, GameWorld, game_kind
from air.worlds.games.world import SEPARATOR
from air.worlds.questions.arithmetic import players as arithmetic
from air.worlds.questions.shop import players as shop
from air.worlds.questions.sql import players as sql
from air.worlds.sources import WorldTask
from bench.worlds import remote

AIM = 20_000
"""The number of steps per second that every game must reach, in each of the columns `AIMED`."""
AIMED = ("game", "world, 1")
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
    """Plays episodes for `seconds` of CPU time; returns the steps per second."""
    steps, began = 0, time.process_time()
    while (used := time.process_time() - began) < seconds:
        steps += await player(name, seeds)
    return steps / used


async def rate_at_once(
    player: Player, name: str, seconds: float, seeds: Iterator[int], at_once: int
) -> float:
    """Plays `at_once` episodes at a time, and begins no further ones after `seconds`. Returns the steps per
    second of elapsed time, until the last episode has ended."""
    began = time.perf_counter()

    async def play() -> int:
        steps = await player(name, seeds)
        while time.perf_counter() - began < seconds:
            steps += await player(name, seeds)
        return steps

    steps = sum(await asyncio.gather(*(play() for _ in range(at_once))))
    return steps / (time.perf_counter() - began)


Reply = Callable[[str], Action]
"""The type of functions that return the next action of an episode. They get the observation."""


def replies(task_id: str, seed: int) -> Reply:
    """Returns a player of guesses, which needs little time itself, for the episode of a seed."""
    if task_id.startswith(("rows:", "posed:")):
        return lambda _: Action(answer=f"\\boxed{{{seed}}}")
    kind = task_id.removeprefix("question:").partition("-")[0]
    if kind in ("gsm8k", "gsm8k5"):
        answer = arithmetic.guessing(seed, 1000)
    elif kind == "shop":
        answer = shop.random_clicks(seed)
    else:
        return lambda _: Action(answer=sql.block("SELECT 1"))
    return lambda observation: Action(answer=answer(observation))


@functools.cache
def task_of(task_id: str) -> WorldTask:
    """Returns a task, which is loaded once, as in a run."""
    return sources.load(task_id)


async def of_task(task_id: str, seeds: Iterator[int]) -> int:
    """Plays an episode of a task that is no game; returns the number of turns."""
    world, seed = task_of(task_id).world(), next(seeds)
    observation, reply = await world.reset(seed), replies(task_id, seed)
    for played in itertools.count(1):
        step = await world.step(reply(observation.text))
        if step.done:
            await world.close()
            return played
        observation = step.observation
    raise AssertionError


Rates = dict[str, dict[str, float]]
"""The steps per second by the row and the column of a table."""


def time_worlds(
    players: Mapping[str, tuple[Player, str]], seconds: float, rounds: int, at_once: int
) -> Rates:
    """Prints the table of the worlds that are no games; returns its numbers. `players` has the function that
    plays each world and the id of its task, by the world's name in the table."""
    columns = {"1 at once": 1, f"{at_once} at once": at_once}
    table = Table(title="steps a second, of elapsed time", title_justify="left")
    table.add_column("world")
    for column in columns:
        table.add_column(column, justify="right")
    results: Rates = {}
    for name, (player, task_id) in players.items():
        seeds = itertools.count()
        asyncio.run(player(task_id, seeds))  # not timed: catalogues and processes start here
        results[name] = {
            column: statistics.median(
                asyncio.run(rate_at_once(player, task_id, seconds, seeds, number))
                for _ in range(rounds)
            )
            for column, number in columns.items()
        }
        table.add_row(name, *(f"{number:,.0f}" for number in results[name].values()))
    Console().print(table)
    return results


def files_of_rows(folder: Path) -> dict[str, str]:
    """Writes a small file of questions with answers into `folder`; returns the ids of the tasks that ask
    them, by the task's name in the table."""
    rows = folder / "sums.jsonl"
    lines = (
        json.dumps({"question": f"What is {n} + {n}?", "answer": str(2 * n)}) for n in range(64)
    )
    rows.write_text("\n".join(lines))
    return {"rows": f"rows:{rows}#checker=math_string_equal", "posed": f"posed:{rows}"}


WORLDS = [f"question:{kind}" for kind in ("gsm8k", "gsm8k5", "sql", "sql5", "shop")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", nargs="*", default=SOURCE.names(), help="names without game:")
    parser.add_argument("--worlds", nargs="*", default=WORLDS, help="ids of question tasks")
    parser.add_argument("--rows", nargs="*", default=["rows", "posed"], help="worlds of rows")
    parser.add_argument("--remote", nargs="*", default=remote.KINDS, help="kinds of servers")
    parser.add_argument("--at-once", type=int, default=16, help="episodes at a time; not of games")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a round: CPU time for games")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a file for the numbers, as JSON")
    args = parser.parse_args()
    results, slow = time_games(args.games, args.seconds, args.rounds)
    with (
        tempfile.TemporaryDirectory() as folder,
        remote.serving(args.remote, args.at_once) as ids,
    ):
        players = {name: (of_task, name) for name in args.worlds}
        rows = files_of_rows(Path(folder))
        players |= {name: (of_task, rows[name]) for name in args.rows}
        players |= {remote.TITLES[kind]: (remote.play, ids[kind]) for kind in ids}
        worlds = time_worlds(players, args.seconds, args.rounds, args.at_once)
    if args.out:
        args.out.write_text(json.dumps({**results, **worlds}, indent=1))
    print(f"below {AIM:,}: {', '.join(slow)}" if slow else f"every game reaches {AIM:,}")
    return 1 if slow else 0


def time_games(
    names: list[str], seconds: float, rounds: int
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Prints the table of games; returns the steps per second by name and column, and the texts of
    `too_slow`."""
    table = Table(title="steps a second on one core, without a model", title_justify="left")
    for column in ("game", *players()):
        table.add_column(column, justify="right")
    results: dict[str, dict[str, float]] = {}
    seeds = (
        itertools.count()
    )  # no seed twice: a group of episodes shares its instance, which is kept
    for name in names:
        results[name] = {
            column: statistics.median(
                asyncio.run(rate(player, name, seconds, seeds)) for _ in range(rounds)
            )
            for column, player in players().items()
        }
        table.add_row(name, *(f"{number:,.0f}" for number in results[name].values()))
    if names:
        Console().print(table)
    return results, too_slow(results)


def too_slow(results: Rates) -> list[str]:
    """Returns, for each game and column in `results` that must reach `AIM` and does not, the game's name, the
    column and the number."""
    return [
        f"{name} ({column}: {numbers[column]:,.0f})"
        for name, numbers in results.items()
        for column in AIMED
        if numbers[column] < AIM
    ]


if __name__ == "__main__":
    raise SystemExit(main())
