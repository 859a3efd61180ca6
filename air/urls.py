"""Checks whether a text can be the URL of an HTTP server."""

from __future__ import annotations

import re

import httpx


def is_server(url: str) -> bool:
    """Returns whether `url` is the URL of an HTTP server, to which a path can be appended: `http://` or
    `https://`, a host, perhaps a port from 1 to 65535 and a path; no query, fragment, space or backslash."""
    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        return False
    if parts.scheme not in ("http", "https") or not parts.host:
        return False
    if parts.port is not None and not 0 < parts.port < 1 << 16:
        return False
    return not re.search(r"[\s\\?#]", url)
