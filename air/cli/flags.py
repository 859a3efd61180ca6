"""Adds the command-line flags that several commands share, and reads arguments of the form `KEY=VALUE`."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from air.errors import ConfigError

if TYPE_CHECKING:
    from air.sandbox.pool.gpus import Wanted


def add_runtime(parser: argparse.ArgumentParser, *, default: str | None, note: str) -> None:
    """Adds the flag `--runtime docker|subprocess`, which chooses the kind of box, to `parser`.

    Args:
        default: the value if the flag is absent.
        note: a description of the default value, which the help text shows.
    """
    parser.add_argument(
        "--runtime",
        choices=("docker", "subprocess"),
        default=default,
        help=f"docker: containers; subprocess: process boxes ({note})",
    )


def add_task_root(parser: argparse.ArgumentParser) -> None:
    """Adds the flag `--task-root DIR`, which names a folder of tasks, to `parser`.

    Users can give the flag several times.
    """
    parser.add_argument(
        "--task-root",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a folder of tasks, used instead of the shipped ones",
    )


def add_mlgym_root(parser: argparse.ArgumentParser) -> None:
    """Adds the flag `--mlgym-root DIR`, which names the folder of an MLGym checkout, to `parser`."""
    parser.add_argument(
        "--mlgym-root", type=Path, metavar="DIR", help="a checkout of MLGym, for tasks mlgym:NAME"
    )


def add_gpus(parser: argparse.ArgumentParser) -> None:
    """Adds the flag `--gpus auto|IDS`, which names the GPUs that boxes may use, to `parser`."""
    parser.add_argument(
        "--gpus",
        type=_gpus,
        metavar="auto|IDS",
        help="GPUs for tasks that need them: auto, or indices and UUIDs separated by commas",
    )


def _gpus(text: str) -> Wanted:
    return "auto" if text == "auto" else text.split(",")


def key_value(text: str, flag: str) -> tuple[str, Any]:
    """Splits an argument of the form `KEY=VALUE`; returns the key and the value.

    The value is parsed as TOML; text that is not valid TOML is returned as a string.

    Raises:
        ConfigError: the argument has no `=`; the message names `flag`, the flag to which the argument
            belongs.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"{text!r} is not KEY=VALUE", where=flag)
    try:
        return name, tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        return name, value
