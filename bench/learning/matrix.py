"""Trains a small policy on several games and evaluates each trained policy on all of them: `make matrix`.

Builds a policy of about one million weights. It is first trained on demonstrations of scripted players in all
games of `configs/grl/matrix_small.toml`, in which half of the replies are one random move. Then the program
calls `air matrix`, and passes other flags to it. The same command continues an interrupted program.

    make matrix ARGS="--seeds 0 --evaluation.episodes 16"
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from air import paths
from air.cli.runs import sft
from air.errors import UsageError
from air.train.config import overrides
from air.train.config.matrix_config import MatrixConfig
from air.train.config.sft_config import SFTRunConfig
from air.train.model import policy as policies
from air.worlds.games import SOURCE
from bench.learning.worlds import GENTLY, GOOD, HIDDEN, ONE_THREAD, conversation

CONFIGS = paths.shipped("configs")
FILE = CONFIGS / "grl" / "matrix_small.toml"
MOST_TOKENS = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demos", type=int, default=1500, help="demonstrations of each game")
    parser.add_argument("--sft-steps", type=int, default=1200)
    parser.add_argument("--policy", type=Path, default=Path("outputs/matrix-policy"))
    args, rest = parser.parse_known_args()
    try:
        config = overrides.build(MatrixConfig, overrides.parse([f"@{FILE}", *rest], MatrixConfig))
        games = [column.removeprefix("game:") for column in config.columns]
        prepare(args.policy, games, demos=args.demos, steps=args.sft_steps)
    except UsageError as error:
        parser.error(str(error))
    air = str(Path(sys.executable).with_name("air"))
    model = ["--settings.model.name", str(args.policy / "warm")]
    os.execv(air, [air, "matrix", "@", str(FILE), *model, *rest])


def prepare(folder: Path, games: Sequence[str], *, demos: int, steps: int) -> None:
    """Makes the policy in `folder/warm`, unless it is there already. Raises UsageError if that one was made
    with other settings."""
    settings = made_with(games, demos=demos, steps=steps)
    stamp = folder / "settings.json"
    if (folder / "warm" / "config.json").is_file():  # it is written last
        if not stamp.is_file() or stamp.read_text() != settings:
            raise UsageError(
                "the policy was made with other settings",
                where=str(folder),
                remedy="name another --policy, or remove the folder",
            )
        return
    for part in ("base", "warm"):
        shutil.rmtree(folder / part, ignore_errors=True)  # of an interrupted warm start
    folder.mkdir(parents=True, exist_ok=True)
    stamp.write_text(settings)
    warm_start(folder, games, demos=demos, steps=steps)


def made_with(games: Sequence[str], *, demos: int, steps: int) -> str:
    """The settings of a policy, as its folder records them."""
    return json.dumps([list(games), demos, steps, GOOD, HIDDEN, MOST_TOKENS, GENTLY])


def warm_start(folder: Path, games: Sequence[str], *, demos: int, steps: int) -> None:
    """Builds a policy, trains it on `demos` demonstrations of the games for `steps` steps, and writes it to
    `folder/warm`."""
    # The games take turns: the last ones of the file are held out.
    talks = [
        asyncio.run(conversation(game, number, 0)) for number in range(demos) for game in games
    ]
    data = folder / "demos.jsonl"
    data.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    # The boards' symbols stay single tokens: the tokenizer learns from the rules and a few replies.
    texts = [SOURCE.load(game).instructions for game in games] * 8
    texts += [m["content"] for talk in talks[: 8 * len(games)] for m in talk if m["role"] != "user"]
    policies.build(
        folder / "base",
        texts,
        seed=0,
        max_length=MOST_TOKENS,
        hidden=HIDDEN,
        initializer_range=HIDDEN**-0.5,
    )
    flags = [f"@{CONFIGS / 'sft' / 'warmstart.toml'}", "--model.name", str(folder / "base")]
    flags += ["--data.name", str(data), "--data.seq-len", str(MOST_TOKENS)]
    flags += ["--data.batch-size", "8", "--max-steps", str(steps)]
    flags += ["--scheduler.decay-steps", str(max(1, steps - 20))]
    flags += ["--output-dir", str(folder), "--run.name", "warm", *GENTLY, *ONE_THREAD]
    sft.train(overrides.build(SFTRunConfig, overrides.parse(flags, SFTRunConfig)))


if __name__ == "__main__":
    main()
