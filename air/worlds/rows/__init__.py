"""Rows of questions and answers as a world, with tools and answer checkers. `SOURCE` loads them by path."""

from __future__ import annotations

from air.worlds.rows.source import SOURCE

__all__ = ["SOURCE"]
