"""Attacks on the tools and answer checkers that ship with air. Each attack is an episode with one question (a
row of a data set), whose right answer the agent does not know."""

from __future__ import annotations

from air.integrity.parts import checkers, running_tools, tools
from air.integrity.parts.attack import PartAttack

PART_ATTACKS: tuple[PartAttack, ...] = (
    *tools.ATTACKS,
    *running_tools.ATTACKS,
    *checkers.ATTACKS,
)
"""All attacks on tools and checkers, in the order in which they are run."""

__all__ = ["PART_ATTACKS", "PartAttack"]
