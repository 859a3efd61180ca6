"""The settings of an ORS world, behind `#` in its task id."""

from __future__ import annotations

from pydantic import Field

from air.worlds.remote.address import RemoteOptions


class OrsOptions(RemoteOptions):
    """The settings of an ORS world."""

    split: str = Field("train", min_length=1)
    """The split whose tasks are played: the seed of an episode, modulo their number, is the task's index."""
    env: str = ""
    """The name of the environment on the server. Empty: its first one."""
