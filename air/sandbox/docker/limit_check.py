"""Warns if the container engine ignores limits of boxes, as without root or a cgroup controller."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from air.sandbox.docker import engine

_CHECKED: set[tuple[int, str]] = set()
_LOG = logging.getLogger(__name__)


def ignored_limits(container: Mapping[str, Any]) -> list[str]:
    """Returns a container's limits (`memory`, `processes`, `CPU`) that the container engine ignored.

    `container` is the container engine's description of a container that was created with all three.
    """
    host = container["HostConfig"]
    limits = {
        "memory": host.get("Memory"),
        "processes": host.get("PidsLimit"),
        "CPU": host.get("NanoCpus") or host.get("CpuQuota"),
    }
    return [name for name, limit in limits.items() if not limit or limit < 0]


async def warn_once(container: str) -> None:
    """Logs a warning if the container engine ignores a limit of a box. Checks this process's first box only.

    Raises BoxDiedError if the box is gone.
    """
    key = (os.getpid(), os.environ.get("DOCKER_HOST", ""))
    if key in _CHECKED:
        return
    _CHECKED.add(key)
    if missing := ignored_limits(await engine.inspected(container)):
        _LOG.warning(
            "WARNING: the Docker engine holds no box to its limit of %s — let its user have the controllers "
            "cpu, memory and pids of cgroup v2 (under systemd: `Delegate=cpu memory pids`)",
            ", ".join(missing),
        )
