"""Chooses the OCI runtime of box containers: the container engine's default, or the runtime that the
environment variable `AIR_OCI_RUNTIME` names.

A runtime such as gVisor's `runsc` isolates a container from this machine's kernel. The container engine must
be configured to know the runtime.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from air.errors import ConfigError

SETTING = "AIR_OCI_RUNTIME"
NATIVE = ("", "runc", "crun")
"""The OCI runtimes that run a container's processes in this machine's kernel. The empty name is the container
engine's default runtime."""
SENTRY_PIDS = 2048
"""How many processes and threads another runtime may have for itself in a container. gVisor has up to eight
for each process in the box."""


def name() -> str:
    """Returns the name of the OCI runtime to use; empty means the container engine's default."""
    return os.environ.get(SETTING, "")


def process_limit(processes: int) -> int:
    """Returns the container's limit of processes for a box that may have this many. Another runtime's own
    processes and threads count towards it, so that it is wider there."""
    return processes if name() in NATIVE else 8 * processes + SENTRY_PIDS


async def check() -> None:
    """Raises ConfigError if the container engine does not have the OCI runtime that `AIR_OCI_RUNTIME`
    names."""
    if runtime := name():
        from air.sandbox.docker import engine

        await engine.in_thread(lambda: _check(runtime, os.environ.get("DOCKER_HOST", "")))


@cache
def _check(runtime: str, _host: str) -> None:
    from air.sandbox.docker import engine

    with engine.translating("describing itself"):
        info = engine.client().info()
    if problem := missing(runtime, info):
        raise ConfigError(
            problem,
            where=SETTING,
            remedy=f"install the runtime and name it in the engine's settings, or unset {SETTING}",
        )


def missing(runtime: str, info: Mapping[str, Any]) -> str:
    """Returns "" if the container engine has the OCI runtime called `runtime`, else an error text. `info` is
    the engine's answer to the request `info`."""
    runtimes = sorted(info.get("Runtimes") or {})
    if runtime in runtimes:
        return ""
    return (
        f"the container engine has no runtime {runtime!r}: it has {', '.join(runtimes) or 'none'}"
    )
