"""Removes boxes whose owner, the process that opened them, is dead.

A running box ends by itself when its owner ends, because the stream of bytes between them then closes.
This module removes what does not end by itself: containers that were created but never started, containers
past their expiry time, and folders of process boxes (boxes that are plain processes, not containers). It
removes only containers with air's labels and folders with air's name prefix.
"""

from __future__ import annotations

import shutil

from air.errors import MissingError
from air.sandbox.contract import ownership
from air.sandbox.ops import command_log


def collect() -> list[str]:
    """Removes boxes that have expired or whose owner (the process that opened them) is dead.

    Returns the names of the removed boxes. Blocks until the container engine is done. If no container
    engine answers, no containers are removed. The oldest command logs are also removed, but the result does
    not name them.

    Raises:
        BoxStartError: the container engine answers, but fails.
    """
    from air.sandbox.docker import engine

    removed = collect_folders()
    command_log.collect()
    try:
        return removed + engine.remove_left_behind()
    except MissingError:
        return removed


def collect_folders() -> list[str]:
    """Removes the folders of process boxes (boxes without a container) whose owner process is dead.

    Returns the paths of the removed folders.
    """
    removed = []
    for folder, label in ownership.box_folders():
        if ownership.is_dead(label):
            shutil.rmtree(folder, ignore_errors=True)  # may be another user's, or removed by now
            if not folder.exists():
                removed.append(str(folder))
    return removed
