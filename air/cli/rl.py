"""`rl @ FILE …`: train by the run file."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from air.errors import UsageError

if TYPE_CHECKING:
    from air.train.config import RunConfig
    from air.train.rl import EmbeddedRun, Outcome

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


def train(config: RunConfig) -> int:
    """Runs a checked config with the display on."""
    from rich.console import Console

    from air.train.progress import Progress, further, last_table
    from air.train.rl import EmbeddedRun, open_folder, summary

    baselines = _check(config)
    console = Console()
    open_folder(config)
    _log_to(config.folder / "log.txt")
    with Progress(config.max_steps, title=f"run {config.run.name}", console=console) as progress:
        engine = EmbeddedRun(config, progress)
        try:
            outcome = asyncio.run(_cancellable(engine))
        except (KeyboardInterrupt, asyncio.CancelledError):
            progress.say(f"interrupted; what is done is kept. To go on: {engine.go_on}")
            return 130
    last_table(console, summary(outcome.rows, baselines))
    further(console, config.folder, outcome.checkpoint)
    return 0


async def _cancellable(engine: EmbeddedRun) -> Outcome:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await engine.run()


def _check(config: RunConfig) -> dict[str, float]:
    """What can be known before anything is started; returns the tasks' baselines.

    Raises:
        UsageError: a task is missing, or there is no Docker for a run that needs it.
    """
    from air import tasks
    from air.env.config import ResearchEnvConfig
    from air.sandbox import docker_available

    baselines = {}
    for source in config.orchestrator.train.source:
        env = source.env
        if not isinstance(env, ResearchEnvConfig):
            continue
        for name in env.taskset.tasks:
            baselines[name] = tasks.load(name, env.taskset.task_roots).baseline
        if env.provider == "docker" and (reason := docker_available()):
            raise UsageError(
                f"needs Docker ({reason})",
                where=f"source {source.resolved_name}: env.agent.runtime.type",
                remedy="run `air setup`, or play without isolation: "
                "--orchestrator.train.source.0.env.agent.runtime.type subprocess",
            )
    return baselines


def _log_to(path: Path) -> None:
    """Sends the log to the run's file and nothing of it to the terminal."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("air").setLevel(logging.INFO)
