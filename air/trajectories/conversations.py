"""Converts trajectories to conversations, for supervised training."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from air.errors import ConfigError, boundary
from air.trajectories.trajectory import load

Message = dict[str, str]


def messages(path: Path) -> list[Message]:
    """The conversation of an episode, up to the model's last reply.

    Empty without a reply, for an unfinished episode, and after an infrastructure failure.

    Raises:
        ConfigError: the file is not a trajectory, or another harness than `air` played the episode: its
            turns are tool calls, not text.
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
    """Writes a JSON line `{"messages": […]}` for each episode; returns the number of lines.

    Raises:
        ConfigError: a file is not a trajectory of text, or `out` cannot be written.
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
