"""`make bench-train`: air's side at tiny sizes, and the arithmetic of the table. TRL is not needed here."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch


@pytest.fixture
def bench() -> ModuleType:
    return importlib.import_module("bench.train.__main__")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small matrices gain nothing from threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["short", "turns"])
def test_airs_side_does_what_the_case_says(bench: ModuleType, tmp_path: Path, name: str) -> None:
    """Two rounds: each has the case's numbers of tokens and its own prompts, and changes the weights."""
    bench.build(tmp_path / "tiny", "tiny", max_length=128)
    case = bench.workload.cases("tiny")[name]
    with importlib.import_module("bench.train.air_side").Side(tmp_path / "tiny", case) as side:
        weights = side.policy.model.lm_head.weight
        before = weights.detach().clone()
        first = side.play(0)
        bench.check(case, {"air": first})
        assert not torch.equal(weights, before)
        second = side.play(1)
        bench.check(case, {"air": second})
        assert first["given"] != second["given"]
        given = [
            prompt + [token for turn in range(case.turns - 1) for token in read(case, turn, at)]
            for at, prompt in enumerate(p for p in case.prompts(1, 256) for _ in range(8))
        ]
        assert second["given"] == bench.workload.digest(given)


def read(case: Any, turn: int, episode: int) -> list[int]:
    found: list[int] = case.observations(1, turn, 256)[episode]
    return found


def side(**changes: float) -> dict[str, Any]:
    return {"trained_tokens": 64, "episode_tokens": 192, "given": "a"} | changes


def test_sides_that_do_different_work_end_the_benchmark(bench: ModuleType) -> None:
    """The case: 2 groups of 8 episodes with 8 + 4 tokens."""
    case = bench.workload.cases("tiny")["short"]
    bench.check(case, {"air": side(), "TRL": side()})
    with pytest.raises(SystemExit, match=r"TRL had .*'trained_tokens': 63"):
        bench.check(case, {"air": side(), "TRL": side(trained_tokens=63)})
    with pytest.raises(SystemExit, match="different prompts"):
        bench.check(case, {"air": side(), "TRL": side(given="b")})  # type: ignore[arg-type]


def test_bars_and_medians(bench: ModuleType) -> None:
    rounds = [{"sampling_s": s, "training_s": 2 * s} for s in (1.0, 9.0, 2.0)]
    assert bench.medians(rounds) == {"sampling_s": 2.0, "training_s": 4.0}
    trl = {"sampling_s": 6.0, "training_s": 6.0, "peak_mb": 1000.0}
    air_side = {"sampling_s": 2.0, "training_s": 4.0, "peak_mb": 500.0}
    result = {"model": "9M", "case": "turns", "median": {"air": air_side, "TRL": trl}}
    assert bench.ratios(result) == {"sampling_s": 3.0, "training_s": 1.5, "peak_mb": 0.5}
    assert bench.missed(result) == ["9M turns: training 1.50 times as fast, below 3"]
    assert bench.missed(result | {"case": "short"}) == []
