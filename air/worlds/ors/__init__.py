"""Worlds (environments in which an agent acts) that run on servers with the protocol ORS (Open Reward
Standard). The agent acts by tool calls. An example of a task id is `ors:http://HOST:8080`."""

from __future__ import annotations

import functools

from air.worlds.ors.options import OrsOptions
from air.worlds.ors.world import OrsWorld
from air.worlds.remote.conversion import RewardsOfServer
from air.worlds.remote.source import RemoteSource

__all__ = ["SOURCE"]

SOURCE = RemoteSource(
    "ors",
    OrsOptions,
    "You solve a task by calling tools, one at a time.",
    lambda url, options: functools.partial(OrsWorld, RewardsOfServer(url), options),
)
