"""The command `sft @ FILE …`: trains a model on demonstrations (supervised fine-tuning).

The command writes the trained model as an ordinary Hugging Face folder.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from air.train.config.sft_config import SFTRunConfig
    from air.train.model.policy import Policy

HELP = "train on demonstrations by a run file: sft @ configs/sft/warmstart.toml"
EXAMPLES = (
    "air sft @ configs/sft/warmstart.toml --model.name MODEL --data.name demos/demos.jsonl",
)
TAKES_REST = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "sft @ FILE [@ FILE …] [--dotted.key VALUE …] [--dry-run]"
    parser.add_argument(
        "--dry-run", action="store_true", help="check and print the settings, then stop"
    )


def run(args: argparse.Namespace) -> int:
    from air.train.config import overrides
    from air.train.config.sft_config import SFTRunConfig

    config = overrides.build(SFTRunConfig, overrides.parse(args.rest, SFTRunConfig))
    if args.dry_run:
        print(overrides.dump(config))
        return 0
    train(config)
    return 0


def train(config: SFTRunConfig) -> Path:
    """Trains a model on demonstrations and returns its folder.

    Raises UsageError if the model, the demonstrations or the output folder cannot be used.
    """
    from air.errors import UsageError
    from air.train.loop import run_folder

    with run_folder.locked(config.folder):
        if (config.folder / run_folder.CONFIG_FILE).exists():
            raise UsageError(
                "the folder has a policy already",
                where=str(config.folder),
                remedy="use another --run.name, or remove the folder",
            )
        _train(config)
    return config.folder


def _train(config: SFTRunConfig) -> None:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from air import json_lines, paths
    from air.train.loop.run_folder import METRICS_FILE
    from air.train.model.demonstrations import read_examples
    from air.train.model.policy import load
    from air.train.model.sft import train_sft
    from air.trajectories import metric_rows

    config.embedded.set_threads()
    console = Console()
    examples = read_examples(Path(config.data.name).expanduser())
    policy = load(
        Path(config.model.name).expanduser()
        if config.model.name.startswith("~")
        else config.model.name
    )
    policy.renderer_config = config.renderer
    held_out = read_examples(Path(config.val.data.name).expanduser()) if config.val else []
    columns = (
        TextColumn("warm start"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    log = config.folder / METRICS_FILE
    paths.write_whole(log, b"")  # without the lines of a process that was killed
    with Progress(*columns, console=console) as bars:
        bar = bars.add_task("sft", total=config.max_steps, note="")

        def on_step(row: dict[str, float]) -> None:
            json_lines.append(log, [metric_rows.current(row)])
            bars.update(bar, advance=1, note=f"loss {row['loss']:.3f}")

        last = train_sft(
            policy,
            examples,
            config,
            on_step,
            held_out=held_out,
            micro_batch_tokens=config.embedded.micro_batch_tokens,
        )
    save(policy, config.folder)
    console.print(
        f"{int(last['demonstrations'])} demonstrations, {config.max_steps} steps, loss {last['loss']:.3f} "
        f"in {last['seconds']:.0f} s: {config.folder}",
        highlight=False,
        soft_wrap=True,
    )


def save(policy: Policy, folder: Path) -> None:
    """Writes the policy into a run's locked folder. The file `config.json` comes last, so that a folder with
    this file holds a whole policy, also if a process is killed while it saves."""
    from air.train.loop.run_folder import CONFIG_FILE

    unfinished = folder / ".policy"
    shutil.rmtree(unfinished, ignore_errors=True)  # a killed process left it
    unfinished.mkdir()
    try:
        policy.save(unfinished)
        for path in sorted(unfinished.iterdir(), key=lambda one: one.name == CONFIG_FILE):
            path.rename(folder / path.name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
