"""The types of what runs in a box: `Command`, and its result `ExecResult`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Command = Sequence[str] | str


@dataclass(frozen=True)
class ExecResult:
    """The result of one command that ran in a box."""

    code: int
    """Exit status of the command. It is 128 + N if signal N ended the command, and 137 if the timeout did."""
    stdout: bytes
    """Standard output. If it was longer than `max_bytes` of `Box.exec`, only its beginning and its end are
    kept."""
    stderr: bytes
    """Standard error. If it was longer than `max_bytes` of `Box.exec`, only its beginning and its end are
    kept."""
    timed_out: bool = False
    """Whether the command exceeded its timeout, so that it and all processes it had started were killed."""
    truncated: bool = False
    """Whether the middle of `stdout` or `stderr` was left out. A line in that output marks the gap."""
    seconds: float = 0.0
    """Wall time of the command in seconds, measured inside the box."""
    signal: int = 0
    """The signal that ended the command's first process; 0 if it exited by itself."""
    began: bool = True
    """Whether the command's program ran at all. If not (the file is not executable, or the box had reached
    its limit of processes), `code` is 126 or 127, and `stderr` contains the reason."""

    @property
    def ok(self) -> bool:
        """Whether the command exited with status 0 before its timeout."""
        return self.code == 0 and not self.timed_out

    @property
    def text(self) -> str:
        """Standard output followed by standard error, decoded as UTF-8. Invalid bytes become U+FFFD."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")
