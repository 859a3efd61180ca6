"""The embedded training engine, which trains one model in one process on this machine, without prime-rl.

`load` reads a run file and `run` trains with it, from Python:

    from air import train

    config = train.load("configs/quickstart.toml", {"max_steps": 3})
    outcome = train.run(config)

Importing this package is fast, because torch is loaded only when `run` starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from air.train.config.run_config import RunConfig
    from air.train.loop.run import RunOutcome

__all__ = ["load", "run"]


def load(*sources: str | Path | Mapping[str, Any]) -> RunConfig:
    """Merges run files (TOML) and settings, checks the merged settings, and returns them as a run config.

    `sources` are paths of TOML files, or nested mappings with the same keys. A later source overrides an
    earlier one key by key; a list replaces the whole earlier list. A path `configs/…` that does not exist
    means air's own file of this name.

    Raises MissingError if a file does not exist. Raises ConfigError, with the same message as the command
    `rl`, if a key or a value cannot be used, if an episode could never start, or if a step could take more
    than 7 days or the run more than a year by air's estimate.
    """
    from air.train.config import overrides
    from air.train.config.run_config import RunConfig
    from air.train.prime_rl import throughput, throughput_inputs

    merged = overrides.MergedSettings()
    for source in sources:
        if isinstance(source, Mapping):
            overrides.put(merged, source, "settings")
        else:
            overrides.put(merged, overrides.read_files([f"@{source}"]).data, str(source))
    config = overrides.build(RunConfig, merged).named()
    throughput.check(throughput_inputs.of_embedded(config))
    return config


def run(config: RunConfig, *, quiet: bool = False) -> RunOutcome:
    """Trains with the embedded training engine; returns the run's folder, metrics, and last checkpoint.

    By default, the function shows a live table if the output is a terminal, and otherwise prints one line for
    each step. With `quiet`, it prints nothing. In a running asyncio event loop, as in a notebook, call
    `await asyncio.to_thread(train.run, config)` instead.

    Raises UsageError if the run's folder, the model, a task, vLLM or a port cannot be used. Raises
    InfrastructureError if all episodes of the run, or of too many consecutive steps
    (`embedded.max_failed_steps`), ended with an infrastructure error, or if the inference server did not
    start or has ended; the results of the finished steps remain in the run's folder. After Ctrl-C or SIGTERM,
    saves the finished steps, then raises KeyboardInterrupt.
    """
    import asyncio

    from rich.console import Console

    from air.sandbox.contract.box import NOT_ISOLATED
    from air.train.loop.progress import Progress
    from air.train.loop.run import EmbeddedRun

    console = Console(quiet=quiet)
    with Progress(config.max_steps, title=f"run {config.run.name}", console=console) as progress:
        if config.uses_process_boxes:
            progress.say(f"{NOT_ISOLATED}.")
        try:
            return asyncio.run(EmbeddedRun(config.named(), progress).run())
        except asyncio.CancelledError:  # Ctrl-C or SIGTERM: the finished steps are saved
            raise KeyboardInterrupt from None
