"""`RunningCommand`: a command that runs in a box while its user reads its output and writes its input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from air.sandbox.contract.result import Command, ExecResult

StreamName = Literal["stdout", "stderr", "terminal"]
WINDOW = 1 << 20
"""How many bytes of a command's output this process and the box may hold before someone reads them. Then the
command waits, as it does for a full pipe."""


@dataclass(frozen=True)
class CommandInfo:
    """How a command that `Box.start` started was started, and its process id in the box."""

    pid: int
    command: Command
    cwd: str
    """The absolute path of the folder in which the command started."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The environment variables that were given to `Box.start`."""
    user: str = ""
    """The user who was named; empty for the user of the box's commands."""
    stdin: bool = False
    """Whether the command has a standard input to which `RunningCommand.write` writes."""
    terminal: bool = False
    """Whether the command runs in a terminal."""


class RunningCommand(ABC):
    """A handle of one command that `Box.start` started. Any number of handles may belong to one command.

    The command goes on if a handle is dropped. It ends by itself, at its timeout, by a signal, or with its
    box. If the box is gone, every method raises BoxDiedError. A method that needs a live command raises
    BoxCommandError if the command has ended.
    """

    @property
    @abstractmethod
    def info(self) -> CommandInfo:
        """How the command was started, and its process id."""

    @property
    def pid(self) -> int:
        """The process id of the command's first process, as the box sees it."""
        return self.info.pid

    @abstractmethod
    def output(self) -> AsyncIterator[tuple[StreamName, bytes]]:
        """Yields the output as it comes, as pairs of a stream's name and bytes, until the command has ended.

        The first handle of a command gets all output, another gets what comes after it was made. If a reader
        is slow, the command waits for it once `WINDOW` bytes are unread; other commands of the box do not.
        What comes after the iterator was closed is discarded, and nothing waits for it.
        """

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Writes `data` to the command's standard input or terminal; returns when the box has passed it on.

        It waits as long as the command does not read. Raises BoxCommandError if the command has no standard
        input, has closed it, or has ended.
        """

    @abstractmethod
    async def close_stdin(self) -> None:
        """Closes the standard input, so that the command reads its end. Closing it twice is harmless.

        Raises BoxCommandError if the command has none. A terminal has an end only if `write` sends it one,
        the byte 4.
        """

    @abstractmethod
    async def signal(self, number: int) -> None:
        """Sends a signal to the command's process group; SIGKILL goes to all processes that it started."""

    @abstractmethod
    async def resize(self, rows: int, columns: int) -> None:
        """Changes the size of the command's terminal. Raises BoxCommandError if it has none."""

    @abstractmethod
    async def wait(self) -> ExecResult:
        """Waits until the command has ended, and returns its result, whose `stdout` and `stderr` are empty.

        If nobody iterates `output` of this handle, its output is discarded from now on.
        """
