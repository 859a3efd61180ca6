"""Implements the command `sft @ FILE …`: trains a model on demonstrations (supervised fine-tuning), with the
settings of a run file (TOML).

The command writes the trained model as an ordinary Hugging Face folder, with its settings in `sft.json`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from air.cli.heavy_imports import collector_paused

if TYPE_CHECKING:
    from air.train.config.sft_config import SFTRunConfig

HELP = "train on demonstrations by a run file: sft @ configs/sft/warmstart.toml"
EXAMPLES = (
    "air sft @ configs/sft/warmstart.toml --model.name MODEL --data.name demos/demos.jsonl",
    "air sft @ outputs/sft/sft.json --resume",
)
TAKES_REST = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "sft @ FILE [@ FILE …] [--dotted.key VALUE …] [--dry-run]"
    parser.add_argument(
        "--dry-run", action="store_true", help="check and print the settings, then stop"
    )


def run(args: argparse.Namespace) -> int:
    from air.train.config import overrides

    with collector_paused():
        from air.train.config.sft_config import SFTRunConfig

    config = overrides.build(SFTRunConfig, overrides.parse(args.rest, SFTRunConfig))
    if args.dry_run:
        print(overrides.dump(config))
        return 0
    train(config)
    return 0


def train(config: SFTRunConfig) -> Path:
    """Trains a model on demonstrations (supervised fine-tuning). Returns the folder of the trained model.

    Raises UsageError if the model, the demonstrations or the output folder cannot be used.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    with collector_paused():
        from air.train.loop import sft_run

    console = Console()
    columns = (
        TextColumn("warm start"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    began, loss = time.monotonic(), 0.0

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    with Progress(*columns, console=console) as bars:
        bar = bars.add_task("sft", total=config.max_steps, note="")

        def on_row(row: dict[str, Any]) -> None:
            nonlocal loss
            loss = row.get("loss/mean", loss)
            bars.update(bar, completed=row["step"], note=f"loss {loss:.3f}")

        try:
            facts = sft_run.run(config, on_row, say)
        except KeyboardInterrupt:
            if command := sft_run.how_to_resume(config):
                say(f"stopped; resume with: {command}")
            raise
    say(
        f"{int(facts['demonstrations'])} demonstrations, {config.max_steps} steps, loss {loss:.3f} "
        f"in {time.monotonic() - began:.0f} s: {config.folder}"
    )
    return config.folder
