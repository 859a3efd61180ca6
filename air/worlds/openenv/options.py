"""The settings of an OpenEnv world, which follow `#` in its task id."""

from __future__ import annotations

from air.worlds.remote.address import RemoteOptions


class OpenEnvOptions(RemoteOptions):
    """The settings of an OpenEnv world."""

    task: str = ""
    """The value of `task` in the data of `reset`. Empty: `reset` gets no `task`."""
    field: str = ""
    """The name of the action's field that gets the agent's text. Empty: the only field in the server's
    schema; if the schema has several fields, the agent writes JSON."""
    tools: bool | None = None
    """Whether the agent calls the server's tools. None: the server's schema decides it."""
    attach: bool = False
    """Whether the episode uses a session that outlives its WebSocket, so that the episode continues if the
    network fails between two steps. A client that is killed leaves such a session behind on the server."""
