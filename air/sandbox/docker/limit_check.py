"""Checks that the engine enforces the limits of boxes, and warns once per engine if it does not.

Rootless engines, and kernels without a controller, accept a limit and ignore it.
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
    """The limits that the engine ignored, by its description of a container created with all of them."""
    host = container["HostConfig"]
    limits = {
        "memory": host.get("Memory"),
        "processes": host.get("PidsLimit"),
        "CPU": host.get("NanoCpus") or host.get("CpuQuota"),
    }
    return [name for name, most in limits.items() if not most or most < 0]


async def say_once(container: str) -> None:
    """Warns of limits that the engine does not enforce for this box, once per process and engine.

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
