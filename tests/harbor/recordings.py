"""Builds small trajectories in ATIF, Harbor's format for what agents did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from air.trajectories.atif.rules import Object


def trajectory(*calls: tuple[str, Object], **more: Any) -> Object:
    """Returns a document in which each of the tool calls, pairs of a name and arguments, is a step."""
    steps: list[Object] = [{"step_id": 1, "source": "user", "message": "Do the work."}]
    for n, (name, arguments) in enumerate(calls, 2):
        call = {"tool_call_id": f"call_{n}", "function_name": name, "arguments": arguments}
        steps.append({"step_id": n, "source": "agent", "message": "", "tool_calls": [call]})
    agent = {"name": "terminus-2", "version": "2.0.0"}
    return {
        "schema_version": "ATIF-v1.6",
        "session_id": "s",
        "agent": agent,
        "steps": steps,
        **more,
    }


def typed(text: str, seconds: float = 60.0) -> tuple[str, Object]:
    """Returns a tool call of Terminus-2 that types `text`, and then waits. A replay waits less if the shell
    shows its prompt after a line."""
    return "bash_command", {"keystrokes": text, "duration": seconds}


def ran(command: str) -> tuple[str, Object]:
    """Returns a tool call that runs a command."""
    return "bash", {"command": command}


def save(file: Path, document: Object) -> Path:
    """Writes a document to a file, makes its folder, and returns the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document))
    return file
