"""How `bench/sandbox.py` takes its times, and the table it makes of them."""

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
"""Seconds before each timed batch."""
Batch = Callable[[Any], Awaitable[list[float]]]


@dataclass
class Row:
    """One line of the table."""

    what: str
    side: str
    unit: str
    p50: float
    p99: float
    """Of fewer than 100 values the largest."""
    count: int
    bar: str = ""
    """What is asked for, in words."""
    held: bool | None = None
    """Whether it was reached; None where nothing is asked for."""

    def ask(self, bar: str, held: bool) -> None:
        """Notes what is asked of this row."""
        self.bar, self.held = bar, held


@dataclass
class Bench:
    """Collects rows, and what a reader must know beside them."""

    quick: bool
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def rounds(self, full: int) -> int:
        """How often something is done: a sixth of it where the run is to be quick."""
        return max(2, full // 6) if self.quick else full

    def add(self, what: str, side: str, unit: str, values: Sequence[float]) -> Row:
        """One row of many values."""
        middle, most = statistics.median(values), percentile(values, 99)
        row = Row(what, side, unit, middle, most, len(values))
        self.rows.append(row)
        return row

    def note(self, text: str) -> None:
        """Says something at once, and keeps it."""
        self.notes.append(text)
        print(text, file=sys.stderr)


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest rank."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))]


async def timed(work: Awaitable[Any]) -> float:
    """Milliseconds that something took."""
    begun = time.perf_counter()
    await work
    return (time.perf_counter() - begun) * MS


async def in_turns(
    rounds: int, subjects: Mapping[str, Any], batch: Batch
) -> dict[str, list[float]]:
    """Each subject's values over all rounds, every other one in the opposite order; the values of one
    more round, the first, are thrown away. Each begins after a pause, so that no side is timed while the
    engine still clears up after another one's commands."""
    found: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(rounds + 1):
        for name in list(subjects) if turn % 2 else list(reversed(subjects)):
            await asyncio.sleep(PAUSE)
            values = await batch(subjects[name])
            found[name] += values if turn else []
    return found


def report(bench: Bench) -> None:
    """Prints the table."""
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
    """What the numbers depend on."""
    return {
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "engine": engine.client().version()["Version"],
        "verifiers": version("verifiers"),
    }
