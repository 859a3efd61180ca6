"""How fast are boxes? `make bench-sandbox`: one run, one table, ours beside what others do.

    python bench/sandbox.py --quick --json outputs/sandbox.json

All sides run on this machine, in turns that alternate, so that what else happens on it hits each. What
is measured first by each side does not count. Commands "at once" start in the same moment in one box.
A p99 of fewer than 100 values is the largest of them. Exit code 0 when every bar is held, else 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import sandbox_sides
from rich.console import Console
from rich.table import Table
from sandbox_sides import AIR, DOCKER, LIMITS, PROCESS, SPEC, Live, Side

from air.sandbox import docker, images
from air.sandbox.base import Box, BoxSpec
from air.sandbox.pool import Pool

MS = 1000.0
SIZES = {"1 MB": 10, "100 MB": 1000, "1 GB": 1000}
"""Sizes of workspaces, and in how many files."""
FREE_MB = 6_000
"""Memory that must be free for a workspace of 1 GB and its copies."""
BYTES = {"1 MB": 10**6, "100 MB": 10**8, "1 GB": 10**9}


@dataclass
class Row:
    """One line of the table."""

    what: str
    side: str
    unit: str
    p50: float
    p99: float | None = None
    count: int = 1
    bar: str = ""
    """What is asked for, in words."""
    held: bool | None = None
    """Whether it was reached; None where nothing is asked for."""


class Bench:
    """Collects rows, and says how far it is."""

    def __init__(self, quick: bool, only: Sequence[str]) -> None:
        self.quick, self.only = quick, only
        self.rows: list[Row] = []
        self.notes: list[str] = []

    def rounds(self, full: int) -> int:
        """How often something is done: a sixth of it where the run is to be quick."""
        return max(2, full // 6) if self.quick else full

    def add(self, what: str, side: str, unit: str, values: Sequence[float]) -> Row:
        """One row of many values."""
        row = Row(what, side, unit, percentile(values, 0.5), percentile(values, 0.99), len(values))
        self.rows.append(row)
        return row

    def note(self, text: str) -> None:
        """Something that a reader must know."""
        self.notes.append(text)
        print(text, file=sys.stderr)


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest rank."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))]


def bar(row: Row, asked: str, held: bool) -> None:
    """Notes what was asked of a row."""
    row.bar, row.held = asked, held


async def timed(work: Awaitable[Any]) -> float:
    """Milliseconds that something took."""
    begun = time.perf_counter()
    await work
    return (time.perf_counter() - begun) * MS


Batch = Callable[[Any], Awaitable[list[float]]]


async def in_turns(rounds: int, subjects: dict[str, Any], batch: Batch) -> dict[str, list[float]]:
    """Each subject's values over all rounds, every other one in the opposite order; a first round is
    thrown away."""
    found: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(rounds + 1):
        order = list(subjects) if turn % 2 else list(reversed(subjects))
        for name in order:
            values = await batch(subjects[name])
            found[name] += values if turn else []
    return found


@contextlib.asynccontextmanager
async def live(sides: Sequence[Side]) -> AsyncIterator[dict[str, Live]]:
    """One of each side, taken away at the end."""
    async with contextlib.AsyncExitStack() as stack:
        found: dict[str, Live] = {}
        for side in sides:
            found[side.name] = await side.start()
            stack.push_async_callback(found[side.name].end)
        yield found


# What is measured


async def commands(bench: Bench, sides: Sequence[Side]) -> None:
    """`true`, 1, 8 and 32 at once; and how many of them in a second."""
    async with live(sides) as subjects:
        for at_once in (1, 8, 32):

            async def batch(subject: Live, at_once: int = at_once) -> list[float]:
                return list(await asyncio.gather(*(timed(subject.true()) for _ in range(at_once))))

            rounds = bench.rounds({1: 200, 8: 60, 32: 30}[at_once])
            for name, values in (await in_turns(rounds, subjects, batch)).items():
                row = bench.add(f"`true`, {at_once} at once", name, "ms", values)
                if name == AIR and at_once == 1:
                    bar(row, "p50 ≤ 5", row.p50 <= 5)
                if name == AIR and at_once == 32:
                    bar(row, "p99 ≤ 20", percentile(values, 0.99) <= 20)

        async def second(subject: Live) -> list[float]:
            begun, done = time.perf_counter(), 0

            async def worker() -> None:
                nonlocal done
                while time.perf_counter() < begun + 1:
                    await subject.true()
                    done += 1

            await asyncio.gather(*(worker() for _ in range(32)))
            return [done / (time.perf_counter() - begun)]

        for name, values in (await in_turns(bench.rounds(12), subjects, second)).items():
            bench.add("commands, 32 workers", name, "1/s", values)


async def copies(bench: Bench, sides: Sequence[Side]) -> None:
    """10 MB in and out."""
    with tempfile.TemporaryDirectory(prefix="air-bench-") as name:
        folder = Path(name)
        (folder / "file").write_bytes(os.urandom(10_000_000))
        async with live(sides) as subjects:
            put = lambda subject: _one(subject.put(folder / "file"))
            get = lambda subject: _one(subject.get(folder))
            for what, batch in (("put 10 MB", put), ("get 10 MB", get)):
                found = await in_turns(bench.rounds(18), subjects, batch)
                for side, values in found.items():
                    bench.add(what, side, "ms", values)


async def _one(work: Awaitable[Any]) -> list[float]:
    return [await timed(work)]


async def lives(bench: Bench, sides: Sequence[Side]) -> None:
    """From nothing to a box, its memory, and its end: the caller's time, and until it is gone."""
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
            begun = time.perf_counter()
            await subject.end()
            while not await subject.gone():
                await asyncio.sleep(0.002)
            ends.setdefault(side.name, []).append((time.perf_counter() - begun) * MS)
        return [took]

    plain = Side(f"{DOCKER}, no network", lambda: sandbox_sides.run_detached("--network", "none"))
    known = {side.name: side for side in (*sides, *([plain] if len(sides) > 2 else []))}
    found = await in_turns(bench.rounds(20), known, one)
    rows = {name: bench.add("a box from nothing", name, "ms", v) for name, v in found.items()}
    if DOCKER in rows:
        most = 1.1 * rows[DOCKER].p50
        bar(rows[AIR], f"p50 ≤ 1.1 x `docker run -d` = {most:.0f}", rows[AIR].p50 <= most)
    for name, values in ends.items():
        row = bench.add("its end, until it is gone", name, "ms", values[1:])
        if name == AIR:
            bar(row, "p50 ≤ 300", row.p50 <= 300)
    for name, values in held.items():
        bench.add("memory, idle", name, "MB", values[1:])


async def pools(bench: Bench, _sides: Sequence[Side]) -> None:
    """From the warm pool, with a spare ready; and giving it back, which waits for nothing."""
    specs = {AIR: SPEC, PROCESS: SPEC.model_copy(update={"provider": "process"})}
    async with Pool(16, warm=2) as pool:
        for spec in specs.values():
            pool.prepare(spec)
        backs: dict[str, list[float]] = {}

        async def one(name: str) -> list[float]:
            await _idle(pool, 2 * len(specs))
            lease = pool.lease(specs[name])
            begun = time.perf_counter()
            box = await lease.__aenter__()
            took = (time.perf_counter() - begun) * MS
            await box.exec(["true"], timeout=60)
            backs.setdefault(name, []).append(await timed(lease.__aexit__(None, None, None)))
            return [took]

        found = await in_turns(bench.rounds(30), {name: name for name in specs}, one)
    for name, values in found.items():
        row = bench.add("a box from the warm pool", name, "ms", values)
        bar(row, "p50 ≤ 50", row.p50 <= 50)
    for name, values in backs.items():
        bench.add("giving it back, caller's time", name, "ms", values[1:])


async def _idle(pool: Pool, spares: int) -> None:
    while not pool.stats.live == pool.stats.started - pool.stats.closed == spares:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def many(bench: Bench, _sides: Sequence[Side]) -> None:
    """64 boxes that live at once: until each has run a command, and until all are gone."""
    count = 16 if bench.quick else 64
    failed = 0
    ready, go_on = asyncio.Barrier(count), time.perf_counter()

    async def one(pool: Pool) -> None:
        nonlocal failed
        try:
            async with pool.lease(SPEC) as box:
                failed += not (await box.exec(["true"], timeout=60)).ok
                await ready.wait()
        except Exception as error:  # whatever it was, it is counted and shown; the others go on
            failed += 1
            bench.note(f"one of {count} boxes failed: {error}")
            await ready.abort()

    async with Pool(count) as pool:
        tasks = [asyncio.create_task(one(pool)) for _ in range(count)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        started = time.perf_counter() - go_on
        await asyncio.gather(*tasks)
    ended = time.perf_counter() - go_on - started
    bench.add(f"{count} boxes at once, started and used", AIR, "s", [started])
    bench.add(f"{count} boxes at once, until all are gone", AIR, "s", [ended])
    bar(bench.add(f"{count} boxes at once, failed", AIR, "", [failed]), "0", not failed)


# Snapshots


async def snapshots(bench: Bench, _sides: Sequence[Side]) -> None:
    """A frozen workspace, and a new one from it, until a byte written before was read there."""
    if not hasattr(Box, "snapshot"):
        bench.note("Snapshots are left out: boxes have none.")
        return
    for size, files in SIZES.items():
        if BYTES[size] * 6 / 1e6 > _free_mb():
            bench.note(f"Snapshots of {size} are left out: less than {FREE_MB} MB are free.")
            continue
        disk = BYTES[size] // 10**6 + 200
        spec = SPEC.model_copy(update={"limits": LIMITS.model_copy(update={"disk_mb": disk})})
        await _snapshots(bench, size, files, {AIR: spec, PROCESS: _process(spec)})


def _process(spec: BoxSpec) -> BoxSpec:
    return spec.model_copy(update={"provider": "process"})


async def _snapshots(bench: Bench, size: str, files: int, specs: dict[str, BoxSpec]) -> None:
    frozen: dict[str, list[float]] = {}
    fill = f"mkdir d && cd d && for i in $(seq {files}); do head -c {BYTES[size] // files} /dev/zero >$i; done"

    async def one(name: str) -> list[float]:
        if name == COPY:
            return await asyncio.to_thread(_copy, size, files)
        async with pool.lease(specs[name]) as box:
            assert (await box.exec(f"{fill}; echo x >../byte", timeout=600)).ok
            begun = time.perf_counter()
            snapshot = await box.snapshot()
            frozen.setdefault(name, []).append((time.perf_counter() - begun) * MS)
        async with snapshot:
            pool.prepare(specs[name])
            await _idle(pool, 2)
            begun = time.perf_counter()
            async with pool.lease(specs[name], snapshot=snapshot) as fork:
                assert await fork.read("byte") == b"x\n"
                return [(time.perf_counter() - begun) * MS]

    async with Pool(6, warm=1) as pool:
        for spec in specs.values():
            pool.prepare(spec)
        subjects = dict.fromkeys((*specs, COPY))
        found = await in_turns(bench.rounds(12), {name: name for name in subjects}, one)
    for name, values in frozen.items():
        row = bench.add(f"snapshot of {size}", name, "ms", values[1:])
        if name == AIR:
            bar(row, "p50 ≤ 50", row.p50 <= 50)
    for name, values in found.items():
        row = bench.add(f"new workspace of {size}", name, "ms", values)
        if name == AIR:
            bar(row, "p50 ≤ 50", row.p50 <= 50)


COPY = "`cp -a` of the folder"


def _copy(size: str, files: int) -> list[float]:
    """Milliseconds that a copy on this machine's disk takes."""
    with tempfile.TemporaryDirectory(prefix="air-bench-") as name:
        source = Path(name) / "source"
        source.mkdir()
        for index in range(files):
            (source / str(index)).write_bytes(bytes(BYTES[size] // files))
        begun = time.perf_counter()
        shutil.copytree(source, Path(name) / "copy")
        assert (Path(name) / "copy" / "0").open("rb").read(1) == b"\0"
        return [(time.perf_counter() - begun) * MS]


def _free_mb() -> float:
    rows = Path("/proc/meminfo").read_text().splitlines()
    return next(int(row.split()[1]) / 1e3 for row in rows if row.startswith("MemAvailable:"))


# The report


SECTIONS = {
    "commands": commands,
    "copies": copies,
    "lives": lives,
    "pools": pools,
    "many": many,
    "snapshots": snapshots,
}


def report(bench: Bench) -> None:
    """Prints the table."""
    table = Table(title=f"Boxes on {machine()['cpus']} cores", title_justify="left")
    for name in ("what", "side"):
        table.add_column(name)
    for name in ("p50", "p99", "unit", "n"):
        table.add_column(name, justify="right")
    table.add_column("asked for")
    table.add_column("held")
    last = ""
    for row in bench.rows:
        held = "" if row.held is None else "yes" if row.held else "NO"
        p99 = "" if row.p99 is None or row.count == 1 else _number(row.p99)
        what = row.what if row.what != last else ""
        table.add_row(
            what, row.side, _number(row.p50), p99, row.unit, str(row.count), row.bar, held
        )
        last = row.what
    Console(width=120).print(table)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    engine = docker.client().version()
    return {
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "engine": engine["Version"],
        "verifiers": version("verifiers"),
    }


async def run(args: argparse.Namespace) -> int:
    bench, begun = Bench(args.quick, args.only), machine()
    sides = sandbox_sides.sides()
    if len(sides) == 2:
        bench.note("There is no `docker` command here: the peers are left out.")
    for name in args.only or SECTIONS:
        print(f"{name} …", file=sys.stderr)
        await SECTIONS[name](bench, sides)
    report(bench)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        found = {"begun": begun, "ended": machine(), "notes": bench.notes}
        found["rows"] = [asdict(row) for row in bench.rows]
        args.json.write_text(json.dumps(found, indent=1))
    missed = [row for row in bench.rows if row.held is False]
    print(f"{len(missed)} of {sum(row.held is not None for row in bench.rows)} bars missed")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, 16 boxes at once")
    parser.add_argument("--only", choices=SECTIONS, nargs="+", default=[], help="these parts")
    parser.add_argument("--json", type=Path, help="write the numbers there, too")
    args = parser.parse_args()
    if why := images.unready():
        parser.error(f"{why} — run `air setup`")
    return asyncio.run(run(args))


if __name__ == "__main__":
    raise SystemExit(main())
