"""Environments of OpenEnv servers, as worlds: `openenv:http://HOST:8000`. `SOURCE` loads them by URL."""

from __future__ import annotations

from air.worlds.openenv.source import SOURCE

__all__ = ["SOURCE"]
