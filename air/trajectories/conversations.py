"""Converts trajectories to conversations (lists of chat messages) for supervised fine-tuning."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from air.errors import ConfigError, boundary
from air.trajectories.reader import load

Message = dict[str, Any]


def messages(path: Path) -> list[Message]:
    """Returns the conversation in the trajectory file `path` as chat messages, from the first prompt to the
    model's last reply. The observation after the last reply is left out.

    The list is empty if the episode has no reply, is unfinished, or ended with an infrastructure error.
    Raises ConfigError if the file is not a trajectory, or if its harness (the program that called the model)
    is not `air`, because actions under other harnesses are not text.
    """
    trajectory = load(path)
    start, end = trajectory.start, trajectory.end
    if start is not None and start.harness != "air":
        raise ConfigError(
            f"played by harness {start.harness!r}, whose turns are tool calls, not text",
            where=str(path),
            remedy="record demonstrations with the harness `air`",
        )
    if end is None or not end.ok or not trajectory.steps:
        return []
    talk = trajectory.messages()
    while talk[-1]["role"] != "assistant":
        talk.pop()
    return talk


def to_sft(paths: Iterable[Path], out: Path) -> int:
    """Writes the conversations of several episodes into the file `out`, which is replaced if it exists. Each
    conversation is one JSON line `{"messages": […]}`, with `"tools"` if tools were offered to the model.

    Returns the number of lines. Episodes for which `messages` returns an empty list are skipped. `paths` are
    trajectory files. Raises ConfigError if one of them cannot be converted, or if `out` cannot be written.
    """
    lines = [line for path in paths if (line := _line(path))]
    with boundary(ConfigError, f"cannot write {out}", OSError):
        out.parent.mkdir(parents=True, exist_ok=True)
        # JSON can contain a lone surrogate, which UTF-8 cannot encode; it becomes a question mark.
        with out.open("w", encoding="utf-8", errors="replace") as file:
            for line in lines:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return len(lines)


def _line(path: Path) -> dict[str, Any]:
    talk = messages(path)
    start = load(path).start
    tools = {"tools": list(start.tools)} if start is not None and start.tools else {}
    return {"messages": talk, **tools} if talk else {}
