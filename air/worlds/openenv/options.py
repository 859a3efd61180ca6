"""Defines the settings of an OpenEnv world (an agent's environment on a server with the protocol OpenEnv),
which users write after `#` in the task id."""

from __future__ import annotations

from air.worlds.remote.address import RemoteOptions


class OpenEnvOptions(RemoteOptions):
    """The settings of an OpenEnv world, that is, of an environment on a server with the protocol OpenEnv."""

    task: str = ""
    """The value of `task` in the data of the message `reset`, which starts an episode. Empty: `reset` is sent
    without `task`."""
    field: str = ""
    """The field of the action that contains the agent's text. Empty: the only field in the server's schema;
    if the schema has several fields, the agent must write a JSON object."""
    tools: bool | None = None
    """Whether the agent acts by calls of the server's tools. None: yes, if the server's schema of actions has
    the field `tool_name`."""
    attach: bool = False
    """Whether the episode uses a server session that continues to exist if the WebSocket connection is lost.
    The episode can then continue after a loss of the connection between two steps. If the client is killed,
    such a session stays on the server."""
