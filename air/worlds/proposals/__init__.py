"""Worlds (environments for agents) of co-evolution, a training in which two models take turns: a proposer
learns to write questions (tasks `proposal:FILE.toml`), and an executor learns to answer them (tasks
`posed:FILE.jsonl`)."""

from __future__ import annotations

from air.worlds.proposals.posed import SOURCE as POSED
from air.worlds.proposals.proposer import SOURCE as PROPOSALS

__all__ = ["POSED", "PROPOSALS"]
