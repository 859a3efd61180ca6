"""Trajectories as conversations, for supervised training."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from air.trajectories.record import read

Message = dict[str, str]


def messages(path: Path) -> list[Message]:
    """What the model of one episode saw and said, up to its last reply.

    Empty if it said nothing, and where the episode did not end or ended by a failure of ours.
    """
    talk: list[Message] = []
    shown: Message | None = None
    ended_well = False
    for line in read(path):
        if line["type"] == "start":
            talk.append({"role": "system", "content": line["system"]})
            shown = {"role": "user", "content": line["prompt"]}
        elif line["type"] == "step" and shown is not None:
            talk += [shown, {"role": "assistant", "content": line["reply"]}]
            shown = {
                "role": "user",
                "content": line["shown" if line.get("v", 0) > 1 else "observation"],
            }
        elif line["type"] == "end":
            ended_well = bool(line["ok"])
    return talk if ended_well and any(m["role"] == "assistant" for m in talk) else []


def to_sft(paths: Iterable[Path], out: Path) -> int:
    """Writes one JSON line `{"messages": […]}` an episode; returns how many."""
    talks = [talk for path in paths if (talk := messages(path))]
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8") as file:
        for talk in talks:
            file.write(json.dumps({"messages": talk}, ensure_ascii=False) + "\n")
    return len(talks)
