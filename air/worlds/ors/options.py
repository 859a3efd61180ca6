"""Defines the settings of a world (an agent's environment) on a server with the protocol ORS (Open Reward
Standard), which users write after `#` in the task id."""

from __future__ import annotations

from pydantic import Field

from air.worlds.remote.address import RemoteOptions


class OrsOptions(RemoteOptions):
    """The settings of a world (an agent's environment) on a server with the protocol ORS (Open Reward
    Standard)."""

    split: str = Field("train", min_length=1)
    """The split from which tasks are taken. The index of an episode's task is the episode's seed modulo the
    number of tasks in the split."""
    env: str = ""
    """The name of the environment on the server. Empty: the first environment that the server lists."""
