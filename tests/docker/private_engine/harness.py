"""What the chaos tests kill and measure: a harness in a process of its own.

    python -m tests.docker.private_engine.harness busy|created|churn|leases COUNT [PROVIDER]

Its engine is the one that `DOCKER_HOST` names. It prints one line when it has begun.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

from air.sandbox.contract.box import BoxSpec
from air.sandbox.docker import container_spec, engine
from air.sandbox.pool.box_pool import Pool
from tests.docker.private_engine.supervisor import until

RUN, WARM = "chaos", 3
BUSY = "trap '' TERM HUP; (setsid bash -c 'while :; do sleep 0.05; done' &); echo >busy; sleep 600"


async def busy(count: int) -> None:
    """Holds `count` boxes in which commands run that nothing but a kill ends, one from a snapshot."""
    async with Pool(count, run=RUN) as pool:
        async with pool.lease(BoxSpec()) as first:
            snapshot = await first.snapshot()
        boxes = await asyncio.gather(*(pool.take(BoxSpec()) for _ in range(count)))
        await boxes[0].restore(snapshot)
        running = [asyncio.create_task(box.exec(BUSY, timeout=600)) for box in boxes]
        for box in boxes:
            assert (await box.exec("until test -e busy; do sleep 0.02; done", timeout=60)).ok
        print("begun", flush=True)
        await asyncio.gather(*running)


async def created(count: int) -> None:
    """Has created `count` containers, and never starts them."""
    client = engine.client()
    for index in range(count):
        client.create_container(**container_spec.container(BoxSpec(), f"air-created-{index}", RUN))
    print("begun", flush=True)
    await asyncio.sleep(600)


async def churn(count: int) -> None:
    """Takes, uses and gives back boxes without end, `count` at once."""

    async def one() -> None:
        while True:
            async with pool.lease(BoxSpec()) as box:
                await box.exec(BUSY, timeout=0.3)

    async with Pool(count, warm=1, run=RUN) as pool, asyncio.TaskGroup() as group:
        print("begun", flush=True)
        for _ in range(count):
            group.create_task(one())


async def leases(count: int, provider: Literal["docker", "process"] = "docker") -> None:
    """Takes `count` boxes in a row, a command in each; prints what the process holds on the way.

    A sample is taken while nothing is lent, ten times in all, the first before the first lease.
    """
    spec, step = BoxSpec(provider=provider), max(1, count // 10)
    print("begun", flush=True)
    for in_thread in (asyncio.to_thread, engine.in_thread):
        await _start_all_threads(in_thread)
    async with Pool(2 * WARM, warm=WARM, run=RUN) as pool:
        pool.prepare(spec)
        for done in range(0, count + 1, step):
            await asyncio.to_thread(until, lambda: _idle(pool), "an idle pool")
            print(json.dumps({"leases": done} | _held()), flush=True)
            for _ in range(step if done < count else 0):
                async with pool.lease(spec) as box:
                    assert (await box.exec(["true"], timeout=60)).ok


async def _start_all_threads(in_thread: Callable[[Callable[[], bool]], Awaitable[bool]]) -> None:
    """Starts all threads that the executor of `in_thread` can ever have, however slow this machine is: no
    thread gets a second piece of work before all pieces are submitted."""
    submitted = threading.Event()

    async def submit() -> None:  # runs after the first step of the others
        submitted.set()

    await asyncio.gather(*(in_thread(submitted.wait) for _ in range(64)), submit())


def _idle(pool: Pool) -> bool:
    stats = pool.stats
    return stats.live == stats.started - stats.closed == WARM


def _held() -> dict[str, float]:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "megabytes": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "tasks": len(asyncio.all_tasks()),
        "children": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
        "seconds": time.monotonic(),
    }


if __name__ == "__main__":
    what = {"busy": busy, "created": created, "churn": churn, "leases": leases}[sys.argv[1]]
    asyncio.run(what(int(sys.argv[2]), *sys.argv[3:]))
