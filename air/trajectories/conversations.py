"""Trajectories as conversations, for supervised training."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from air.errors import ConfigError, boundary
from air.trajectories.trajectory import load

Message = dict[str, str]


def messages(path: Path) -> list[Message]:
    """What the model of one episode saw and said, up to its last reply.

    Empty if it said nothing, and where the episode did not end or ended by a failure of ours.

    Raises:
        ConfigError: it is no trajectory, or another harness than ours played it: its turns are tool calls,
            not text.
    """
    one = load(path)
    if one.start is not None and one.start.harness != "air":
        raise ConfigError(
            f"played by harness {one.start.harness!r}, whose turns are tool calls and no text",
            where=str(path),
            remedy="record demonstrations with the harness `air`",
        )
    ended_well = one.end is not None and one.end.ok
    return one.messages()[:-1] if ended_well and one.steps else []


def to_sft(paths: Iterable[Path], out: Path) -> int:
    """Writes one JSON line `{"messages": […]}` an episode; returns how many.

    Raises:
        ConfigError: a file is no trajectory of text, or `out` cannot be written.
    """
    talks = [talk for path in paths if (talk := messages(path))]
    with boundary(ConfigError, f"cannot write {out}", OSError):
        out.parent.mkdir(parents=True, exist_ok=True)
        _write(talks, out)
    return len(talks)


def _write(talks: Iterable[list[Message]], out: Path) -> None:
    # A lone surrogate, which JSON may hold and no file can, becomes a question mark.
    with out.open("w", encoding="utf-8", errors="replace") as file:
        for talk in talks:
            file.write(json.dumps({"messages": talk}, ensure_ascii=False) + "\n")
