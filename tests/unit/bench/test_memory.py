"""`make bench-memory`: a step at tiny sizes, and what is reported as wrong."""

from __future__ import annotations

import importlib
from pathlib import Path


def test_a_step_does_what_it_says(tmp_path: Path) -> None:
    bench = importlib.import_module("bench.memory.step")
    step = bench.Step(
        episodes=3,
        tokens=40,
        prompt=30,
        reply=4,
        max_batch=2,
        prefix_cache_mb=1,
        micro_batch_tokens=64,
    )
    bench.build(tmp_path / "m", "tiny")
    found = bench.play(tmp_path / "m", "lora-bfloat16", step)
    assert found["trained_tokens"] == 3 * 4
    assert found["forward_tokens"] == 30 + 3 * 10
    # At this size, the program itself is nearly all of it, which the estimate leaves out.
    assert found["peak_gb"] >= max(found["sampling_gb"], found["training_gb"])
    assert 0 < found["estimate_gb"] < found["peak_gb"]


def test_what_is_wrong_is_named() -> None:
    bench = importlib.import_module("bench.memory.__main__")
    found = {"case": "full-float32", "peak_gb": 15.9, "estimate_gb": 15.0}
    assert bench.problems(found, 16) == []
    assert bench.problems(found | {"peak_gb": 16.0}, 16) == ["full-float32: 16.0 GB, not below 16"]
    assert bench.problems(found | {"estimate_gb": 14.0}, 16) == [
        "full-float32: the estimate of 14.0 GB is off, 15.9 measured"
    ]
