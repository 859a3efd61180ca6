"""Makes training repeatable: seeds global random generators, and selects torch's deterministic algorithms."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


def seed_generators(seed: int, step: int) -> None:
    """Seeds the global random generators of Python, numpy and torch for the update of training step `step`.

    So code that draws random numbers during an update (dropout, a user's estimator) draws the same numbers
    after a resume, and no generator's state has to be saved.
    """
    text = f"update {seed} {step}"
    number = random.Random(text).getrandbits(32)
    random.seed(text)
    np.random.seed(number)
    torch.manual_seed(number)


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Context manager: if `wanted`, torch uses only deterministic algorithms during the `with` block. On a
    GPU, enter it before the first matrix product, because cuBLAS then reads its setting."""
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
