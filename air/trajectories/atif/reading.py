"""Reads what an agent typed, and which shell commands it ran, from a document in ATIF, the Agent Trajectory
Interchange Format of the project Harbor, so that the commands can be run again.

The tool calls of the agent's steps are read, in their order. Two forms are known:

- keystrokes, as the agent Terminus-2 writes them: a text (or the name of one key, such as `C-c`) that was
  typed into a terminal, and the seconds (`duration`) for which the agent then waited;
- commands for a shell, in the argument `command`, `cmd` or `script` of a tool whose name contains a word such
  as `bash`, `shell` or `exec`.

Calls of other tools, such as editors, cannot be run again. They are counted in `Recording.gaps`.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from air.errors import ConfigError
from air.trajectories.atif.rules import Object

_SHELLS = re.compile(r"bash|shell|exec|terminal|command|cmd", re.IGNORECASE)
"""Matches the names of tools that run shell commands."""
_WITHOUT_EFFECT = ("mark_task_complete", "task_complete", "finish", "submit", "think")
"""The names of tools that change nothing in the box (container)."""
_KEYS = {
    "Enter": "\r",
    "Escape": "\x1b",
    "Tab": "\t",
    "Space": " ",
    "BSpace": "\x7f",
    "Up": "\x1b[A",
    "Down": "\x1b[B",
    "Right": "\x1b[C",
    "Left": "\x1b[D",
}
"""What a terminal sends for a key, by the key's name in the program tmux."""


@dataclass(frozen=True)
class Input:
    """One input of an agent: keystrokes for a terminal, or a shell command."""

    text: str
    """The characters to type, or the command."""
    typed: bool
    """True: keystrokes. False: a command, which is run to its end and reads nothing."""
    seconds: float = 1.0
    """The seconds for which the agent waited after the keystrokes."""


@dataclass(frozen=True)
class Recording:
    """What an agent did in a recorded trajectory, as far as it can be run again."""

    inputs: tuple[Input, ...]
    gaps: tuple[str, ...] = ()
    """Descriptions of what cannot be run again; empty if everything can."""

    @property
    def digest(self) -> str:
        """The SHA-256, in hex, of everything that the recording contains."""
        return hashlib.sha256(repr((self.inputs, self.gaps)).encode()).hexdigest()


def recording(document: Object, where: str) -> Recording:
    """Returns what the agent did in a document in ATIF (Agent Trajectory Interchange Format). `where` names
    the document's file in errors. Raises ConfigError if the document has a wrong structure, or if it contains
    no command."""
    inputs: list[Input] = []
    skipped: Counter[str] = Counter()
    copied = 0
    for step, call, key in _calls(document, where):
        if step.get("is_copied_context"):  # another trajectory contains the step, too
            copied += 1
        elif (one := _input(call, f"{where}: {key}")) is not None:
            inputs.append(one)
        elif call["function_name"] not in _WITHOUT_EFFECT:
            skipped[call["function_name"]] += 1
    if not inputs:
        raise ConfigError(
            "no tool call contains a shell command or keystrokes",
            where=f"{where}: steps",
            remedy="remove this trajectory, or record one of an agent that uses a shell",
        )
    gaps = [
        f"calls of {name} that cannot be replayed: {count}"
        for name, count in sorted(skipped.items())
    ]
    if copied:
        gaps.append(f"calls in the trajectory that this one continues: {copied}")
    if document.get("continued_trajectory_ref"):
        gaps.append(f"it continues in {document['continued_trajectory_ref']}")
    return Recording(tuple(inputs), tuple(gaps))


def keys(text: str) -> str:
    """Returns the characters that a terminal gets for `text`, which is the name of one key, as the program
    tmux spells it (`C-c`, `Enter`), or else characters to type. `C-c` gives the character 3."""
    if re.fullmatch(r"C-[a-z@\[\\\]^_]", text, re.IGNORECASE):
        return chr(ord(text[2].upper()) & 0x1F)
    if re.fullmatch(r"M-.", text):
        return f"\x1b{text[2]}"
    return _KEYS.get(text, text)


def _calls(document: Object, where: str) -> Iterator[tuple[Object, Object, str]]:
    """Yields the tool calls of the agent's steps, each with its step and with its path in the document."""
    for n, step in enumerate(_list(document, "steps", where)):
        if not isinstance(step, dict):
            raise _wrong("an object", f"{where}: steps[{n}]")
        if step.get("source") != "agent":
            continue
        for m, call in enumerate(_list(step, "tool_calls", where, f"steps[{n}].")):
            key = f"steps[{n}].tool_calls[{m}]"
            if not isinstance(call, dict) or not isinstance(call.get("function_name"), str):
                raise _wrong("an object with a function_name", f"{where}: {key}")
            if not isinstance(call.get("arguments"), dict):
                raise _wrong("an object", f"{where}: {key}.arguments")
            yield step, call, key


def _list(holder: Object, name: str, where: str, prefix: str = "") -> list[Any]:
    value = holder.get(name)
    if value is None and name == "tool_calls":
        return []
    if not isinstance(value, list):
        raise _wrong("a list", f"{where}: {prefix}{name}")
    return value


def _input(call: Object, where: str) -> Input | None:
    """Returns the input of an agent that a tool call contains; None if the tool runs no shell commands."""
    arguments = call["arguments"]
    if "keystrokes" in arguments:
        text, seconds = arguments["keystrokes"], arguments.get("duration", 1.0)
        if not isinstance(text, str):
            raise _wrong("a string", f"{where}.arguments.keystrokes")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
            raise _wrong("a number that is not negative", f"{where}.arguments.duration")
        return Input(keys(text), True, float(seconds))
    name = next((name for name in ("command", "cmd", "script") if name in arguments), None)
    if name is None or not _SHELLS.search(call["function_name"]) or arguments.get("is_input"):
        return None
    command = arguments[name]
    if isinstance(command, list) and all(isinstance(word, str) for word in command):
        command = shlex.join(command)
    if not isinstance(command, str):
        raise _wrong("a string or a list of strings", f"{where}.arguments.{name}")
    folder = arguments.get("workdir")
    return Input(
        f"cd {shlex.quote(folder)}\n{command}" if isinstance(folder, str) else command, False
    )


def _wrong(wanted: str, where: str) -> ConfigError:
    return ConfigError(f"must be {wanted}", where=where, remedy="check that the file is ATIF")
