"""The tools `web_page` and `web_search`, for hosts that the run opens."""

from __future__ import annotations

from air.tools.web.tool import WebPageSettings, WebSearchSettings

__all__ = ["WebPageSettings", "WebSearchSettings"]
