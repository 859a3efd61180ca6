"""Provides the TLS settings, with the certificates, by which air's HTTPS clients verify servers."""

from __future__ import annotations

import functools
import os
import ssl

import httpx

from air.errors import ConfigError

_NAMES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""The environment variables by which a user can replace the default certificates with a file or a folder."""


@functools.cache
def certificates() -> ssl.SSLContext:
    """Returns httpx's default TLS settings. They are cached, because loading the certificates takes 20 ms,
    which is longer than a request, and blocks the other episodes meanwhile. Raises ConfigError if the file or
    folder of certificates that the environment names cannot be read."""
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        raise ConfigError(
            f"no certificates can be read there ({error})",
            where=" or ".join(name for name in _NAMES if name in os.environ) or "certificates",
            remedy="name a PEM file, or unset it",
        ) from error
