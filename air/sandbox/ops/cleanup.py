"""Removes boxes whose owner is dead.

A running box ends with its harness by itself: its stream closes. This module collects boxes that cannot end
by themselves: containers that were created and never started, containers past their time, and folders of
process boxes. It touches only what carries our labels or names.
"""

from __future__ import annotations

import shutil

from air.errors import MissingError
from air.sandbox.contract import ownership
from air.sandbox.ops import command_log


def collect() -> list[str]:
    """Removes boxes of dead owners; returns their names. Blocks for as long as the engine takes.

    It also removes command logs that are old or too many, without naming them. Without an engine it
    collects only folders.

    Raises:
        BoxStartError: the engine answers, but fails.
    """
    from air.sandbox.docker import engine

    removed = collect_folders()
    command_log.collect()
    try:
        return removed + engine.remove_left_behind()
    except MissingError:
        return removed


def collect_folders() -> list[str]:
    """Removes the folders of process boxes whose owner is dead; returns their paths."""
    removed = []
    for folder, label in ownership.box_folders():
        if ownership.is_dead(label):
            shutil.rmtree(folder, ignore_errors=True)  # another user's, or collected by another
            if not folder.exists():
                removed.append(str(folder))
    return removed
