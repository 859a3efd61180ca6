"""Question worlds (environments in which a language-model agent answers questions): arithmetic word problems,
SQL questions on SQLite, and purchases in a small simulated shop. `SOURCE` loads a question task by its
name."""

from __future__ import annotations

from air.worlds.questions.source import SOURCE

__all__ = ["SOURCE"]
