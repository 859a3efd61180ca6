"""Worlds (environments for an agent) in which each episode asks a question from a user's dataset, with tools
and answer checkers. `SOURCE` loads a task by the path of the dataset."""

from __future__ import annotations

from air.worlds.rows.source import SOURCE

__all__ = ["SOURCE"]
