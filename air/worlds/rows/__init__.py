"""Worlds from the rows of a dataset of questions and answers, with tools and answer checkers. `SOURCE`
loads them by path."""

from __future__ import annotations

from air.worlds.rows.source import SOURCE

__all__ = ["SOURCE"]
