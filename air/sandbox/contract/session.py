"""A shell's state between commands: working directory and exported variables, and nothing else.

Every command still runs fresh, in a shell of its own through `Box.exec` (bash, or sh if the box has no
bash); there is no terminal and no shell that could be left half-known. When a command's shell exits, it
writes where it is and what it exports into a file of the box, which is taken over here; the next command
begins by going there and exporting that. Functions, aliases, options, umask, unexported variables and
traps are not kept.

A command that is killed, times out, replaces its shell by `exec`, or traps its own EXIT leaves the
state as it was, and so does a file that is damaged: the state lives on the host, what a box writes is
only ever taken as data, and the next command writes elsewhere. `Session.problem` then says why.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from air.errors import BoxFileError
from air.sandbox.contract.box import MAX_OUTPUT, ExecResult
from air.sandbox.guest.processes import MARK

if TYPE_CHECKING:
    from air.sandbox.contract.box import Box

MAX_STATE = 1_000_000
_BEGIN_SECONDS = 60.0
_NOT_KEPT = frozenset(
    (MARK, "_", "PWD", "SHLVL", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO", "UID", "EUID", "PPID")
)
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
# Builtins only, and no fork: it works whatever PATH is, and with no process left. Nothing of it can
# change the command's exit status, nor wait for another process.
_SAVE_SH = (
    "{{ set +e; trap '' XFSZ; umask 077; if [ -f {file} ] || [ ! -e {file} ]; then"
    " {{ printf '%s\\0sh\\0' {token}; pwd; printf '\\0'; export -p; printf '\\0%s' {token}; }}"
    " >| {file}; fi; }} >/dev/null 2>&1"
)
_SAVE = (
    "{{ builtin set +e; builtin trap - DEBUG; builtin trap '' XFSZ; builtin umask 077;"
    " if [[ -f {file} || ! -e {file} ]]; then"
    " builtin compgen -e >| {names} && {{ builtin printf '%s\\0' {token}; builtin pwd;"
    " builtin printf '\\0'; while IFS= builtin read -r __air; do [[ -v $__air ]] &&"
    ' builtin printf \'%s=%s\\0\' "$__air" "${{!__air}}"; done < {names};'
    " builtin printf '%s' {token}; }} >| {file}; fi; }} >/dev/null 2>&1"
)


@dataclass(frozen=True)
class State:
    """What is carried from one command to the next."""

    cwd: str
    """The working directory, absolute, as the box sees it."""
    env: dict[str, str] = field(default_factory=dict)
    """The exported variables; bytes that are not UTF-8 are surrogates."""
    shell: Literal["bash", "sh"] = "bash"
    """The shell that left it."""


class Session:
    """Commands of one box, one after another, that share a working directory and an environment.

    Any number of sessions of a box are independent of one another.
    """

    def __init__(self, box: Box) -> None:
        self.problem = ""
        """Why the state after the last command is that before it, as half a line; empty if taken over."""
        self._box = box
        self._base: State | None = None
        self._state: State | None = None
        self._turn = asyncio.Lock()
        self._move()

    @property
    def cwd(self) -> str:
        """Where the next command begins."""
        return self._box.workspace if self._state is None else self._state.cwd

    @property
    def env(self) -> dict[str, str]:
        """What the next command finds exported, in so far as a command of this session exported it."""
        if self._state is None or self._base is None:
            return {}
        known = self._base.env
        return {name: value for name, value in self._state.env.items() if known.get(name) != value}

    async def exec(
        self,
        command: str,
        *,
        timeout: float,  # noqa: ASYNC109 — kept by the guest, which kills the command
        stdin: bytes = b"",
        max_bytes: int = MAX_OUTPUT,
    ) -> ExecResult:
        """Runs one command through the shell where the last one left off; waits for that to end.

        Bash counts the command's lines from 2 on in its messages.

        Args:
            timeout: seconds after which it is killed with all its children.
            max_bytes: cap on stdout and on stderr, each.

        Raises:
            BoxDiedError: the box is gone.
        """
        async with self._turn:
            if self._base is None:  # what an untouched command finds, to tell what was changed
                await self._run("", timeout=_BEGIN_SECONDS, stdin=b"", max_bytes=0)
                self._base = self._state
            return await self._run(command, timeout=timeout, stdin=stdin, max_bytes=max_bytes)

    def reset(self) -> None:
        """Begins anew: the next command finds what the first one found."""
        self._state, self.problem = self._base, ""

    def _move(self) -> None:
        """Gives the state another file in the box: nothing can be waiting in its place."""
        self._file = f"/tmp/.air-session-{secrets.token_hex(8)}"

    async def _run(
        self,
        command: str,
        *,
        timeout: float,  # noqa: ASYNC109
        stdin: bytes,
        max_bytes: int,
    ) -> ExecResult:
        token = secrets.token_hex(8)
        script = f"{self._restore()}{self._trap(token)}\n{command}"
        result = await self._box.exec(script, timeout=timeout, stdin=stdin, max_bytes=max_bytes)
        if result.timed_out or result.signal:
            self.problem = "the command was killed"
            return result
        try:
            data = await self._box.read(self._file, max_bytes=MAX_STATE)
            self._state, self.problem = parse(data, token), ""
        except (ValueError, BoxFileError) as error:
            self.problem = str(error)
            self._move()
        return result

    def _trap(self, token: str) -> str:
        """The command that has the shell leave its state when it exits. The first command of a session
        finds out which shell it is."""
        file = self._box.path(self._file)
        names = {"token": token, "file": _quoted(file), "names": _quoted(f"{file}-names")}
        bash = f"builtin trap {_quoted(_SAVE.format(**names))} EXIT"
        sh = f"trap {_quoted(_SAVE_SH.format(**names))} EXIT"
        if self._base is None:
            return f"case ${{BASH_VERSION-}} in '') {sh};; *) {bash};; esac"
        return bash if self._base.shell == "bash" else sh

    def _restore(self) -> str:
        """The beginning of a script that puts the state in place, without a word; in one line for bash."""
        if self._state is None or self._base is None:
            return ""
        if self._base.shell == "sh":
            return self._restored("", shlex.quote, self._state, self._base)
        return self._restored("builtin ", _quoted, self._state, self._base)

    def _restored(
        self, builtin: str, quoted: Callable[[str], str], state: State, base: State
    ) -> str:
        gone = [name for name in base.env if name not in state.env]
        parts = [f"{builtin}export {name}={quoted(value)}" for name, value in self.env.items()]
        parts += [f"{builtin}unset -v {' '.join(gone)}"] if gone else []
        line = f"{{ {'; '.join([*parts, ':'])}; }} 2>/dev/null; "
        if state.cwd == base.cwd:
            return line
        where = quoted(state.cwd)
        sorry = f"{builtin}printf 'air: %s is gone: this is %s\\n' {where} \"$PWD\" >&2"
        return f"{builtin}cd -- {where} >/dev/null 2>&1 || {sorry}; {line}"


def parse(data: bytes, token: str) -> State:
    """What a command's shell left, marked by `token` at both ends.

    Raises:
        ValueError: it is nothing that our script writes; says why, as half a line.
    """
    parts = data.decode("utf-8", "surrogateescape").split("\0")
    if parts[0] != token:
        raise ValueError(
            "the command's shell was replaced, trapped its own exit, or could not write"
        )
    if len(parts) < 3 or parts[-1] != token:
        raise ValueError("what the command's shell left is incomplete")
    shell: Literal["bash", "sh"] = "bash"
    if parts[1] == "sh" and len(parts) == 5:
        shell, parts = "sh", [token, parts[2], *_exported(parts[3]), token]
    cwd, variables = parts[1].removesuffix("\n"), parts[2:-1]
    found = [_VARIABLE.fullmatch(variable) for variable in variables]
    if not cwd.startswith("/") or None in found:
        raise ValueError("what the command's shell left is damaged")
    env = {match[1]: match[2] for match in found if match and match[1] not in _NOT_KEPT}
    return State(cwd, env, shell)


def _exported(text: str) -> list[str]:
    """The `NAME=VALUE` of each variable that `export -p` of a POSIX shell lists."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError("what the command's shell left is damaged") from error
    return [word for word in words if "=" in word]


def _quoted(text: str) -> str:
    """Text as one word for bash, without a line break."""
    return shlex.quote(text).replace("\n", "'$'\\n''")
