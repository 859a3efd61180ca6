"""The tools `web_page` and `web_search`, which access only the hosts that the run file (the settings of a
run) allows."""

from __future__ import annotations

from air.tools.web.tool import WebPageSettings, WebSearchSettings

__all__ = ["WebPageSettings", "WebSearchSettings"]
