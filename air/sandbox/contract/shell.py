"""Defines `Shell`, which runs commands in a box one after another.

The working directory and the exported environment variables carry over to the next command.

Each command runs in a new bash, or in sh if the box has no bash. No process stays between two commands, so no
command can disturb the next one. A timeout kills only one command, and `exit` ends only its own script. The
output of a command is never searched for a marker.

When a command ends, it writes its directory and its exported variables into a file in the box. `Shell` reads
that file as data. If the command cannot write the file (because it timed out, used `exec`, or set its own
EXIT trap), the earlier directory and variables remain. Aliases, shell options, and variables and functions
that are not exported do not carry over. If a command unsets a variable of the box's own environment, the next
command has it again.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping

from air.errors import BoxFileError
from air.sandbox.contract.box import MAX_OUTPUT, Box, ExecResult

STATE_BYTES = 256_000
"""Maximum size in bytes of the state that a command leaves: its working directory and its environment."""
PATH_BYTES = 4096
_OF_ONE_COMMAND = {"_", "SHLVL", "SHELLOPTS", "BASHOPTS", "AIR_COMMAND"}
_AT_START = ("BASH_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH")
"""Environment variables that change how a shell starts. They are therefore set only after the shell has
started."""


class Shell:
    """A shell in one box, with its own working directory and exported environment variables.

    It runs one command at a time.
    """

    def __init__(self, box: Box) -> None:
        self._box = box
        self._state = ""
        self._env: Mapping[str, str] = {}
        self.cwd = box.workspace
        """Absolute path of the working directory of the next command, as commands in the box see it."""

    def carried(self, box: Box) -> Shell:
        """Returns a shell for another box, with this shell's working directory and exported variables.

        The workspace of `box` must be a copy of this shell's workspace. Where the working directory or a
        variable contains the path of the old workspace, the path of the new workspace replaces it.
        """
        other, here, there = Shell(box), self._box.workspace, box.workspace
        other.cwd = self.cwd.replace(here, there)
        other._env = {name: value.replace(here, there) for name, value in self._env.items()}
        return other

    async def exec(
        self,
        command: str,
        *,
        timeout: float,  # noqa: ASYNC109 — kept by the guest, which kills the command
        max_bytes: int = MAX_OUTPUT,
    ) -> ExecResult:
        """Runs a script of any number of lines, with empty standard input, and returns its result.

        Args:
            timeout: seconds after which the script is killed with all its processes; its output is returned.
            max_bytes: the maximum size of standard output and of standard error, each.

        Raises:
            BoxDiedError: the box is gone.
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
        """Returns the lines that the shell runs before the script of a command.

        They restore the working directory, make standard input empty, and set the trap that writes the
        directory and variables at the end. The shell reads them from standard input, so the script's line
        numbers do not change.
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
        """Reads the working directory and environment variables that the last command wrote.

        If what it wrote is missing or invalid, the earlier directory and variables remain.
        """
        try:
            state = await self._box.read(self._state, max_bytes=STATE_BYTES)
        except BoxFileError:
            return
        cwd, *entries = state.decode("utf-8", "surrogateescape").split("\0")
        if not any(entries) or not cwd.startswith("/") or len(cwd) > PATH_BYTES:
            return
        self.cwd = cwd
        pairs = (entry.partition("=") for entry in entries if "=" in entry)
        self._env = {name: value for name, _, value in pairs if name not in _OF_ONE_COMMAND}
