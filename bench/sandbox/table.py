"""Measures times for `bench/sandbox` and prints the table of results."""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from rich.console import Console
from rich.table import Table

from air.sandbox.docker import engine

MS = 1000.0
PAUSE = 0.1
"""The pause before each timed batch, in seconds. It lets the container engine finish cleaning up after the
previous batch."""
Batch = Callable[[Any], Awaitable[list[float]]]


@dataclass
class Row:
    """One line of the benchmark's table: the values of one measurement (`what`) on one of the compared
    sides."""

    what: str
    side: str
    unit: str
    p50: float
    p99: float
    """The 99th percentile; the maximum if there are fewer than 100 values."""
    count: int
    bar: str = ""
    """The limit that the row must meet, in words; empty if there is none."""
    held: bool | None = None
    """Whether the row meets its limit; None if there is no limit."""

    def ask(self, bar: str, held: bool) -> None:
        """Stores the limit that the row must meet, in words, and whether the row meets it."""
        self.bar, self.held = bar, held


@dataclass
class Bench:
    """Collects the rows of the table, and notes for its reader."""

    quick: bool
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def rounds(self, full: int) -> int:
        """Returns the number of rounds to measure: `full`, or a sixth of it (at least 2) in a quick run."""
        return max(2, full // 6) if self.quick else full

    def add(self, what: str, side: str, unit: str, values: Sequence[float]) -> Row:
        """Adds a row with the median and the 99th percentile of `values`, and returns it."""
        middle, most = statistics.median(values), percentile(values, 99)
        row = Row(what, side, unit, middle, most, len(values))
        self.rows.append(row)
        return row

    def note(self, text: str) -> None:
        """Prints a note to standard error, and stores it."""
        self.notes.append(text)
        print(text, file=sys.stderr)


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns a percentile of `values` by the nearest-rank method, without interpolation."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))]


async def timed(work: Awaitable[Any]) -> float:
    """Awaits `work`; returns the milliseconds that it took."""
    begun = time.perf_counter()
    await work
    return (time.perf_counter() - begun) * MS


async def in_turns(
    rounds: int, subjects: Mapping[str, Any], batch: Batch
) -> dict[str, list[float]]:
    """Calls `batch` with each of the compared subjects in each round; returns all values of each subject, by
    its name. The order of the subjects is reversed in every other round. The values of one additional round
    at the beginning are discarded. A pause precedes each call, so that no subject is timed while the
    container engine still cleans up after the previous one."""
    found: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(rounds + 1):
        for name in list(subjects) if turn % 2 else list(reversed(subjects)):
            await asyncio.sleep(PAUSE)
            values = await batch(subjects[name])
            found[name] += values if turn else []
    return found


def report(bench: Bench) -> None:
    """Prints the table of all rows."""
    table = Table(title=f"Boxes on {os.cpu_count()} cores", title_justify="left")
    for name in ("what", "side"):
        table.add_column(name)
    for name in ("p50", "p99", "unit", "n"):
        table.add_column(name, justify="right")
    for name in ("asked for", "held"):
        table.add_column(name)
    last = ""
    for row in bench.rows:
        held = "" if row.held is None else "yes" if row.held else "NO"
        p99 = "" if row.count == 1 else _number(row.p99)
        what, last = row.what if row.what != last else "", row.what
        cells = (what, row.side, _number(row.p50), p99, row.unit, str(row.count), row.bar, held)
        table.add_row(*cells)
    Console(width=120).print(table)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def machine() -> dict[str, Any]:
    """Returns the properties of this machine on which the results depend: cores, load, and versions."""
    return {
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "engine": engine.client().version()["Version"],
        "verifiers": version("verifiers"),
    }
