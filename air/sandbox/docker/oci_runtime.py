"""The OCI runtime of all containers that are boxes: the engine's, or the one that `AIR_OCI_RUNTIME` names.

A runtime such as gVisor's `runsc` isolates a container from this machine's kernel. The engine must know it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from air.errors import ConfigError

SETTING = "AIR_OCI_RUNTIME"


def name() -> str:
    """Returns the name of the runtime; empty for the engine's own."""
    return os.environ.get(SETTING, "")


async def check() -> None:
    """Raises ConfigError if the engine does not have the runtime that is set."""
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
    """Returns what is wrong if the engine, by its answer to `info`, lacks a runtime; else an empty text."""
    runtimes = sorted(info.get("Runtimes") or {})
    if runtime in runtimes:
        return ""
    return (
        f"the container engine has no runtime {runtime!r}: it has {', '.join(runtimes) or 'none'}"
    )
