"""Measures how much CPU, memory and disk space a sandbox uses, and stores these samples. There is no
measurement in the background: a client's request for the samples adds a new one if the last is at least one
second old."""

from __future__ import annotations

import time
from typing import Any

from air.serve.e2b.sandbox import Sandbox, stamp

_MOST = 1000


async def between(sandbox: Sandbox, start: int, end: int) -> list[dict[str, Any]]:
    """Returns a sandbox's samples (of its use of CPU, memory and disk) from the time `start` to the time
    `end`, both in epoch seconds, as JSON objects in E2B's form. Before that, adds a new sample if the sandbox
    is running and its last sample is at least one second old."""
    now = time.time()
    if sandbox.state == "running" and (not sandbox.samples or now - sandbox.samples[-1]["at"] >= 1):
        async with sandbox.use():
            usage, _ = await sandbox.program("files").ask("usage")
        _add(sandbox, now, usage)
    return [sample["body"] for sample in sandbox.samples if start - 1 <= sample["at"] <= end + 1]


def _add(sandbox: Sandbox, now: float, usage: dict[str, Any]) -> None:
    last = sandbox.samples[-1] if sandbox.samples else None
    since, before = (last["at"], last["cpu"]) if last else (sandbox.started_at, 0)
    busy = (usage["cpu"] - before) / 1e6 / max(now - since, 1e-3)
    limits = sandbox.spec.limits
    body = {
        "timestamp": stamp(now),
        "timestampUnix": int(now),
        "cpuCount": max(1, round(limits.cpus)),
        "cpuUsedPct": round(100 * max(0.0, busy), 2),
        "memUsed": usage["memory"],
        "memCache": usage["cache"],
        "memTotal": limits.memory_mb << 20,
        "diskUsed": usage["disk"],
        "diskTotal": usage["disk_total"],
    }
    sandbox.samples = [*sandbox.samples, {"at": now, "cpu": usage["cpu"], "body": body}][-_MOST:]
