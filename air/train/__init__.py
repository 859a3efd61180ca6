"""The embedded training engine, which trains on this machine alone, without prime-rl.

`load` reads a run file and `run` trains with it, from Python:

    from air import train

    config = train.load("configs/quickstart.toml", {"max_steps": 3})
    outcome = train.run(config)

This engine trains one model in one process. Importing this package is fast, because torch is loaded only
when `run` starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from air.train.config.run_config import RunConfig
    from air.train.loop.run import Outcome

__all__ = ["load", "run"]


def load(*sources: str | Path | Mapping[str, Any]) -> RunConfig:
    """Merges run files (TOML) and settings, checks the merged settings, and returns them as a run config.

    If two of the arguments set the same key, the value from the later argument is used.

    Args:
        sources: paths of TOML files, or nested mappings with the same keys. A path `configs/…` also finds the
            files that are shipped with air, from any folder. Mappings are merged key by key, but a list
            replaces the whole earlier list.

    Raises:
        MissingError: a file does not exist.
        ConfigError: a key or a value cannot be used, an episode could never start, or the run would take far
            too long. The message is the same as from the command `rl`.
    """
    from air.train.config import overrides
    from air.train.config.run_config import RunConfig
    from air.train.prime_rl import throughput, throughput_inputs

    merged = overrides.Sources()
    for source in sources:
        if isinstance(source, Mapping):
            overrides.put(merged, source, "settings")
        else:
            overrides.put(merged, overrides.read_files([f"@{source}"]).data, str(source))
    config = overrides.build(RunConfig, merged).named()
    throughput.check(throughput_inputs.of_embedded(config))
    return config


def run(config: RunConfig, *, quiet: bool = False) -> Outcome:
    """Trains with the embedded training engine, and returns when the run has ended.

    If an asyncio event loop is already running, as in a notebook, call
    `await asyncio.to_thread(train.run, config)` instead.

    Args:
        config: the run config that `load` returned.
        quiet: true to print nothing. By default a live table is shown in a terminal; elsewhere, one line is
            printed for each step.

    Returns:
        The run's folder, the metrics of each step, and the last checkpoint.

    Raises:
        UsageError: the run's folder, the model, a task, vLLM or a port cannot be used.
        InfrastructureError: every episode failed in too many consecutive steps, or the inference server did
            not start or has ended. The results of the finished steps remain in the run's folder.
    """
    import asyncio

    from rich.console import Console

    from air.sandbox.contract.box import NOT_ISOLATED
    from air.train.loop.progress import Progress
    from air.train.loop.run import EmbeddedRun

    console = Console(quiet=quiet)
    with Progress(config.max_steps, title=f"run {config.run.name}", console=console) as progress:
        sources = config.orchestrator.train.source
        if any(getattr(source.env, "provider", "") == "process" for source in sources):
            progress.say(f"{NOT_ISOLATED}.")
        return asyncio.run(EmbeddedRun(config.named(), progress).run())
