"""Shows how to use boxes without tasks: commands, files, many boxes at once, and a snapshot from which
several boxes start.

    python examples/boxes_alone.py              # containers
    python examples/boxes_alone.py process      # process boxes, without Docker
"""

from __future__ import annotations

import asyncio
import sys
from typing import Literal

from air.sandbox import BoxSpec
from air.sandbox.contract.box import BoxLimits
from air.sandbox.pool.box_pool import Pool

COUNT = b"""
import sys
print(sum(i for i in range(int(sys.argv[1])) if i % 7 == 0))
"""


async def many(pool: Pool, spec: BoxSpec) -> None:
    """Runs six commands, each in a box of its own. At most four boxes exist at the same time."""

    async def one(size: int) -> str:
        async with pool.lease(spec) as box:
            await box.write("count.py", COUNT)
            done = await box.exec(["python3", "count.py", str(size)], timeout=20)
            return done.text.strip()

    sums = await asyncio.gather(*(one(10**power) for power in range(6)))
    print("sums:", *sums)


async def limits(pool: Pool, spec: BoxSpec) -> None:
    """Shows that a command which fails, runs too long or prints too much gives a result, not an exception."""
    async with pool.lease(spec) as box:
        failed = await box.exec("echo sorry >&2; exit 3", timeout=10)
        print("failed:", failed.code, failed.stderr.decode().strip())
        late = await box.exec("echo begun; sleep 60", timeout=0.5)
        print("timed out:", late.timed_out, late.stdout.decode().strip())
        loud = await box.exec("yes", timeout=0.5, max_bytes=1000)
        print("cut:", loud.truncated, len(loud.stdout) < 2000)


async def forks(pool: Pool, spec: BoxSpec) -> None:
    """Starts two boxes from one frozen workspace. Neither box sees the other's changes."""
    async with pool.lease(spec) as box:
        await box.write("log.txt", b"shared\n")
        snapshot = await box.snapshot()  # ends the box
    async with snapshot:
        for name in ("first", "second"):
            async with pool.lease(spec, snapshot=snapshot) as fork:
                await fork.exec(f"echo {name} >> log.txt", timeout=10)
                print("fork:", (await fork.read("log.txt")).decode().split())


async def main(provider: Literal["docker", "process"]) -> None:
    spec = BoxSpec(provider=provider, limits=BoxLimits(memory_mb=256, seconds=120))
    async with Pool(4, warm=1) as pool:
        await many(pool, spec)
        await limits(pool, spec)
        await forks(pool, spec)


if __name__ == "__main__":
    asyncio.run(main("process" if sys.argv[1:] == ["process"] else "docker"))
