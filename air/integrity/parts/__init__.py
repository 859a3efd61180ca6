"""Attacks on the shipped tools and answer checkers: episodes of one row, whose answer the agent lacks."""

from __future__ import annotations

from air.integrity.parts import checkers, running_tools, tools
from air.integrity.parts.attack import PartAttack

PART_ATTACKS: tuple[PartAttack, ...] = (
    *tools.ATTACKS,
    *running_tools.ATTACKS,
    *checkers.ATTACKS,
)
"""All attacks on tools and checkers, in the order in which they are played."""

__all__ = ["PART_ATTACKS", "PartAttack"]
