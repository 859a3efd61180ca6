"""Tests whether a policy of about one million weights learns the games of `air.worlds.games`: `make learning
ARGS=--worlds`.

For each game and seed, scripted players play demonstrations, in which half of the replies are a single random
move. Then `sft` trains a new policy on the demonstrations (the warm start). GRPO trains it further
(`configs/grl/small.toml` with `configs/embedded/small_policy.toml`), and separately a control whose rewards
are shuffled within each group. Before and after, the policy plays instances of the game with seeds for
evaluation. Their rewards are the game's own, without the run file's penalty for malformed replies. In Sokoban
and Blocksworld no such instance occurs in training. The few starts of Tetris occur in both: the last lines of
the output count the starts.

Results are written after each training. The same command continues an interrupted program; other games and
seeds may be added, and with `--only-real` the controls may be left for later.

The exit code is 0 if in every game the mean gain of the reward exceeds two standard errors over the seeds,
and so does its difference to the control's gain.

    make learning ARGS="--worlds --games sokoban4x5-level1-turns2 --seeds 2"
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from air import paths
from air.actions import ThinkAnswer
from air.actions.base import Action, Standing
from air.cli.runs import sft
from air.errors import UsageError
from air.train.config import overrides
from air.train.config.run_config import RunConfig
from air.train.config.sft_config import SFTRunConfig
from air.train.evaluation.play import evaluate, served
from air.train.loop import metrics
from air.train.loop.progress import Progress
from air.train.loop.rollout import Rollout, with_defaults
from air.train.loop.run import EmbeddedRun
from air.train.model import policy as policies
from air.worlds.games import SOURCE, GameWorld
from air.worlds.games.players import RandomPlayer, SolverPlayer, reply
from air.worlds.sources import VALIDATION_SEED
from bench.learning.seeds import mean_and_error

CONFIGS = paths.shipped("configs")
GAMES = (
    "sokoban4x6-level1-turns4-moves1",
    "tetris2-size3-level1-turns4",
    "sokoban4x5-level1-turns2",
    "tetris1-level1-turns4",
    "blocksworld-1d-blocks4-level1-turns2",
)
"""The games that are trained by default. With `moves1`, each reply is one move, so most rooms need several
turns. With few turns, a malformed reply costs moves. With three blocks in place of four, Blocksworld has only
21 starts for training: a policy learns them by heart, and plays the held-out ones worse than before."""
MEASURES = ("reward", "success", "action_is_valid", "num_actions", "well_formed")
GOOD = 0.5
"""The share of replies in the demonstrations that come from a scripted player that plays well. The others are
one random move each: replies of several random moves hide from a small policy what depends on the board."""
FORMAT = ThinkAnswer()
HIDDEN = 128
"""The hidden size of the policy. Its weights start with the standard deviation 1/√128 = 0.088: with 0.02,
some warm starts do not learn to read a board even in 1,600 steps."""
GENTLY = ("--optim.lr", "1.5e-3", "--scheduler.min-lr", "1e-4")
"""Flags for the learning rate of the warm start (training on demonstrations). At the quickstart's rate, which
is three times higher, a small policy does not learn to read a board: its moves ignore it."""
RUN_FILES = ("grl/small.toml", "embedded/small_policy.toml")
"""The run files of the training, in `configs/`."""
ONE_THREAD = ("--embedded.threads", "1")
"""Flags for a single thread. On a busy machine, several threads that wait for each other are many times
slower."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", action="store_true", help="this program, and not learning.py")
    parser.add_argument("--games", nargs="+", default=GAMES, help="names without game:")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first-seed", type=int, default=0, help="for seeds that nobody has seen")
    parser.add_argument("--episodes", type=int, default=512, help="held-out ones, before and after")
    parser.add_argument("--demos", type=int, default=4000)
    parser.add_argument("--sft-steps", type=int, default=500, help="of the warm start")
    parser.add_argument("--out", type=Path, default=Path("outputs/learning-worlds"))
    parser.add_argument("--only-real", action="store_true", help="leave the control out")
    args, rest = parser.parse_known_args()
    try:
        run_config(args, rest, args.games[0], 0, "trained", Path("unset"))  # reports wrong settings
        # One event loop for all: a lock of `renderers` belongs to the first loop in which one waits.
        return asyncio.run(all_seeds(args, rest))
    except UsageError as error:
        parser.error(str(error))


async def all_seeds(args: argparse.Namespace, rest: Sequence[str]) -> int:
    """Trains what `results.json` does not contain yet: all games with the first seed, then all with the next.
    Returns the exit code."""
    claim(args, rest)
    file = args.out / "results.json"
    results: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for game in args.games:
            mine = [one for one in results if (one["game"], one["seed"]) == (game, seed)]
            if not mine:
                mine = [await before_training(args, rest, game, seed)]
                results.append(mine[0])
            for arm in ["trained"] if args.only_real else ["trained", "control"]:
                if arm not in mine[0]:
                    mine[0][arm] = await after_training(args, rest, game, seed, arm)
                    file.write_text(json.dumps(results, indent=1))
                    report(results)
    for game in args.games:
        print(f"{game}: {await instances(game, args.episodes, args.demos)}")
    return verdict([result for result in results if result["game"] in args.games])


async def instances(game: str, episodes: int, trained: int) -> str:
    """Returns a sentence that says how many of the first `episodes` evaluated games look different at their
    start, how many of these also occur among the games of the first `trained` training seeds, and how many
    replies the scripted player needs."""
    task = SOURCE.load(game)

    async def first(seed: int) -> str:
        return (await task.world().reset(seed)).text

    async def replies(seed: int) -> int:
        world = task.world()
        assert isinstance(world, GameWorld)
        await world.reset(seed)
        count, done = 0, False
        while not done:
            count, done = count + 1, (await world.step(reply(world, SolverPlayer()))).done
        return count

    seeds = range(VALIDATION_SEED, VALIDATION_SEED + episodes)
    seen = {await first(seed) for seed in range(trained)}
    starts = {await first(seed) for seed in seeds}
    needed = [await replies(seed) for seed in seeds]
    return (
        f"{episodes} evaluated games have {len(starts)} different starts, of which {len(starts & seen)} "
        f"occur in training; the scripted player needs more than one reply in {sum(n > 1 for n in needed)}"
    )


def claim(args: argparse.Namespace, rest: Sequence[str]) -> None:
    """Writes the settings, except games and seeds, to the folder of results (`write_settings`)."""
    anywhere = argparse.Namespace(out=Path("unset"))
    config = run_config(anywhere, rest, "sokoban4x5", 0, "trained", Path("unset"))
    settings = {
        "training": json.loads(overrides.dump(config)),
        "warm start": [args.demos, args.sft_steps, GOOD, HIDDEN, *GENTLY],
        "episodes": args.episodes,
    }
    write_settings(args.out, settings)


def write_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Writes the settings to `settings.json` in the folder of results. Raises UsageError if the folder has
    results of other settings."""
    file = folder / "settings.json"
    if (folder / "results.json").exists() and (
        not file.exists() or json.loads(file.read_text()) != settings
    ):
        raise UsageError(
            "the folder has results of other settings",
            where=str(folder),
            remedy="name another --out, or remove the folder",
        )
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(settings, indent=1))


async def before_training(
    args: argparse.Namespace, rest: Sequence[str], game: str, seed: int
) -> dict[str, Any]:
    """Makes the warm start of one game and seed (training on demonstrations), unless it is there already.
    Returns a new result: the game, the seed, and the measures of the policy before the training."""
    folder, began = args.out / game / f"seed{seed}", time.monotonic()
    warm = folder / "warm"
    if not (warm / "config.json").exists():  # it is written last
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        await warm_start(folder, game, seed, demos=args.demos, steps=args.sft_steps)
    result = {"game": game, "seed": seed, "sft_seconds": time.monotonic() - began}
    config = run_config(args, rest, game, seed, "x", warm)
    return {**result, "before": await measure(args, config, warm)}


async def after_training(
    args: argparse.Namespace, rest: Sequence[str], game: str, seed: int, arm: str
) -> dict[str, Any]:
    """Trains the warm start of one game and seed further; the arm `control` with rewards that are shuffled.
    Returns the measures of the trained policy."""
    folder = args.out / game / f"seed{seed}"
    shutil.rmtree(folder / arm, ignore_errors=True)
    config = run_config(args, rest, game, seed, arm, folder / "warm")
    began = time.monotonic()
    with Progress(config.max_steps, title=f"{game} seed {seed} {arm}") as progress:
        outcome = await EmbeddedRun(config, progress).run()
    assert outcome.checkpoint is not None
    seconds = time.monotonic() - began
    return {**await measure(args, config, outcome.checkpoint), "train_seconds": seconds}


async def warm_start(folder: Path, game: str, seed: int, *, demos: int, steps: int) -> Path:
    """Builds a new policy with this seed, trains it on demonstrations that are written to `folder`, and
    returns the policy's folder."""
    talks = [await conversation(game, number, seed) for number in range(demos)]
    data = folder / "demos.jsonl"
    data.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    # The boards' symbols stay single tokens: the tokenizer learns from the rules and a few replies.
    texts = [m["content"] for talk in talks[:8] for m in talk if m["role"] != "user"]
    task = SOURCE.load(game)
    policies.build(
        folder / "base",
        [task.instructions] * 8 + texts,
        seed=seed,
        max_length=1024,
        initializer_range=HIDDEN**-0.5,
        hidden=HIDDEN,
    )
    flags = [f"@{CONFIGS / 'sft' / 'warmstart.toml'}", "--model.name", str(folder / "base")]
    flags += ["--data.name", str(data), "--data.seed", str(seed), "--data.seq-len", "1024"]
    flags += ["--data.batch-size", "8", "--max-steps", str(steps)]
    flags += ["--scheduler.decay-steps", str(steps - 20), *GENTLY]
    flags += ["--output-dir", str(folder), "--run.name", "warm", *ONE_THREAD]
    return sft.train(overrides.build(SFTRunConfig, overrides.parse(flags, SFTRunConfig)))


async def conversation(game: str, number: int, seed: int) -> list[dict[str, str]]:
    """Returns the conversation of one demonstration by the scripted players, as the harness would show it to
    a model."""
    task = SOURCE.load(game)
    world = task.world()
    assert isinstance(world, GameWorld)
    rng = random.Random(f"{seed} {number}")
    first = await world.reset(number)
    messages = [
        {"role": "system", "content": FORMAT.instructions},
        {"role": "user", "content": f"{task.instructions}\n\n{first.text}"},
    ]
    for left in reversed(range(task.max_turns)):
        if rng.random() < GOOD:
            action = reply(world, SolverPlayer())
        else:
            action = Action(answer=RandomPlayer(rng.getrandbits(32)).moves(world.game)[0])
        step = await world.step(action)
        # Spaces keep the small tokenizer from joining a tag with a move, which makes the format fragile.
        messages.append({"role": "assistant", "content": f"<answer> {action.answer} </answer>"})
        if step.done:
            break
        footer = FORMAT.footer(Standing(left=left))
        messages.append({"role": "user", "content": step.observation.text + footer})
    return messages if messages[-1]["role"] == "assistant" else messages[:-1]


def run_config(
    args: argparse.Namespace, rest: Sequence[str], game: str, seed: int, arm: str, model: Path
) -> RunConfig:
    """Returns the settings of the run file for small policies, with one game; for the arm `control`, the
    control run, with the overlay that shuffles rewards within each group."""
    files = [f"@{CONFIGS / name}" for name in RUN_FILES]
    if arm == "control":
        files.append(f"@{CONFIGS / 'embedded' / 'shuffled.toml'}")
    flags = ["--embedded.seed", str(seed), "--model.name", str(model)]
    flags += ["--output-dir", str(args.out), "--run.name", f"{game}/seed{seed}/{arm}"]
    flags += ONE_THREAD
    flags += ["--orchestrator.train.source.0.env.taskset.tasks", json.dumps([f"game:{game}"])]
    return overrides.build(RunConfig, overrides.parse([*files, *flags, *rest], RunConfig))


async def measure(args: argparse.Namespace, config: RunConfig, model: Path) -> dict[str, Any]:
    """Plays held-out episodes at the training temperature, the same episodes before and after training;
    returns their measures."""
    rollouts = await play(config, model, args.episodes)
    good = [rollout for rollout in rollouts if rollout.ok]
    found = metrics.of_rollouts(good)
    found |= {name: fmean(r.metric(name) or 0.0 for r in good) for name in MEASURES[1:4]}
    return {name: found[name] for name in MEASURES} | {"failed": len(rollouts) - len(good)}


async def play(
    config: RunConfig, model: Path, episodes: int, tasks: Sequence[str] | None = None
) -> list[Rollout]:
    """Plays held-out episodes of the given tasks, by default the tasks that the run file lists first, without
    the run file's penalty for malformed replies."""
    policy = policies.load(model)
    env = config.orchestrator.train.source[0].env
    taskset = env.taskset.model_copy(
        update={"purpose": "evaluation", "examples_per_task": episodes}
        | ({} if tasks is None else {"tasks": list(tasks)})
    )
    env = env.model_copy(update={"taskset": taskset, "format_penalty": 0.0})
    sampling = config.orchestrator.train.sampling
    async with served(
        policy,
        temperature=sampling.temperature,
        max_tokens=sampling.max_completion_tokens or 64,
        max_model_len=config.seq_len,
    ) as ctx:
        return await evaluate(
            with_defaults(env, policy, max_context_tokens=config.seq_len), ctx, 1, at_once=64
        )


def gains(results: Sequence[dict[str, Any]], game: str, arm: str, name: str) -> list[float]:
    """Returns the gain (after minus before) of the measure `name` in one game and arm, for each seed."""
    mine = [result for result in results if result["game"] == game and arm in result]
    return [result[arm][name] - result["before"][name] for result in mine]


def report(results: Sequence[dict[str, Any]], measures: Sequence[str] = MEASURES) -> None:
    """Prints a table of the results so far."""
    table = Table(title="gains ± standard error over seeds (each seed)", title_justify="left")
    for column in ("game", "measure", "before", "trained", "control"):
        table.add_column(column)
    for game in dict.fromkeys(result["game"] for result in results):
        for name in measures:
            before = fmean(r["before"][name] for r in results if r["game"] == game)
            cells = []
            for arm in ("trained", "control"):
                values = gains(results, game, arm, name)
                if values:
                    mean, error = mean_and_error(values)
                    seeds = ", ".join(f"{value:+.2f}" for value in values)
                    cells.append(f"{mean:+.3f} ± {error:.3f} ({seeds})")
            table.add_row(game, name, f"{before:.3f}", *cells)
    Console(width=140).print(table)


def verdict(results: Sequence[dict[str, Any]]) -> int:
    """Prints the conclusions and returns the exit code. It is 0 if every game's reward rises by more than two
    standard errors, and by so much more than its control's, seed by seed.

    The control's own gain is printed, but not judged: the standard error of three seeds may be tiny by
    chance, and then a gain that does not matter exceeds it.
    """
    right = True
    for game in dict.fromkeys(result["game"] for result in results):
        both = [one for one in results if one["game"] == game and "control" in one]
        compared = {
            "trained": gains(results, game, "trained", "reward"),
            "control": gains(results, game, "control", "reward"),
            "trained minus control": [
                one["trained"]["reward"] - one["control"]["reward"] for one in both
            ],
        }
        for name, values in compared.items():
            if not values:
                continue
            mean, error = mean_and_error(values)
            judged = (
                "" if name == "control" else f": {'shown' if mean > 2 * error else 'not shown'}"
            )
            right = right and judged != ": not shown"
            print(f"{game} {name}: {mean:+.3f} ± {error:.3f}{judged}")
    return 0 if right else 1
