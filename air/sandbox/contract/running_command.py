"""`RunningCommand`: a handle to a command in a box. Through the handle, the caller reads output and writes
input while the command runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from air.sandbox.contract.result import Command, ExecResult

StreamName = Literal["stdout", "stderr", "terminal"]
WINDOW = 1 << 20
"""The maximum number of unread bytes of a command's output that air keeps, in this process and in the box
together. If the reader is too slow, the command must wait, as it does if a pipe is full."""


@dataclass(frozen=True)
class CommandInfo:
    """Describes a command that `Box.start` started: its arguments, and its process id in the box."""

    pid: int
    command: Command
    cwd: str
    """The absolute path of the folder in which the command started."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The environment variables that the caller gave to `Box.start`."""
    user: str = ""
    """The user that the caller gave to `Box.start`; empty for the usual user of the box's commands."""
    stdin: bool = False
    """Whether the command has a standard input to which `RunningCommand.write` writes."""
    terminal: bool = False
    """Whether the command runs in a terminal."""


class RunningCommand(ABC):
    """A handle to one command that `Box.start` started. A command may have any number of handles.

    The command continues if a handle is dropped. It ends by itself, at its timeout, by a signal, or with its
    box. If the box is gone, every method raises BoxDiedError. If the command has ended, `write`,
    `close_stdin`, `signal` and `resize` raise BoxCommandError.
    """

    @property
    @abstractmethod
    def info(self) -> CommandInfo:
        """The description of the command: how it was started, and its process id."""

    @property
    def pid(self) -> int:
        """The process id of the command's first process, as the box sees it."""
        return self.info.pid

    @abstractmethod
    def output(self) -> AsyncIterator[tuple[StreamName, bytes]]:
        """Yields the output as it comes, until the command has ended, as pairs: the name of the stream
        (`stdout`, `stderr` or `terminal`), and bytes.

        The first handle of a command gets the whole output; any other handle gets only the output after its
        creation. If `WINDOW` bytes are unread because a reader is slow, the command waits for the reader;
        other commands of the box do not wait. Output that comes after the iterator was closed is discarded,
        and the command does not wait for it to be read.
        """

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Writes `data` to the command's standard input or, if the command runs in a terminal, to the
        terminal. Returns when the pipe or terminal has accepted all bytes; the command need not have read
        them yet.

        If the pipe or terminal is full, waits until the command reads from it. Raises BoxCommandError if the
        command has no standard input, has closed its input, or has ended.
        """

    @abstractmethod
    async def close_stdin(self) -> None:
        """Closes the command's standard input, so that the command reads end-of-file. Closing twice is
        harmless.

        Raises BoxCommandError if the command has no standard input or runs in a terminal. To send end-of-file
        to a terminal, `write` the byte 4 (Ctrl-D).
        """

    @abstractmethod
    async def signal(self, number: int) -> None:
        """Sends the signal `number` to the command's process group. SIGKILL also goes to all other processes
        that the command started."""

    @abstractmethod
    async def resize(self, rows: int, columns: int) -> None:
        """Changes the size of the command's terminal. Raises BoxCommandError if the command has no
        terminal."""

    @abstractmethod
    async def wait(self) -> ExecResult:
        """Waits until the command has ended, and returns its result. `stdout` and `stderr` of the result are
        empty.

        If nobody iterates over `output` of this handle, the output is discarded from now on.
        """
