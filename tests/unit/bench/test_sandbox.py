"""`make bench-sandbox`: the limits that results must meet."""

from __future__ import annotations

import importlib
from typing import Any

import pytest


@pytest.fixture
def bench() -> Any:
    return importlib.import_module("bench.sandbox.__main__")


def _row(bench: Any, p50: float, p99: float = 0.0) -> Any:
    return bench.Row("what", "side", "ms", p50, p99, 100)


@pytest.mark.parametrize(
    ("at_once", "p50", "p99", "bar", "held"),
    [
        (1, 5.0, 90.0, "p50 ≤ 5", True),
        (1, 5.1, 5.2, "p50 ≤ 5", False),
        (8, 900.0, 900.0, "", None),
        (32, 90.0, 50.0, "p99 ≤ 1.25 x `no sandbox` = 50.0", True),
        (32, 10.0, 50.1, "p99 ≤ 1.25 x `no sandbox` = 50.0", False),
    ],
)
def test_commands_are_compared_with_plain_processes_of_the_same_run(
    bench: Any, at_once: int, p50: float, p99: float, bar: str, held: bool | None
) -> None:
    rows = {bench.AIR: _row(bench, p50, p99), bench.BARE.name: _row(bench, 30.0, 40.0)}
    bench.ask_of_commands(at_once, rows)
    assert (rows[bench.AIR].bar, rows[bench.AIR].held) == (bar, held)
    assert rows[bench.BARE.name].held is None


@pytest.mark.parametrize(
    ("count", "seconds", "bar", "held"),
    [(64, 6.0, "≤ 6", True), (64, 6.1, "≤ 6", False), (16, 9.0, "", None)],
)
def test_64_boxes_must_have_run_a_command_in_time(
    bench: Any, count: int, seconds: float, bar: str, held: bool | None
) -> None:
    row = _row(bench, seconds)
    bench.ask_of_many(count, row)
    assert (row.bar, row.held) == (bar, held)
