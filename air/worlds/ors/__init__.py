"""Environments of ORS servers (Open Reward Standard), as worlds: `ors:http://HOST:8080`."""

from __future__ import annotations

from air.worlds.ors.source import SOURCE

__all__ = ["SOURCE"]
