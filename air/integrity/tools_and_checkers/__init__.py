"""Attacks on the tools and answer checkers that ship with air. Each attack is an episode with one question (a
row of a data set), whose right answer the agent does not know."""

from __future__ import annotations

from air.integrity.tools_and_checkers import checkers, running_tools, tools
from air.integrity.tools_and_checkers.attack import PartAttack

PART_ATTACKS: tuple[PartAttack, ...] = (
    *tools.ATTACKS,
    *running_tools.ATTACKS,
    *checkers.ATTACKS,
)
"""All attacks on tools and checkers, in the order in which they are run."""

__all__ = ["PART_ATTACKS", "PartAttack"]
