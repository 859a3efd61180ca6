"""The embedded training engine, which trains on this machine alone, without prime-rl.

`load` reads a run file and `run` trains with it, from Python:

    from air import train

    config = train.load("configs/quickstart.toml", {"max_steps": 3})
    outcome = train.run(config)

It trains one model in one process. Importing this package is fast; torch is loaded when `run` starts.
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
    """Builds and checks a run config from run files and settings; later sources win over earlier ones.

    Args:
        sources: paths of TOML files (`configs/…` finds the shipped ones from any folder), or nested mappings
            with the same keys. A mapping is merged key by key; a list replaces the whole list.

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
    """Trains with the embedded training engine; blocks until the run has ended.

    Inside a running event loop, such as a notebook's, call `await asyncio.to_thread(train.run, config)`.

    Args:
        config: the run config that `load` returned.
        quiet: print nothing. By default one line is printed for each step, or a live table in a terminal.

    Returns:
        The run's folder, its rows of metrics, and its last checkpoint.

    Raises:
        UsageError: the run's folder, the model, a task, vLLM or a port cannot be used.
        InfrastructureError: every episode failed in too many consecutive steps, or the inference server did
            not start or has ended. The run's folder keeps the finished steps.
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
