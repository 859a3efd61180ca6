"""What the commands `air matrix` and `air coevolve` share: work in a folder that goes on where it ended."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

from air.errors import MissingError


class Planned(Protocol):
    """The plan of such work."""

    @property
    def folder(self) -> Path: ...

    def claim(self) -> None:
        """Writes into the folder what its content depends on. Raises UsageError if it is of other work."""
        ...


def add_modes(parser: argparse.ArgumentParser, show: str) -> None:
    """Adds the flags `--dry-run` and `show`, such as `--report`, of which one may be given."""
    only = parser.add_mutually_exclusive_group()
    only.add_argument(
        "--dry-run", action="store_true", help="check and print the settings, then stop"
    )
    only.add_argument(
        show, action="store_true", help="show what is recorded; train and play nothing"
    )


def check_begun(planned: Planned, file: str, what: str) -> None:
    """Raises MissingError if the folder has nothing to show yet; `file` is written when the work begins."""
    if not (planned.folder / file).is_file():
        raise MissingError(
            f"no {what} is here yet", where=str(planned.folder), remedy="start it first"
        )


def completed(planned: Planned, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
    """Does the work in the folder, which no other process may use meanwhile. Returns False if the user
    interrupted it."""
    from air.train.loop import run_folder

    with run_folder.locked(planned.folder):
        planned.claim()
        try:
            asyncio.run(work())
        except (KeyboardInterrupt, asyncio.CancelledError):
            say("interrupted; what is done is kept; the same command goes on")
            return False
    return True


def say(text: str) -> None:
    """Prints a line at once."""
    print(text, flush=True)
