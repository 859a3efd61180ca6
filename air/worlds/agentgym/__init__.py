"""Worlds whose environments run on servers of AgentGym, a collection of environments for language-model
agents. Their task ids are such as `agentgym:textcraft@http://HOST:PORT`."""

from __future__ import annotations

from air.worlds.agentgym.source import AgentGymSource

__all__ = ["SOURCE"]

SOURCE = AgentGymSource()
