"""Code that `air matrix` (trains models on several lists of tasks, and plays all tasks) and `air coevolve`
(trains two models on each other) share. Both can be interrupted, and continue later with what is already in
their folder."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

from air.errors import MissingError


class ResumablePlan(Protocol):
    """Interface of the objects that describe the whole work of `air matrix` or `air coevolve`: the trainings
    and evaluations that fill one folder. It has only what the functions in this file need."""

    @property
    def folder(self) -> Path: ...

    def claim(self) -> None:
        """Marks the folder as belonging to this work: writes a file with the settings on which the results
        depend. Raises UsageError if the folder contains something else, or results of other settings."""
        ...


def add_modes(parser: argparse.ArgumentParser, show: str) -> None:
    """Adds two flags that exclude each other: `--dry-run`, and the flag `show` (such as `--report`), with
    which the command only prints recorded results."""
    only = parser.add_mutually_exclusive_group()
    only.add_argument(
        "--dry-run", action="store_true", help="check and print the settings, then stop"
    )
    only.add_argument(
        show, action="store_true", help="show what is recorded; train and play nothing"
    )


def check_begun(plan: ResumablePlan, file: str, what: str) -> None:
    """Raises MissingError if the work of `plan` has not begun: if its folder does not contain the file
    `file`, which is written first. `what` is the name of the work in the error message: `matrix` or
    `co-evolution`."""
    if not (plan.folder / file).is_file():
        raise MissingError(
            f"no {what} is here yet", where=str(plan.folder), remedy="start it first"
        )


def completed(plan: ResumablePlan, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
    """Locks the folder of `plan` against other processes, writes its settings (`ResumablePlan.claim`), and
    runs `work` to its end. Returns False if the user interrupted the work, else True."""
    from air.train.loop import run_folder

    with run_folder.locked(plan.folder):
        plan.claim()
        try:
            asyncio.run(work())
        except (KeyboardInterrupt, asyncio.CancelledError):
            say("interrupted; what is done is kept; the same command goes on")
            return False
    return True


def say(text: str) -> None:
    """Prints a line and flushes standard output, so that the line appears at once."""
    print(text, flush=True)
