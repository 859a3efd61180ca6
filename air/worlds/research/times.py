"""The times that an episode of the research world spent on its activities."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Times:
    """The time in seconds that an episode spent on each activity. `exec` is the time of scripts and of the
    tools of the action format `mlgym`. `grading` is the time of gradings, including all waiting."""

    queue: float = 0.0
    box: float = 0.0
    """The time in seconds from the request for a box (an isolated place for commands) until the task's files
    are in the box, including all waiting. `queue` is the part of this time that the episode spent in the
    queue for boxes and GPUs."""
    exec: float = 0.0
    grading: float = 0.0
    grading_beside_agent: float = 0.0
    """The part of `grading` during which the agent's processes were not stopped: the collection of the
    artefact, and all of it if they could not be stopped. It is part of the agent's time."""
    recording: float = 0.0
    """The time in seconds that was spent on recording, such as finding changed files. It is not part of the
    agent's time."""
    agent: float = 0.0
    """The agent's own time in seconds, from the moment when the task's files were in its box to the end of
    the episode, without `of_air`. Set at the end of the episode."""

    @property
    def of_air(self) -> float:
        """The time in seconds that air needed for itself, so that it does not count for the agent."""
        return self.grading - self.grading_beside_agent + self.recording

    @contextmanager
    def as_recording(self) -> Iterator[None]:
        """Context manager that measures how long its `with` block takes, and adds this time to
        `recording`."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.recording += time.monotonic() - began
