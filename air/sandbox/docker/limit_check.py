"""Checks whether the container engine enforces the limits of boxes, and logs a warning if it does not.

A rootless container engine, or a kernel without the cgroup controller for a limit, may accept the limit but
ignore it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from air.sandbox.docker import engine

_CHECKED: set[tuple[int, str]] = set()
_LOG = logging.getLogger(__name__)


def unheld(container: Mapping[str, Any]) -> list[str]:
    """Returns the names of the limits that the container engine ignored: `memory`, `processes` or `CPU`.

    Args:
        container: the container engine's description of a container, created with all three limits.
    """
    host = container["HostConfig"]
    limits = {
        "memory": host.get("Memory"),
        "processes": host.get("PidsLimit"),
        "CPU": host.get("NanoCpus") or host.get("CpuQuota"),
    }
    return [name for name, most in limits.items() if not most or most < 0]


async def say_once(container: str) -> None:
    """Logs a warning if the container engine ignores a limit of a box.

    Checks only the first box of this process on each container engine.

    Args:
        container: the container engine's id of the container of a box.

    Raises:
        BoxDiedError: the box is gone.
    """
    key = (os.getpid(), os.environ.get("DOCKER_HOST", ""))
    if key in _CHECKED:
        return
    _CHECKED.add(key)
    if missing := unheld(await engine.inspected(container)):
        _LOG.warning(
            "WARNING: this engine holds no box to its limit of %s — let its user have the controllers "
            "cpu, memory and pids of cgroup v2 (under systemd: `Delegate=cpu memory pids`)",
            ", ".join(missing),
        )
