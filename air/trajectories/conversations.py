"""Converts trajectories to conversations (lists of chat messages) for supervised training."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from air.errors import ConfigError, boundary
from air.trajectories.trajectory import load

Message = dict[str, str]


def messages(path: Path) -> list[Message]:
    """Reads a trajectory file; returns its conversation, from the first prompt to the model's last reply.

    The list is empty if the episode has no reply, is unfinished or ended with an infrastructure failure.

    Raises:
        ConfigError: the file is not a trajectory, or the episode's harness (the program that called the
            model) is not `air`, so that the model's actions are tool calls instead of text.
    """
    trajectory = load(path)
    start, end = trajectory.start, trajectory.end
    if start is not None and start.harness != "air":
        raise ConfigError(
            f"played by harness {start.harness!r}, whose turns are tool calls, not text",
            where=str(path),
            remedy="record demonstrations with the harness `air`",
        )
    ended_well = end is not None and end.ok
    return trajectory.messages()[:-1] if ended_well and trajectory.steps else []


def to_sft(paths: Iterable[Path], out: Path) -> int:
    """Writes the conversations of episodes into the file `out`.

    Each episode becomes one JSON line `{"messages": […]}`. An episode is left out if it has no reply, is
    unfinished, or ended with an infrastructure failure.

    Args:
        paths: the trajectory files of the episodes.

    Returns:
        The number of lines that were written.

    Raises:
        ConfigError: `messages` cannot convert a file, or `out` cannot be written.
    """
    talks = [talk for path in paths if (talk := messages(path))]
    with boundary(ConfigError, f"cannot write {out}", OSError):
        out.parent.mkdir(parents=True, exist_ok=True)
        _write(talks, out)
    return len(talks)


def _write(talks: Iterable[list[Message]], out: Path) -> None:
    # JSON can contain a lone surrogate, which UTF-8 cannot encode; it becomes a question mark.
    with out.open("w", encoding="utf-8", errors="replace") as file:
        for talk in talks:
            file.write(json.dumps({"messages": talk}, ensure_ascii=False) + "\n")
