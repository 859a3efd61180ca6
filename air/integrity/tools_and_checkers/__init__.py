"""Attacks (scripted agents that try to cheat) on the tools for agents, and on the checkers of agents'
answers, that ship with air. Each attack is an episode with one question, whose right answer the agent does
not know."""

from __future__ import annotations

from air.integrity.tools_and_checkers import box_tools, checkers, remote_tools, tools
from air.integrity.tools_and_checkers.attack import PartAttack

PART_ATTACKS: tuple[PartAttack, ...] = (
    *tools.ATTACKS,
    *box_tools.ATTACKS,
    *remote_tools.ATTACKS,
    *checkers.ATTACKS,
)
"""All attacks on tools and checkers, in the order in which they are run."""

__all__ = ["PART_ATTACKS", "PartAttack"]
