"""The tool `search`: passages of a local corpus, by BM25 or by the user's own encoder."""

from __future__ import annotations

from air.tools.search.tool import SearchSettings

__all__ = ["SearchSettings"]
