"""Trajectories: the record of an episode, one JSON object a line."""

from __future__ import annotations

from air.trajectories.record import VERSION, Recorder, read

__all__ = ["VERSION", "Recorder", "read"]
