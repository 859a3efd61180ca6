"""Removes what dead owners left behind.

A running box ends with its harness by itself: its stream closes. This module collects what cannot
end by itself: containers that were created and never started, containers past their time, and
folders of process boxes. It touches only what carries our labels or names.
"""

from __future__ import annotations

import shutil

from air.errors import MissingError
from air.sandbox.contract import ownership
from air.sandbox.ops import command_log


def collect() -> list[str]:
    """Removes what dead owners left; returns the names. Blocks for as long as the engine takes.

    Records of what was run in boxes go too, where they are old or many; they are not named.

    Without an engine there are no containers to look for, and only folders are collected.

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
    """Removes folders of process boxes whose owner is dead."""
    removed = []
    for folder, label in ownership.box_folders():
        if ownership.is_dead(label):
            shutil.rmtree(folder, ignore_errors=True)  # another user's, or collected by another
            if not folder.exists():
                removed.append(str(folder))
    return removed
