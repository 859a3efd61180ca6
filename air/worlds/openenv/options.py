"""The settings of an OpenEnv world, behind `#` in its task id."""

from __future__ import annotations

from air.worlds.remote.address import RemoteOptions


class OpenEnvOptions(RemoteOptions):
    """The settings of an OpenEnv world."""

    task: str = ""
    """The `task` that `reset` gets. Empty: none."""
    field: str = ""
    """The name of the action's field that gets the agent's text. Empty: the one field of the server's schema;
    if there are more, the agent writes JSON."""
    tools: bool | None = None
    """Whether the agent calls the server's tools. None: if the server's schema says so."""
    attach: bool = False
    """Whether to create a session that outlives the WebSocket, so that an episode goes on when the network
    drops between two steps. A client that is killed leaves such a session behind on the server."""
