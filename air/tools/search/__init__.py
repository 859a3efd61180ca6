"""The tool `search`: searches a local corpus for passages, with BM25 or with the user's own encoder."""

from __future__ import annotations

from air.tools.search.tool import SearchSettings

__all__ = ["SearchSettings"]
