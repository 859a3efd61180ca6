"""The worlds of co-evolution: propose a question (`proposal:FILE.toml`), answer one (`posed:FILE.jsonl`)."""

from __future__ import annotations

from air.worlds.proposals.posed import SOURCE as POSED
from air.worlds.proposals.proposer import SOURCE as PROPOSALS

__all__ = ["POSED", "PROPOSALS"]
