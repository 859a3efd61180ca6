"""Environment servers of AgentGym as worlds: a task id such as `agentgym:textcraft@http://HOST:PORT`."""

from __future__ import annotations

from air.worlds.agentgym.source import AgentGymSource

__all__ = ["SOURCE"]

SOURCE = AgentGymSource()
