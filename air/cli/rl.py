"""`rl @ FILE …`: train by the run file."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from pathlib import Path

HELP = "train by a run file: rl @ configs/quickstart.toml"
TAKES_REST = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Everything but this is files and dotted keys of the run file."""
    parser.usage = "rl @ FILE [@ FILE …] [--dotted.key VALUE …] [--dry-run]"
    parser.add_argument("--dry-run", action="store_true", help="check and print, then stop")


def run(args: argparse.Namespace) -> int:
    """Trains; 0 when all steps were done."""
    from air.train import run_file
    from air.train.config import RunConfig

    sources = run_file.parse(args.rest)
    if sources.data.get("resume") is True:
        sources.data["resume"] = {}
    config = run_file.build(RunConfig, sources).named()
    if args.dry_run:
        print(run_file.dump(config))
        return 0
    return train(config)


def train(config: object) -> int:
    """Runs a checked config with the display on."""
    from rich.console import Console

    from air.train.config import RunConfig
    from air.train.progress import Progress, further, last_table
    from air.train.rl import EmbeddedRun, open_folder, summary

    assert isinstance(config, RunConfig)
    console = Console()
    _check(config)
    open_folder(config)
    _log_to(config.folder / "log.txt")
    total = config.max_steps
    with Progress(total, title=f"run {config.run.name}", console=console) as progress:
        engine = EmbeddedRun(config, progress)
        try:
            outcome = asyncio.run(_cancellable(engine))
        except (KeyboardInterrupt, asyncio.CancelledError):
            progress.say(f"interrupted; what is done is kept. To go on: {engine.go_on}")
            return 130
    last_table(console, summary(outcome.rows, _baselines(config)))
    further(console, config.folder, outcome.checkpoint)
    return 0


async def _cancellable(engine: object) -> object:
    from air.train.rl import EmbeddedRun

    assert isinstance(engine, EmbeddedRun)
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await engine.run()
