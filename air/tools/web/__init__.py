"""The tools `web_page` and `web_search`, which access only hosts that the run file allows."""

from __future__ import annotations

from air.tools.web.tool import WebPageSettings, WebSearchSettings

__all__ = ["WebPageSettings", "WebSearchSettings"]
