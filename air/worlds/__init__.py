"""Worlds: the environments in which an agent acts."""

from __future__ import annotations

from air.worlds.base import Observation, Step, Validation, World
from air.worlds.research.world import ResearchWorld

__all__ = ["Observation", "ResearchWorld", "Step", "Validation", "World"]
