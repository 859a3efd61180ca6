"""The certificates with which HTTPS clients check servers."""

from __future__ import annotations

import functools
import ssl

import httpx


@functools.cache
def certificates() -> ssl.SSLContext:
    """Returns httpx's default TLS settings. They are cached, because loading the certificates takes 20 ms,
    which is longer than a request, and blocks the other episodes meanwhile."""
    return httpx.create_ssl_context()
