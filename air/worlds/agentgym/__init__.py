"""Worlds whose environments run on AgentGym servers, with task ids such as
`agentgym:textcraft@http://HOST:PORT`."""

from __future__ import annotations

from air.worlds.agentgym.source import AgentGymSource

__all__ = ["SOURCE"]

SOURCE = AgentGymSource()
