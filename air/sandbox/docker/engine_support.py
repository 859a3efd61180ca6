"""Finds out two things about the container engine. It may ignore resource limits of a box; then a warning is
logged. And it may be unable to grant a Linux capability; then boxes are started without this capability."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import Any

from air.sandbox.docker import engine

CAPABILITIES = ("KILL", "SETGID", "SETUID", "SETPCAP")
"""The Linux capabilities with which the guest (air's program in a box) starts as root. An agent's commands
have none of them, unless they run as root in an open box."""
OOM_ORDER_CAPABILITY = "SYS_RESOURCE"
"""A further Linux capability of the guest (air's program in a box), if the container engine can grant it.
With it, the guest fixes which processes the kernel kills first if memory runs out, and no command can change
this order."""
_CHECKED: set[tuple[int, str]] = set()
_WITHOUT_OOM_ORDER: set[str] = set()
"""The container engines (values of `DOCKER_HOST`) that cannot grant `OOM_ORDER_CAPABILITY` (SYS_RESOURCE),
known to this process from failed starts of boxes."""
_REFUSED = re.compile(r"unable to apply caps|capset|not available in the current environment", re.I)
_LOG = logging.getLogger(__name__)


def capabilities() -> list[str]:
    """Returns the Linux capabilities to request from the container engine for the guest (air's program in a
    box). Leaves out `OOM_ORDER_CAPABILITY` (SYS_RESOURCE) if the engine is known to be unable to grant it."""
    lacking = os.environ.get("DOCKER_HOST", "") in _WITHOUT_OOM_ORDER
    return [*CAPABILITIES] if lacking else [*CAPABILITIES, OOM_ORDER_CAPABILITY]


def learn_from_failed_start(failure: str) -> bool:
    """Learns from `failure`, the error text of a box's failed start, whether the container engine cannot
    grant the capability `OOM_ORDER_CAPABILITY` (SYS_RESOURCE), for example because the engine itself runs in
    a container.

    If it cannot, remembers this and returns true: the caller should start the box again, with the
    capabilities that `capabilities` then returns. Returns false if the start failed for another reason, or if
    this was already known.
    """
    key = os.environ.get("DOCKER_HOST", "")
    if key in _WITHOUT_OOM_ORDER or not _REFUSED.search(failure):
        return False
    _WITHOUT_OOM_ORDER.add(key)
    _LOG.info(
        "the Docker engine lacks %s: commands can end the guest by using up the memory",
        OOM_ORDER_CAPABILITY,
    )
    return True


def ignored_limits(container: Mapping[str, Any]) -> list[str]:
    """Returns the names of a container's limits (`memory`, `processes`, `CPU`) that the container engine
    ignored.

    `container` is the engine's description of a container that was created with all three limits.
    """
    host = container["HostConfig"]
    limits = {
        "memory": host.get("Memory"),
        "processes": host.get("PidsLimit"),
        "CPU": host.get("NanoCpus") or host.get("CpuQuota"),
    }
    return [name for name, limit in limits.items() if not limit or limit < 0]


async def warn_once(container: str) -> None:
    """Logs a warning if the container engine ignores a limit of the container with the id or name
    `container`. After the first successful check, later calls in this process do nothing for the same engine.

    Raises BoxDiedError if the box is gone.
    """
    key = (os.getpid(), os.environ.get("DOCKER_HOST", ""))
    if key in _CHECKED:
        return
    missing = ignored_limits(await engine.inspected(container))
    if key in _CHECKED:  # by another box, meanwhile
        return
    _CHECKED.add(key)
    if missing:
        _LOG.warning(
            "WARNING: the Docker engine holds no box to its limit of %s — let its user have the controllers "
            "cpu, memory and pids of cgroup v2 (under systemd: `Delegate=cpu memory pids`)",
            ", ".join(missing),
        )
