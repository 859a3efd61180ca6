"""Defines `Verdict`: what a checker says about an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Verdict:
    """What a checker says about an answer."""

    reward: float
    """The reward of the episode."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further numbers about the answer, by name, such as `accuracy`. They are recorded, not paid."""
