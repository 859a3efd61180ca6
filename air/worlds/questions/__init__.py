"""Questions: arithmetic word problems, SQL on SQLite, and a small shop. `SOURCE` loads them by name."""

from __future__ import annotations

from air.worlds.questions.source import SOURCE

__all__ = ["SOURCE"]
