"""`Shell` runs commands in a box one after another. The working directory and exported variables carry over
to the next command.

Each command runs in a new shell process. So its child processes, timeout, `exit` and output cannot disturb
the next command. When a command ends, its shell writes the directory and variables into a file. `Shell` reads
and removes this file, and never executes it. If the shell cannot write the file (because of a timeout, or
because the command uses `exec` or sets its own EXIT trap), the earlier values remain. Aliases, options and
functions do not carry over. If a command unsets a variable of the box's own environment, the next command has
this variable again.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping
from contextlib import suppress

from air.errors import BoxFileError
from air.sandbox.contract.box import MAX_OUTPUT, Box, ExecResult

STATE_BYTES = 256_000
"""Maximum size in bytes of the state that a command leaves: its working directory and environment."""
PATH_BYTES = 4096
_OF_ONE_COMMAND = {"_", "SHLVL", "SHELLOPTS", "BASHOPTS", "AIR_COMMAND"}
_AT_START = ("BASH_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH")
"""Variables that change how a shell itself starts. If a command has exported new values of them, the shell
process of the next command starts without these values, and sets them just before it runs the command."""


class Shell:
    """A shell in one box, with a working directory and exported variables. It runs one command at a time."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._state = ""
        self._env: Mapping[str, str] = {}
        self.cwd = box.workspace
        """Absolute path of the working directory of the next command, as commands in the box see it."""

    def carried(self, box: Box) -> Shell:
        """Returns a copy of this shell for another box. The workspace of `box` must be a copy of the
        workspace of this shell's box. The new shell has the same working directory and variables.

        In the directory and the variables, the path of the new workspace replaces the path of the old
        workspace.
        """
        other, old, new = Shell(box), self._box.workspace, box.workspace
        other.cwd = self.cwd.replace(old, new)
        other._env = {name: value.replace(old, new) for name, value in self._env.items()}
        return other

    async def exec(
        self,
        command: str,
        *,
        timeout: float,  # noqa: ASYNC109 — kept by the guest, which kills the command
        max_bytes: int = MAX_OUTPUT,
    ) -> ExecResult:
        """Runs the script `command` with empty standard input, and returns the script's result.

        After `timeout` seconds the script is killed with all processes that it has started. At most
        `max_bytes` bytes of standard output are kept, and likewise of standard error. Raises BoxDiedError if
        the box is gone.
        """
        # A new name each time: an earlier command could block a known name, for example with a FIFO.
        before, self._state = self._state, f"/tmp/.air-shell-{secrets.token_hex(8)}"
        prologue = self._prologue(before)
        env = {name: value for name, value in self._env.items() if name not in _AT_START}
        if self._box.shell == "bash":
            env["BASH_ENV"] = "/dev/stdin"
        else:
            command = f". /dev/stdin; {command}"
        result = await self._box.exec(
            command,
            timeout=timeout,
            cwd="/",
            env=env,
            stdin=prologue.encode("utf-8", "surrogateescape"),
            max_bytes=max_bytes,
        )
        await self._recall()
        return result

    def _prologue(self, old_state: str) -> str:
        """Returns shell code that runs before the user's script. It restores the directory and variables,
        redirects standard input to /dev/null, and sets the trap that writes the state at the end. It also
        removes `old_state`, the file with the state of the previous command.

        The shell reads this code from standard input, so the line numbers of the script do not change.
        """
        old = shlex.quote(self._box.path(old_state)) if old_state else ""
        cwd, home = shlex.quote(self.cwd), shlex.quote(self._box.workspace)
        leave = (
            "{ set +ex; trap - DEBUG; trap '' XFSZ; } >/dev/null 2>&1; "
            '{ printf "%s\\0" "$PWD"; command -p env -0; } 2>/dev/null '
            f">| {shlex.quote(self._box.path(self._state))} || :"
        )
        steps = [
            "exec < /dev/null",
            "unset BASH_ENV",
            f"command -p rm -rf -- {old}",
            f"cd -- {cwd} 2>/dev/null || {{ cd -- {home}; echo {cwd} is gone, this runs in {home}; }}",
            f"OLDPWD={shlex.quote(self._env.get('OLDPWD', self.cwd))}",
            f"trap -- {shlex.quote(leave)} EXIT",
            *(f"export {n}={shlex.quote(self._env[n])}" for n in _AT_START if n in self._env),
        ]
        return "\n".join(steps)

    async def _recall(self) -> None:
        """Reads the directory and variables that the last command wrote, for the next command. Ignores an
        absent or invalid file. Removes a file that it could read, so that the agent's tools do not list
        it."""
        try:
            state = await self._box.read(self._state, max_bytes=STATE_BYTES)
        except BoxFileError:
            return
        with suppress(BoxFileError):  # then the next command removes the file
            await self._box.remove(self._state)
        cwd, *entries = state.decode("utf-8", "surrogateescape").split("\0")
        if not any(entries) or not cwd.startswith("/") or len(cwd) > PATH_BYTES:
            return
        self.cwd = cwd
        pairs = (entry.partition("=") for entry in entries if "=" in entry)
        self._env = {name: value for name, _, value in pairs if name not in _OF_ONE_COMMAND}
