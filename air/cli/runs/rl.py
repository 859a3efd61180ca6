"""Implements the command `rl @ FILE …`: trains a model by reinforcement learning, with the settings of a run
file (TOML).

The training is done by one of two engines: `embedded`, which is part of air, or prime-rl, which is another
program.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import TYPE_CHECKING

from air.cli.heavy_imports import collector_paused
from air.errors import ConfigError, MissingError
from air.sandbox.contract.box import NOT_ISOLATED

if TYPE_CHECKING:
    from air.train.config.overrides import MergedSettings
    from air.train.config.run_config import RunConfig

HELP = "train by a run file: rl @ configs/quickstart.toml"
EXAMPLES = (
    "air rl @ configs/quickstart.toml --dry-run",
    "air rl @ configs/quickstart.toml --max-steps 5 --trainer.optim.lr 1e-4",
    "air rl @ outputs/RUN/config.json --resume",
)
TAKES_REST = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "rl @ FILE [@ FILE …] [--resume] [--dotted.key VALUE …] [--dry-run]"
    parser.epilog = (
        "--resume continues a run after its last checkpoint, and --resume.step N after that of step N;\n"
        "what the run made later moves to branches/ in its folder."
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check and print the settings, then stop"
    )
    parser.add_argument(
        "--engine",
        choices=("auto", "embedded", "prime-rl"),
        default="auto",
        help="auto: prime-rl for files with [inference], [deployment] or [slurm], else embedded (auto)",
    )
    parser.add_argument(
        "--gpus",
        type=lambda text: [name.strip() for name in text.split(",") if name.strip()],
        metavar="0,2,3,…",
        help="the GPUs that the engine sees (all); prime-rl: those of the inference, then of the trainer",
    )
    parser.add_argument(
        "--inference",
        choices=("auto", "vllm", "transformers"),
        help="sampler of the embedded engine; auto: vLLM if it is installed and there is a GPU "
        "(default: as the run file says)",
    )
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="embedded engine: metrics that repeat bit by bit; slower (default: as the run file says)",
    )


def run(args: argparse.Namespace) -> int:
    from air.train.config import overrides

    merged = overrides.read_files(args.rest)  # before heavy imports, because a file may be missing
    with collector_paused():
        from air.train.choose_engine import choose
        from air.train.config.run_config import RunConfig

    if args.inference is not None:
        args.rest = [*args.rest, "--embedded.inference", args.inference]
    if args.deterministic:
        args.rest = [*args.rest, "--embedded.deterministic"]
    overrides.apply_flags(merged, args.rest, RunConfig)
    if choose(args.engine, merged, dry_run=args.dry_run) == "prime-rl":
        for flag, given in (
            ("--inference", args.inference),
            ("--deterministic", args.deterministic),
        ):
            if given:
                raise ConfigError(
                    "only the embedded engine has this flag; prime-rl samples with vLLM", where=flag
                )
        return _prime_rl(args, merged)
    return _embedded(args, merged)


def _prime_rl(args: argparse.Namespace, merged: MergedSettings) -> int:
    from air.train.prime_rl import launch

    python = launch.interpreter()
    if python is None and not args.dry_run:
        raise MissingError(launch.NOT_INSTALLED, remedy=launch.HOW_TO_INSTALL)
    plan = launch.make_plan(merged, args.gpus)
    _say(plan.lines())
    if python is None:
        _say([launch.table_note()])
        return 0
    if not args.dry_run:
        plan.check_real()
    return launch.hand_over(python, launch.arguments(args.rest, merged, dry_run=args.dry_run), plan)


def _embedded(args: argparse.Namespace, merged: MergedSettings) -> int:
    from air.train.config import overrides
    from air.train.config.run_config import RunConfig
    from air.train.prime_rl import throughput, throughput_inputs

    if args.gpus is not None:
        _check_gpus(args.gpus)
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(args.gpus)
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    config = overrides.build(RunConfig, merged).named()
    plan = throughput.check(throughput_inputs.of_embedded(config))
    if args.dry_run:
        _say(["engine embedded", *plan.lines()])
        print(overrides.dump(config))
        return 0
    if config.uses_process_boxes:
        print(f"{NOT_ISOLATED}.", flush=True)
    return train(config)


def _check_gpus(names: Sequence[str]) -> None:
    """Raises ConfigError if a GPU in `names` does not exist on this machine. Without this check, the training
    would silently use another device."""
    from air.sandbox.pool import gpus

    if not (inventory := gpus.inventory()):
        raise ConfigError(
            "this machine has no NVIDIA GPU",
            where="--gpus",
            remedy="leave out --gpus to train on the CPU",
        )
    gpus.select(names, inventory, where="--gpus")


def _say(lines: Sequence[str]) -> None:
    """Prints lines to standard error, so that the standard output of a dry run contains only the settings."""
    print("\n".join(lines), file=sys.stderr, flush=True)


def train(config: RunConfig) -> int:
    """Trains a model with the engine `embedded`, which is part of air. Returns the exit code: 0 after the
    last step, 130 if interrupted."""
    from air.train.loop import run_folder

    run_folder.start_from(config)  # reports problems before torch and a model are loaded
    from rich.console import Console

    from air.train.loop.metrics import summary
    from air.train.loop.progress import Progress, further, last_table

    with collector_paused():
        from air.train.loop.run import EmbeddedRun

    console = Console()
    with (
        logged(config.folder) as open_log,
        Progress(config.max_steps, title=f"run {config.run.name}", console=console) as progress,
    ):
        engine = EmbeddedRun(config, progress, open_log)
        try:
            outcome = asyncio.run(engine.run())
        except (KeyboardInterrupt, asyncio.CancelledError):
            progress.say(f"interrupted; the finished steps are kept; {engine.how_to_resume}")
            return 130
    last_table(console, summary(outcome.rows))
    further(console, config.folder, outcome.checkpoint)
    return 0


@contextmanager
def logged(folder: Path) -> Iterator[Callable[[], None]]:
    """Context manager: collects log lines in memory as long as the folder of the run, `folder`, does not
    exist. Yields a function, which must be called when the folder has been created. It writes the collected
    lines to `log.txt` in `folder`; later lines are written there directly."""
    root, early = logging.getLogger(), MemoryHandler(1000)
    handlers: list[logging.Handler] = [early]
    root.addHandler(early)

    def open_log() -> None:
        handler = logging.FileHandler(folder / "log.txt", encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        early.setTarget(handler)
        early.flush()
        root.removeHandler(early)
        root.addHandler(handler)
        handlers.append(handler)
        logging.getLogger("air").setLevel(logging.INFO)

    try:
        yield open_log
    finally:
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
