"""Measures how fast boxes are, beside other ways to start containers: `make bench-sandbox`.

    python -m bench.sandbox --quick --json outputs/quick.json

All sides (the compared ways) run on this machine, in alternating order, so that other load affects each side
equally. The first measurement of each side is discarded. Commands "at once" start at the same moment in one
box. "no sandbox" runs the same command as a plain process of this machine, which is the fastest possible. A
p99 of fewer than 100 values is their maximum. The exit code is 0 if the results meet all required limits,
else 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from air.errors import AirError
from air.sandbox.contract.box import Box, BoxSpec
from air.sandbox.docker import air_images
from air.sandbox.pool.box_pool import Pool
from bench.sandbox import sides as sandbox_sides
from bench.sandbox.sides import AIR, BARE, DOCKER, LIMITS, PROCESS, SPEC, Live, Side, WithFiles
from bench.sandbox.table import MS, Bench, Row, in_turns, machine, report, timed

SIZES = {"1 MB": (10**6, 10), "100 MB": (10**8, 1000), "1 GB": (10**9, 1000)}
"""The workspaces that are frozen and copied: (bytes, number of files), by name."""
ROOM = 6
"""A workspace is measured only if the free memory is at least this multiple of its size, because several
copies of it exist at once."""
COPY = "copytree on the disk"
BESIDE_BARE = 1.25
"""The maximum ratio of the p99 of 32 simultaneous commands in a box to that of plain processes in the same
run."""
MANY, MANY_SECONDS = 64, 6.0
"""The number of boxes that exist at the same time, and the maximum seconds until each has run a command."""


@contextlib.asynccontextmanager
async def one_of_each(sides: Sequence[Side]) -> AsyncIterator[dict[str, Live]]:
    """Async context manager: starts one container, box or process runner of each side, by the side's name,
    and ends all of them at the end."""
    async with contextlib.AsyncExitStack() as stack:
        found: dict[str, Live] = {}
        for side in sides:
            found[side.name] = await side.start()
            stack.push_async_callback(found[side.name].end)
        yield found


async def commands(bench: Bench, sides: Sequence[Side]) -> None:
    """Measures the command `true`: the milliseconds of 1, 8 and 32 simultaneous commands; then the commands
    per second of 32 workers, and the milliseconds of each command."""
    rates: dict[str, list[float]] = {}

    async def second(name: str) -> list[float]:
        begun, each = time.perf_counter(), list[float]()

        async def worker() -> None:
            while time.perf_counter() < begun + 1:
                each.append(await timed(subjects[name].true()))

        await asyncio.gather(*(worker() for _ in range(32)))
        rates.setdefault(name, []).append(len(each) / (time.perf_counter() - begun))
        return each

    async with one_of_each((*sides, BARE)) as subjects:
        for at_once, rounds in ((1, 200), (8, 60), (32, 30)):

            async def batch(subject: Live, at_once: int = at_once) -> list[float]:
                return await asyncio.gather(*(timed(subject.true()) for _ in range(at_once)))

            found = await in_turns(bench.rounds(rounds), subjects, batch)
            what = f"`true`, {at_once} at once"
            rows = {name: bench.add(what, name, "ms", values) for name, values in found.items()}
            ask_of_commands(at_once, rows)
        found = await in_turns(bench.rounds(12), {name: name for name in subjects}, second)
    for name in found:
        bench.add("`true`, 32 workers", name, "1/s", rates[name][1:])
    for name, values in found.items():
        bench.add("`true`, 32 workers, each", name, "ms", values)


def ask_of_commands(at_once: int, rows: Mapping[str, Row]) -> None:
    """Sets the limit of air's Docker boxes for `at_once` simultaneous commands. `rows` has the row of each
    side by its name."""
    row = rows[AIR]
    if at_once == 1:
        row.ask("p50 ≤ 5", row.p50 <= 5)
    elif at_once == 32:
        most = BESIDE_BARE * rows[BARE.name].p99
        row.ask(f"p99 ≤ {BESIDE_BARE:g} x `{BARE.name}` = {most:.1f}", row.p99 <= most)


async def copies(bench: Bench, sides: Sequence[Side]) -> None:
    """Measures, for each of the compared sides, the milliseconds for copying a file of 10 MB into a container
    or box, and out of it."""
    with tempfile.TemporaryDirectory(prefix="air-bench-") as name:
        folder = Path(name)
        (folder / "file").write_bytes(os.urandom(10_000_000))

        async def put(subject: WithFiles) -> list[float]:
            return [await timed(subject.put(folder / "file"))]

        async def get(subject: WithFiles) -> list[float]:
            return [await timed(subject.get(folder))]

        async with one_of_each(sides) as subjects:
            for what, batch in (("put 10 MB", put), ("get 10 MB", get)):
                for side, values in (await in_turns(bench.rounds(18), subjects, batch)).items():
                    bench.add(what, side, "ms", values)


async def lives(bench: Bench, sides: Sequence[Side]) -> None:
    """Measures for each of the compared sides: the time in which a container or box starts from nothing
    (without a pool), its memory while idle, and the time from its end until it no longer exists."""
    ends: dict[str, list[float]] = {}
    held: dict[str, list[float]] = {}

    async def one(side: Side) -> list[float]:
        before, begun = sandbox_sides.children(), time.perf_counter()
        subject = await side.start()
        took = (time.perf_counter() - begun) * MS
        try:
            await subject.true()
            new = sandbox_sides.children() - before
            held.setdefault(side.name, []).append(sandbox_sides.memory_mb(subject, new))
        finally:
            ends.setdefault(side.name, []).append(await timed(_ended(subject)))
        return [took]

    if len(sides) > 2:
        plain = lambda: sandbox_sides.run_detached("--network", "none")  # noqa: E731
        sides = (*sides, Side(f"{DOCKER}, no network", plain))
    found = await in_turns(bench.rounds(20), {side.name: side for side in sides}, one)
    rows = {name: bench.add("from nothing", name, "ms", v) for name, v in found.items()}
    if DOCKER in rows:
        most = 1.1 * rows[DOCKER].p50
        rows[AIR].ask(f"p50 ≤ 1.1 x `docker run -d` = {most:.0f}", rows[AIR].p50 <= most)
    for name in found:
        row = bench.add("its end, until it is gone", name, "ms", ends[name][1:])
        if name == AIR:
            row.ask("p50 ≤ 300", row.p50 <= 300)
    for name in found:
        bench.add("memory, idle", name, "MB", held[name][1:])


async def _ended(subject: Live) -> None:
    await subject.end()
    while not await subject.gone():  # noqa: ASYNC110 — the engine tells nobody
        await asyncio.sleep(0.002)


async def pools(bench: Bench, _sides: Sequence[Side]) -> None:
    """Measures the time to lease a box from the pool when one is ready, and the time that returning it takes
    the caller."""
    specs = {AIR: SPEC, PROCESS: _in_process(SPEC)}
    backs: dict[str, list[float]] = {name: [] for name in specs}
    async with Pool(16, warm=2) as pool:

        async def one(name: str) -> list[float]:
            pool.prepare(specs[name])
            await _idle(pool, 2 * len(specs))
            lease, begun = pool.lease(specs[name]), time.perf_counter()
            async with lease as box:
                took = (time.perf_counter() - begun) * MS
                await box.exec(["true"], timeout=60)
                begun = time.perf_counter()
            backs[name].append((time.perf_counter() - begun) * MS)
            return [took]

        for spec in specs.values():
            pool.prepare(spec)
        found = await in_turns(bench.rounds(30), {name: name for name in specs}, one)
    for name, values in found.items():
        row = bench.add("from the warm pool", name, "ms", values)
        row.ask("p50 ≤ 50", row.p50 <= 50)
    for name, values in backs.items():
        bench.add("giving it back, caller's time", name, "ms", values[1:])


async def _idle(pool: Pool, spares: int) -> None:
    while not pool.stats.live == pool.stats.started - pool.stats.closed == spares:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def many(bench: Bench, _sides: Sequence[Side]) -> None:
    """Measures 64 boxes that exist at the same time (16 with `--quick`): the time until each has run a
    command, the time until all are gone, and the number of failures."""
    count = 16 if bench.quick else MANY
    arrived, failed, all_in = 0, 0, asyncio.Event()

    async def one(pool: Pool) -> None:
        nonlocal arrived, failed
        try:
            async with pool.lease(SPEC) as box:
                failed += not (await box.exec(["true"], timeout=60)).ok
                arrived += 1
                if arrived == count:
                    all_in.set()
                await all_in.wait()
        except AirError as error:
            bench.note(f"one of {count} boxes failed: {error}")
            arrived, failed = arrived + 1, failed + 1
            if arrived == count:
                all_in.set()

    begun = time.perf_counter()
    async with Pool(count) as pool, asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(one(pool))
        await asyncio.wait_for(all_in.wait(), 600)
        started = time.perf_counter()
    ended = time.perf_counter()
    row = bench.add(f"{count} at once: all have run `true`", AIR, "s", [started - begun])
    ask_of_many(count, row)
    bench.add(f"{count} at once: until all are gone", AIR, "s", [ended - started])
    bench.add(f"{count} at once: failed", AIR, "", [failed]).ask("0", not failed)


def ask_of_many(count: int, row: Row) -> None:
    """Sets the limit of the time until `count` simultaneous boxes have run a command. Only the full run has
    such a limit."""
    if count == MANY:
        row.ask(f"≤ {MANY_SECONDS:g}", row.p50 <= MANY_SECONDS)


async def snapshots(bench: Bench, _sides: Sequence[Side]) -> None:
    """Measures the time to take a snapshot of a workspace, and the time to lease a box from the snapshot and
    read one byte in it."""
    if not hasattr(Box, "snapshot"):
        bench.note("Snapshots are left out: boxes have none.")
        return
    for size, (total, files) in SIZES.items():
        if total * ROOM > sandbox_sides.free_bytes():
            bench.note(f"Snapshots of {size} are left out: less than {ROOM} times that is free.")
            continue
        disk = LIMITS.model_copy(update={"disk_mb": total // 10**6 + 200})
        await _snapshots(bench, size, files, SPEC.model_copy(update={"limits": disk}))


async def _snapshots(bench: Bench, size: str, files: int, spec: BoxSpec) -> None:
    specs = {AIR: spec, PROCESS: _in_process(spec)}
    frozen: dict[str, list[float]] = {name: [] for name in specs}
    each = f"head -c {SIZES[size][0] // files} /dev/zero >$i"
    fill = f"mkdir d && cd d && for i in $(seq {files}); do {each}; done; echo x >../byte"

    async def one(name: str) -> list[float]:
        if name == COPY:
            return [await asyncio.to_thread(_copied, SIZES[size][0] // files, files)]
        async with pool.lease(specs[name]) as box:
            assert (await box.exec(fill, timeout=600)).ok
            begun = time.perf_counter()
            snapshot = await box.snapshot()
            frozen[name].append((time.perf_counter() - begun) * MS)
        async with snapshot:
            await _idle(pool, len(specs))
            begun = time.perf_counter()
            async with pool.lease(specs[name], snapshot=snapshot) as fork:
                assert await fork.read("byte") == b"x\n"
                return [(time.perf_counter() - begun) * MS]

    async with Pool(6, warm=1) as pool:
        # What keeps the snapshots of a process starts with the first one and ends with the last.
        async with pool.lease(spec) as box:
            begun = time.perf_counter()
            first = await box.snapshot()
        bench.add("first snapshot of a process", AIR, "ms", [(time.perf_counter() - begun) * MS])
        async with first:
            for other in specs.values():
                pool.prepare(other)
            rounds = bench.rounds(6 if files * 10**6 == SIZES[size][0] else 12)
            found = await in_turns(rounds, {name: name for name in (*specs, COPY)}, one)
    for name, values in frozen.items():
        row = bench.add(f"snapshot of {size}", name, "ms", values[1:])
        if name == AIR:
            row.ask("p50 ≤ 50", row.p50 <= 50)
    for name, values in found.items():
        row = bench.add(f"new workspace of {size}", name, "ms", values)
        if name == AIR:
            row.ask("p50 ≤ 50", row.p50 <= 50)


def _in_process(spec: BoxSpec) -> BoxSpec:
    return spec.model_copy(update={"provider": "process"})


def _copied(size: int, files: int) -> float:
    """Returns the milliseconds for copying a folder of `files` files with `size` bytes each on the disk, and
    reading one byte of the copy."""
    with tempfile.TemporaryDirectory(prefix="air-bench-") as name:
        source, copy = Path(name) / "source", Path(name) / "copy"
        source.mkdir()
        for index in range(files):
            (source / str(index)).write_bytes(bytes(size))
        begun = time.perf_counter()
        shutil.copytree(source, copy)
        with (copy / "0").open("rb") as file:
            assert file.read(1) == b"\0"
        return (time.perf_counter() - begun) * MS


SECTIONS = {
    "commands": commands,
    "copies": copies,
    "lives": lives,
    "pools": pools,
    "many": many,
    "snapshots": snapshots,
}


async def run(args: argparse.Namespace) -> int:
    """Runs the selected measurements, prints the table, and writes the JSON file. Returns the exit code."""
    bench, found = Bench(args.quick), {"begun": machine()}
    sides = sandbox_sides.sides()
    if len(sides) == 2:
        bench.note("There is no `docker` command here: the peers are left out.")
    gc.collect()
    gc.freeze()  # one look through all that was imported takes 20 ms, and would fall on some batch
    for name in args.only or SECTIONS:
        print(f"{name} …", file=sys.stderr)
        await SECTIONS[name](bench, sides)
    report(bench)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    found |= {"ended": machine(), "notes": bench.notes, "rows": [*map(asdict, bench.rows)]}
    args.json.write_text(json.dumps(found, indent=1))
    held = [row.held for row in bench.rows if row.held is not None]
    print(f"{held.count(True)} of {len(held)} bars held")
    return 0 if all(held) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, 16 boxes at once")
    parser.add_argument("--only", choices=SECTIONS, nargs="+", default=[], help="these parts")
    parser.add_argument("--json", type=Path, default=Path("outputs/bench-sandbox.json"))
    args = parser.parse_args()
    if why := air_images.why_not_ready():
        parser.error(f"{why} — run `air setup`")
    return asyncio.run(run(args))


if __name__ == "__main__":
    raise SystemExit(main())
