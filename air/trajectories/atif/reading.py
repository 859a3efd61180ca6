"""Reads what an agent typed, and which shell commands it ran, from a document in ATIF, the Agent Trajectory
Interchange Format of the project Harbor, so that the commands can be run again.

The tool calls of the agent's steps are read, in their order. Two forms are known:

- keystrokes, as the agent Terminus-2 writes them: a text (or the name of one key, such as `C-c`) that was
  typed into a terminal, and the seconds (`duration`) for which the agent then waited;
- commands for a shell, in the argument `command`, `cmd` or `script` of a shell tool, with the folder (`cwd`
  or `workdir`) in which they ran. A tool is a shell tool if its name consists of the words in `_SHELL_WORDS`
  and `_OTHER_WORDS`, with at least one of `_SHELL_WORDS`: `execute_bash` and `runCommand` are shell tools,
  `execute_editor` and `sql_exec` are not.

All other calls, such as those of editors, cannot be run again. They are counted in `Recording.gaps`.
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

_SHELL_WORDS = frozenset(("bash", "sh", "shell", "terminal", "command", "cmd", "exec"))
"""The words of which the name of a shell tool contains at least one."""
_OTHER_WORDS = frozenset(("run", "execute", "local", "in", "container", "tool"))
"""Further words that the name of a shell tool may contain."""
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
_UNKNOWN_KEY = re.compile(
    r"(?:[CMS]-)+(?:\S|[A-Z]\w+)|F\d{1,2}|KP\S+|Home|End|Page(?:Up|Down)|Pg(?:Up|Dn)|[NP]Page|DC|IC|BTab"
)
"""Matches the names of keys in the program tmux that this module cannot translate."""
_LONGEST_WAIT = 86_400.0
"""The maximum of `Input.seconds`."""
_NAME_LENGTH = 60
"""The number of characters of a tool's name that a message contains."""


@dataclass(frozen=True)
class Input:
    """One input of an agent: keystrokes for a terminal, or a shell command."""

    text: str
    """The characters to type, or the command."""
    typed: bool
    """True: keystrokes. False: a command, which is run to its end and reads nothing."""
    seconds: float = 1.0
    """The seconds for which the agent waited after the keystrokes, at most a day."""


@dataclass(frozen=True)
class Recording:
    """What an agent did in a recorded trajectory, as far as it can be run again."""

    inputs: tuple[Input, ...]
    """The inputs of the agent, in their order. Empty if no tool call contains one."""
    gaps: tuple[str, ...] = ()
    """Descriptions of what cannot be run again; empty if everything can."""

    @property
    def digest(self) -> str:
        """The SHA-256, in hex, of everything that the recording contains."""
        return hashlib.sha256(repr((self.inputs, self.gaps)).encode()).hexdigest()


def read_recording(document: Object, where: str) -> Recording:
    """Returns what the agent did in a document in ATIF (Agent Trajectory Interchange Format). `where` names
    the document's file in errors. Raises ConfigError if the document has a wrong structure."""
    inputs: list[Input] = []
    skipped: Counter[str] = Counter()
    for call in _calls(document, where):
        if (agent_input := _input(call)) is not None:
            inputs.append(agent_input)
        elif call["function_name"] not in _WITHOUT_EFFECT:
            skipped[call["function_name"][:_NAME_LENGTH]] += 1
    gaps = [
        f"calls of {name} that cannot be replayed: {count}"
        for name, count in sorted(skipped.items())
    ]
    if copied := sum(bool(step.get("is_copied_context")) for step in document["steps"]):
        gaps.append(f"steps of the trajectory that this one continues: {copied}")
    if document.get("subagent_trajectories"):
        gaps.append("trajectories of agents that this one started")
    if following := document.get("continued_trajectory_ref"):
        gaps.append(f"it continues in {str(following)[:_NAME_LENGTH]}")
    return Recording(tuple(inputs), tuple(gaps))


def key_codes(text: str) -> str | None:
    """Returns the characters that a terminal gets for `text`, which is the name of one key, as the program
    tmux spells it (`C-c`, `Enter`), or else characters to type. `C-c` gives the character 3. Returns None if
    `text` is the name of a key that this module does not know."""
    if re.fullmatch(r"C-[a-z@\[\\\]^_]", text, re.IGNORECASE):
        return chr(ord(text[2].upper()) & 0x1F)
    if re.fullmatch(r"M-\S", text):
        return f"\x1b{text[2]}"
    if _UNKNOWN_KEY.fullmatch(text):
        return None
    return _KEYS.get(text, text)


def _calls(document: Object, where: str) -> Iterator[Object]:
    """Yields the tool calls of the agent's steps, except of those that are copied from the trajectory that
    this one continues."""
    for n, step in enumerate(_list(document, "steps", where)):
        if not isinstance(step, dict):
            raise _wrong("an object", f"{where}: steps[{n}]")
        if step.get("source") != "agent" or step.get("is_copied_context"):
            continue
        for m, call in enumerate(_list(step, "tool_calls", where, f"steps[{n}].")):
            if not isinstance(call, dict) or not isinstance(call.get("function_name"), str):
                raise _wrong(
                    "an object with a function_name", f"{where}: steps[{n}].tool_calls[{m}]"
                )
            yield call


def _list(holder: Object, name: str, where: str, prefix: str = "") -> list[Any]:
    value = holder.get(name)
    if value is None and name == "tool_calls":
        return []
    if not isinstance(value, list):
        raise _wrong("a list", f"{where}: {prefix}{name}")
    return value


def _input(call: Object) -> Input | None:
    """Returns the input of an agent that a tool call contains, or None if the call cannot be replayed."""
    arguments = call.get("arguments")
    if not isinstance(arguments, dict):
        return None
    found = _keystrokes(arguments) if "keystrokes" in arguments else _command(call, arguments)
    if found is None or re.search("[\ud800-\udfff]", found.text):  # not a text that can be encoded
        return None
    return found


def _keystrokes(arguments: Object) -> Input | None:
    text, seconds = arguments["keystrokes"], arguments.get("duration", 1.0)
    codes = key_codes(text) if isinstance(text, str) else None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        return None
    return None if codes is None else Input(codes, True, float(min(seconds, _LONGEST_WAIT)))


def _command(call: Object, arguments: Object) -> Input | None:
    if not _is_shell(call["function_name"]):
        return None
    if str(arguments.get("is_input", "")).lower() == "true":  # input of a running program
        return None
    command = next(
        (arguments[key] for key in ("command", "cmd", "script") if key in arguments), None
    )
    if isinstance(command, list) and all(isinstance(word, str) for word in command):
        command = shlex.join(command)
    if not isinstance(command, str):
        return None
    folder = arguments.get("cwd") or arguments.get("workdir")
    if isinstance(folder, str):
        # In a shell of its own: the next command of such a tool does not begin in this folder.
        command = f"(cd {shlex.quote(folder)} && {{\n{command}\n}})"
    return None if "\0" in command else Input(command, False)  # no shell takes the character 0


def _is_shell(name: str) -> bool:
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}
    return bool(words & _SHELL_WORDS) and words <= _SHELL_WORDS | _OTHER_WORDS


def _wrong(wanted: str, where: str) -> ConfigError:
    return ConfigError(f"must be {wanted}", where=where, remedy="check that the file is ATIF")
