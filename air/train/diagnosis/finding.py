"""Defines a finding of `air doctor RUN`: what is wrong, since which step, in numbers, and what helps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One known way to go wrong that a run shows."""

    check: str
    """The name of the check, such as `entropy collapse`."""
    state: Literal["fail", "warn"]
    """`fail`: the run learns the wrong thing or nothing. `warn`: the run only wastes time."""
    step: int
    """The training step where it began."""
    numbers: str
    """What was measured, in numbers."""
    remedy: str
    """What to do, with the key of the run file to change."""
