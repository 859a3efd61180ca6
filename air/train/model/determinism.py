"""Makes training reproducible: seeds the global random generators, and selects torch's deterministic
algorithms."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


def seed_generators(seed: int, step: int) -> None:
    """Seeds the global random generators of Python, numpy and torch for the update of training step `step`,
    from the run's seed `seed`.

    So code that uses these generators during an update, such as a user's advantage function, draws the same
    numbers in a resumed run, although checkpoints do not have the generators' states.
    """
    text = f"update {seed} {step}"
    number = random.Random(text).getrandbits(32)
    random.seed(text)
    np.random.seed(number)
    torch.manual_seed(number)


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Context manager: if `wanted`, torch uses only deterministic algorithms during the `with` block. If a
    GPU is used, the block must begin before the first matrix product of the process. At this product, cuBLAS
    reads the environment variable `CUBLAS_WORKSPACE_CONFIG`, which this function sets."""
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault(_CUBLAS, ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
