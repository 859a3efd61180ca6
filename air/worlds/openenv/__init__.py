"""Worlds (environments in which an agent acts) that run on servers with the protocol OpenEnv, which uses one
WebSocket for each episode. An example of a task id is `openenv:http://HOST:8000`."""

from __future__ import annotations

import functools

from air.worlds.openenv.options import OpenEnvOptions
from air.worlds.openenv.world import OpenEnvWorld, Server
from air.worlds.remote.source import RemoteSource

__all__ = ["SOURCE"]

SOURCE = RemoteSource(
    "openenv",
    OpenEnvOptions,
    "You act in an environment, one action at a time. It answers every action.",
    lambda url, options: functools.partial(OpenEnvWorld, Server(url, options)),
)
