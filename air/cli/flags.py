"""Adds the command-line flags that several commands share, and reads arguments of the form `KEY=VALUE`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from air.errors import ConfigError

if TYPE_CHECKING:
    from air.sandbox.pool.gpus import Wanted


def add_runtime(parser: argparse.ArgumentParser, *, default: str | None, note: str) -> None:
    """Adds the flag `--runtime docker|subprocess`; `note` describes its default in the help text."""
    parser.add_argument(
        "--runtime",
        choices=("docker", "subprocess"),
        default=default,
        help=f"docker: containers; subprocess: process boxes ({note})",
    )


def add_task_root(parser: argparse.ArgumentParser, flag: str = "--task-root") -> None:
    """Adds the repeatable flag `--task-root DIR`, which names a folder of tasks."""
    parser.add_argument(
        flag,
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a folder of tasks, used instead of the shipped ones",
    )


def add_mlgym_root(parser: argparse.ArgumentParser) -> None:
    """Adds the flag `--mlgym-root DIR`, which names the folder of an MLGym checkout."""
    parser.add_argument(
        "--mlgym-root", type=Path, metavar="DIR", help="a checkout of MLGym, for tasks mlgym:NAME"
    )


def add_gpus(parser: argparse.ArgumentParser) -> None:
    """Adds the flag `--gpus auto|IDS`, which names the GPUs that boxes may use."""
    parser.add_argument(
        "--gpus",
        type=_gpus,
        metavar="auto|IDS",
        help="GPUs for tasks that need them: auto, or indices and UUIDs separated by commas",
    )


def _gpus(text: str) -> Wanted:
    return "auto" if text == "auto" else text.split(",")


def key_value(text: str, flag: str) -> tuple[str, Any]:
    """Splits `KEY=VALUE`, and reads the value with `air.config.toml_or_text`.

    Raises ConfigError, naming `flag`, if there is no `=`.
    """
    from air.config import toml_or_text

    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"{text!r} is not KEY=VALUE", where=flag)
    return name, toml_or_text(value)
