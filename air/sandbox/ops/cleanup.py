"""Removes boxes whose owner, the process that opened them, is dead.

A running box ends with its owner, because the stream between them closes. This module removes the rest:
containers that never started or have expired, and folders of process boxes (boxes without a container).
"""

from __future__ import annotations

import shutil

from air.errors import MissingError
from air.sandbox.contract import ownership
from air.sandbox.ops import command_log


def collect() -> list[str]:
    """Removes boxes that have expired or whose owner process is dead, and returns their names. Blocks.

    Also removes the oldest command logs. If no container engine answers, containers stay. Raises
    BoxStartError if the container engine answers, but fails.
    """
    from air.sandbox.docker import engine

    removed = collect_folders()
    command_log.collect()
    try:
        return removed + engine.remove_left_behind()
    except MissingError:
        return removed


def collect_folders() -> list[str]:
    """Removes the folders of process boxes whose owner process is dead; returns their paths."""
    removed = []
    for folder, label in ownership.box_folders():
        if ownership.is_dead(label):
            shutil.rmtree(folder, ignore_errors=True)  # may be another user's, or removed by now
            if not folder.exists():
                removed.append(str(folder))
    return removed
