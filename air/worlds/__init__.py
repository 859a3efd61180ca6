"""Worlds: the environments in which an agent (a language model) acts, such as research tasks, games and
questions. `base` defines their interface, and `sources` loads a world's tasks by id."""

from __future__ import annotations

from air.worlds.base import Observation, Step, Validation, World
from air.worlds.research.world import ResearchWorld

__all__ = ["Observation", "ResearchWorld", "Step", "Validation", "World"]
