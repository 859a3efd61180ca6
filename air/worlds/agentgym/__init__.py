"""Worlds (environments in which an agent acts) that run on servers of AgentGym, a collection of environments
for language-model agents. An example of a task id is `agentgym:textcraft@http://HOST:PORT`."""

from __future__ import annotations

from air.worlds.agentgym.source import AgentGymSource

__all__ = ["SOURCE"]

SOURCE = AgentGymSource()
