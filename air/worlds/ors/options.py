"""The settings of a world that is played on a server of the Open Reward Standard (ORS), written after `#` in
its task id."""

from __future__ import annotations

from pydantic import Field

from air.worlds.remote.address import RemoteOptions


class OrsOptions(RemoteOptions):
    """The settings of an ORS world."""

    split: str = Field("train", min_length=1)
    """The split from which tasks are taken. The index of an episode's task is the episode's seed modulo the
    number of tasks in the split."""
    env: str = ""
    """The name of the environment on the server. Empty: the first environment that the server lists."""
