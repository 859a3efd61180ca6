"""Defines a finding, which `air doctor RUN` shows: a problem of a training run, the step when it began, the
measured numbers, and a remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One known problem that a check has found in a training run."""

    check: str
    """The name of the check, such as `entropy collapse`."""
    state: Literal["fail", "warn"]
    """`fail`: the run learns the wrong thing or nothing. `warn`: the run only wastes time."""
    step: int
    """The training step at which the problem began."""
    numbers: str
    """The measured numbers, as text."""
    remedy: str
    """The remedy as text, which names the keys of the run file to change."""
