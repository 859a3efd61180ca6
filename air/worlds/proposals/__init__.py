"""The worlds of co-evolution, in which a proposer writes questions (`proposal:FILE.toml`) and an executor
answers them (`posed:FILE.jsonl`)."""

from __future__ import annotations

from air.worlds.proposals.posed import SOURCE as POSED
from air.worlds.proposals.proposer import SOURCE as PROPOSALS

__all__ = ["POSED", "PROPOSALS"]
