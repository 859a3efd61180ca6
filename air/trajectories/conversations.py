"""Converts trajectories to conversations (lists of messages) for supervised training."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from air.errors import ConfigError, boundary
from air.trajectories.trajectory import load

Message = dict[str, str]


def messages(path: Path) -> list[Message]:
    """Returns the conversation of an episode, from the first prompt to the model's last reply.

    The list is empty if the episode has no reply, is unfinished or ended with an infrastructure failure.

    Raises:
        ConfigError: the file is not a trajectory, or its harness (the loop that plays the agent) is not
            `air`, so its turns are tool calls instead of text.
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
    """Writes a JSON line `{"messages": […]}` into the file `out` for each episode that ended well.

    Args:
        paths: trajectory files.

    Returns:
        The number of written lines.

    Raises:
        ConfigError: a file is not a trajectory of the harness `air` (see `messages`), or `out` cannot be
            written.
    """
    talks = [talk for path in paths if (talk := messages(path))]
    with boundary(ConfigError, f"cannot write {out}", OSError):
        out.parent.mkdir(parents=True, exist_ok=True)
        _write(talks, out)
    return len(talks)


def _write(talks: Iterable[list[Message]], out: Path) -> None:
    # JSON may hold a lone surrogate, which UTF-8 cannot encode: it becomes a question mark.
    with out.open("w", encoding="utf-8", errors="replace") as file:
        for talk in talks:
            file.write(json.dumps({"messages": talk}, ensure_ascii=False) + "\n")
