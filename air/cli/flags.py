"""Adds those command-line flags that several commands of air share, and parses arguments of the form
`KEY=VALUE`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from air.errors import ConfigError

if TYPE_CHECKING:
    from air.sandbox.pool.gpus import GpuSelection


def add_runtime(parser: argparse.ArgumentParser, *, default: str | None, note: str) -> None:
    """Adds the flag `--runtime docker|subprocess`, which chooses the kind of boxes (agents' sandboxes):
    containers, or plain processes. `default` is the value if the flag is not given; None: the command
    chooses. `note` is the part of the help text that describes this default."""
    parser.add_argument(
        "--runtime",
        choices=("docker", "subprocess"),
        default=default,
        help=f"docker: containers; subprocess: process boxes ({note})",
    )


def add_tasks(parser: argparse.ArgumentParser, *, default: Sequence[str] | None, note: str) -> None:
    """Adds the flag `--tasks ID …`; its value is a list of task ids, which are separated by spaces or commas.
    `default` is the value if the flag is not given; None: the command chooses. `note` is the part of the help
    text that describes this default."""
    parser.add_argument(
        "--tasks",
        nargs="+",
        action=_Names,
        metavar="ID",
        default=default,
        help=f"the tasks to play ({note})",
    )


class _Names(argparse.Action):
    """Argparse action that stores a list of names; in the flag's values they are separated by spaces or
    commas."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        names = [name for value in values for name in value.split(",") if name]
        if not names:
            parser.error(f"argument {option_string}: names no task")
        setattr(namespace, self.dest, names)


def add_turn(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Adds the flag `--turn N`, the number of a turn of an episode. The flag can also be written `--step`,
    its name in earlier versions. `meaning` is the help text."""
    parser.add_argument(
        "--turn",
        "--step",
        dest="turn",
        type=int,
        action=_AsWritten,
        metavar="N",
        help=meaning,
    )


def as_written(args: argparse.Namespace, name: str) -> str:
    """Returns the flag that set the argument `name`, for error messages. If the flag has two spellings
    (`--turn` and `--step`), returns the one that the user wrote."""
    written: str = getattr(args, f"{name}_flag", f"--{name}")
    return written


class _AsWritten(argparse.Action):
    """Argparse action that stores a flag's value and the spelling of the flag that the user chose (see
    `as_written`)."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        setattr(namespace, f"{self.dest}_flag", option_string)


def add_count(parser: argparse.ArgumentParser, flag: str, default: int, meaning: str) -> None:
    """Adds the flag `flag`, whose value is a whole number of at least 1. `default` is the value if the flag
    is not given. `meaning` is the help text without the default."""
    parser.add_argument(
        flag, type=count, default=default, metavar="N", help=f"{meaning} ({default})"
    )


def count(text: str) -> int:
    """Parses a flag's value as a whole number, 1 or more. Raises argparse's ArgumentTypeError for other
    texts."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text}")
    return int(text)


def add_task_root(
    parser: argparse.ArgumentParser, *, inner: bool = False, dest: str = "task_root"
) -> None:
    """Adds the flag `--task-root DIR`, a folder of tasks; the flag can be repeated. `dest` is the name under
    which the parser stores the list of folders.

    `inner` must be true if `parser` belongs to a subcommand and the flag may also stand before the name of
    the subcommand. The flag then has no default, because a default would overwrite the value of the flag
    before the subcommand.
    """
    parser.add_argument(
        "--task-root",
        dest=dest,
        type=Path,
        action="append",
        default=argparse.SUPPRESS if inner else [],
        metavar="DIR",
        help="a folder of tasks, used instead of the shipped ones (none)",
    )


def add_mlgym_root(parser: argparse.ArgumentParser, *, inner: bool = False) -> None:
    """Adds the flag `--mlgym-root DIR`, the folder of a checkout of MLGym (a collection of tasks). `inner`
    must be true if `parser` belongs to a subcommand and the flag may also stand before the name of the
    subcommand."""
    parser.add_argument(
        "--mlgym-root",
        type=Path,
        default=argparse.SUPPRESS if inner else None,
        metavar="DIR",
        help="a checkout of MLGym, for its tasks mlgym:NAME (or set AIR_MLGYM_ROOT)",
    )


def add_gpus(parser: argparse.ArgumentParser) -> None:
    """Adds the flag `--gpus auto|IDS`, the GPUs that boxes (sandboxes of agents and graders) may use."""
    parser.add_argument(
        "--gpus",
        type=_gpus,
        metavar="auto|IDS",
        help="GPUs for tasks that need them: auto, or indices and UUIDs separated by commas (none)",
    )


def _gpus(text: str) -> GpuSelection:
    return "auto" if text == "auto" else text.split(",")


def key_value(text: str, flag: str) -> tuple[str, Any]:
    """Splits a string `KEY=VALUE`, and returns the key and the value. The value is parsed as TOML if
    possible; otherwise it is a string.

    Raises ConfigError, which names the flag `flag`, if `text` contains no `=`.
    """
    from air.config import toml_or_text

    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"{text!r} is not KEY=VALUE", where=flag)
    return name, toml_or_text(value)
