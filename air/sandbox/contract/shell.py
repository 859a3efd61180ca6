"""`Shell` runs commands in a box one after another; directory and exported variables carry over.

Each command runs in a new shell, so no process, timeout, `exit` or output of one can disturb the next. On its
end a command writes its directory and variables into a file, which `Shell` reads as data. If it cannot
(timeout, `exec`, its own EXIT trap), the earlier ones remain. Aliases, options and functions do not carry
over; a variable of the box's own environment that a command unsets returns.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping

from air.errors import BoxFileError
from air.sandbox.contract.box import MAX_OUTPUT, Box, ExecResult

STATE_BYTES = 256_000
"""Maximum size in bytes of the working directory and the environment that a command leaves."""
PATH_BYTES = 4096
_OF_ONE_COMMAND = {"_", "SHLVL", "SHELLOPTS", "BASHOPTS", "AIR_COMMAND"}
_AT_START = ("BASH_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH")
"""Variables that change how a shell starts; they are therefore set only after its start."""


class Shell:
    """A shell in one box, with a working directory and exported variables. It runs one command at a time."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._state = ""
        self._env: Mapping[str, str] = {}
        self.cwd = box.workspace
        """Absolute path of the working directory of the next command, as commands in the box see it."""

    def carried(self, box: Box) -> Shell:
        """Returns a shell with the same directory and variables for `box`, which has a copy of the workspace.

        In both, the new workspace's path replaces the old path.
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
        """Runs a script with empty standard input and returns its result.

        After `timeout` seconds the script is killed with all its processes. `max_bytes` is the maximum size
        of standard output and of standard error, each. Raises BoxDiedError if the box is gone.
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
        """Returns the lines that restore the directory, empty standard input and set the state-writing trap.

        The shell reads them from standard input, so the script's line numbers do not change.
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
        """Reads the directory and variables that the last command wrote. Ignores absent or invalid values."""
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
