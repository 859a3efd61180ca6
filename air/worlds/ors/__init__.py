"""Worlds whose environments run on ORS servers (Open Reward Standard), with task ids such as
`ors:http://HOST:8080`."""

from __future__ import annotations

import functools

from air.worlds.ors.options import OrsOptions
from air.worlds.ors.world import OrsWorld
from air.worlds.remote.source import RemoteSource

__all__ = ["SOURCE"]

SOURCE = RemoteSource(
    "ors",
    OrsOptions,
    "You solve a task by calling tools, one at a time.",
    lambda url, options: functools.partial(OrsWorld, url, options),
)
