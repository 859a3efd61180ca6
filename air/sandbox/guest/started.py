"""Commands whose output the guest sends while they run, and whose input it passes on.

The harness grants each of them credit, and the guest reads no more output than that: a command waits, as it
does for a full pipe, until its reader has caught up. Outputs are read in turn, and only while the stream to
the harness has room, so a flood delays no other command. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import collections
import os
import select
import time

from air.sandbox.guest.files import Refused
from air.sandbox.guest.outbox import Source
from air.sandbox.guest.running_commands import Command
from air.sandbox.guest.spawn import resize_terminal, unread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from air.sandbox.guest.running_commands import Child

    Queue = Callable[[dict[str, Any], bytes], None]

PIECE = 1 << 16
COST = 1024
"""What a piece costs of the credit in addition to its bytes, because many tiny pieces take memory, too."""
ENDED = "the command has ended"


class Started(Command):
    """A running command with its credit, and the input that it has not taken yet."""

    def __init__(self, ident: int, child: Child, header: dict[str, Any]) -> None:
        super().__init__(ident, child, dict(header, max_bytes=0))
        names = ("terminal",) if header.get("terminal") else ("stdout", "stderr")
        self.names = {fd: name for fd, name in zip(self.pipes, names)}  # noqa: B905, C416 — Python 3.8
        self.credit: int = header["window"]
        self.terminal = bool(header.get("terminal"))
        self.input = child.input
        self.armed = False  # epoll knows `input`
        self.writes: collections.deque[tuple[int, memoryview]] = collections.deque()
        self.left: dict[int, int] = {}  # bytes that were in a pipe when the command ended

    def drain(self, now: float) -> None:
        super().drain(now)
        self.left = {fd: unread(fd) for fd in self.open}

    def settled(self, now: float) -> bool:
        if not super().settled(now):
            return False
        if any(self.left[fd] > 0 for fd in self.open):
            self.drain_until = float("inf")  # until the reader has taken what it may still get
            return False
        return True


class StartedCommands(Source):
    """Moves the output and input of started commands between their pipes and the harness."""

    def __init__(self, epoll: select.epoll, queue: Queue) -> None:
        self.epoll = epoll
        self.queue = queue
        self.commands: dict[int, Started] = {}
        self.outputs: dict[int, Started] = {}
        self.inputs: dict[int, Started] = {}
        self.ready: collections.deque[int] = collections.deque()

    def add(self, command: Started) -> None:
        """Begins to read the outputs of a command, and tells the harness its process id."""
        self.commands[command.ident] = command
        for fd in command.pipes:
            os.set_blocking(fd, False)
            self.outputs[fd] = command
            self.epoll.register(fd, select.EPOLLIN | select.EPOLLONESHOT)
        if command.input is not None:
            os.set_blocking(command.input, False)
        self.queue({"id": command.ident, "more": True, "pid": command.pid}, b"")

    def event(self, fd: int, events: int) -> bool:
        """Handles an epoll event of the descriptor `fd`. Returns False if it belongs to no command here."""
        if fd in self.outputs:
            if fd not in self.ready:
                self.ready.append(fd)
            return True
        if fd not in self.inputs:
            return False
        self._write(self.inputs[fd])
        return True

    def pull(self) -> None:
        """Reads a piece of the next output that has one, and queues it."""
        if not self.ready:
            return
        fd = self.ready.popleft()
        command = self.outputs.get(fd)
        if command is None or command.credit <= 0:  # more credit makes epoll report it again
            return
        try:
            data = os.read(fd, min(PIECE, command.credit))
        except BlockingIOError:
            self.epoll.modify(fd, select.EPOLLIN | select.EPOLLONESHOT)
            return
        except OSError:  # all other ends of a terminal are closed
            data = b""
        if not data:
            self._close_output(command, fd)
            return
        command.credit -= len(data) + COST
        command.left[fd] = command.left.get(fd, 0) - len(data)
        command.heard(time.monotonic())
        self.queue({"id": command.ident, "more": True, "stream": command.names[fd]}, data)
        if command.credit > 0:
            self.epoll.modify(fd, select.EPOLLIN | select.EPOLLONESHOT)

    def _close_output(self, command: Started, fd: int) -> None:
        self.epoll.unregister(fd)
        os.close(fd)
        del self.outputs[fd]
        command.open.discard(fd)

    def forget(self, command: Started) -> list[int]:
        """Closes the input of a command that has ended. Returns its outputs that other processes hold."""
        del self.commands[command.ident]
        for fd in command.open:
            del self.outputs[fd]
            self.epoll.modify(fd, select.EPOLLIN)
        self._close_input(command, ENDED)
        return list(command.open)

    # Requests: each method takes a frame and returns the answer, or None to send a later one

    def grant(self, header: dict[str, Any], _: bytes) -> None:
        """Adds `bytes` to the credit of the command `target`."""
        command = self.commands.get(header["target"])
        if command is None:
            return
        command.credit += header["bytes"]
        if command.credit > 0:
            for fd in command.open:
                if fd not in self.ready:
                    self.epoll.modify(fd, select.EPOLLIN | select.EPOLLONESHOT)

    def write(self, header: dict[str, Any], body: bytes) -> None:
        """Passes `body` to the command `target`; the answer comes when the command's pipe has all of it."""
        command = self.live(header)
        if command.input is None:
            raise Refused("the command has no standard input, or it is closed")
        command.writes.append((header["id"], memoryview(body)))
        if len(command.writes) == 1:
            self._write(command)

    def abort(self, target: int) -> None:
        """Gives up the rest of the `input` request `target`, for whose answer nobody waits any more."""
        for command in self.commands.values():
            rest = [write for write in command.writes if write[0] != target]
            command.writes = collections.deque(rest)

    def close_input(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        """Closes the standard input of the command `target`."""
        command = self.live(header)
        if command.terminal:
            raise Refused("a terminal is not closed: write the byte 4 to it")
        self._close_input(command, "the standard input was closed")
        return {}

    def resize(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        """Sets the rows and columns of the terminal of the command `target`."""
        command = self.live(header)
        if not command.terminal or command.input is None:
            raise Refused("the command has no terminal")
        resize_terminal(command.input, header["size"])
        return {}

    def live(self, header: dict[str, Any]) -> Started:
        """Returns the command `target`, whose first process still runs. Raises Refused if it has ended."""
        command = self.commands.get(header["target"])
        if command is None or command.status is not None:
            raise Refused(ENDED)
        return command

    def _write(self, command: Started) -> None:
        """Writes as much as the command's input accepts, and answers each request that is done."""
        fd = command.input
        assert fd is not None
        try:
            while command.writes:
                ident, data = command.writes[0]
                data = data[os.write(fd, data) :] if data else data
                command.writes[0] = ident, data
                if not data:
                    command.writes.popleft()
                    self.queue({"id": ident}, b"")
        except BlockingIOError:
            self._arm(command, fd)
        except OSError:  # no process reads it any more
            self._close_input(command, "the command has closed its standard input")

    def _arm(self, command: Started, fd: int) -> None:
        change = self.epoll.modify if command.armed else self.epoll.register
        change(fd, select.EPOLLOUT | select.EPOLLONESHOT)
        command.armed = True
        self.inputs[fd] = command

    def _close_input(self, command: Started, reason: str) -> None:
        """Closes the input, if it is open; requests that wait for it get `reason` as an error."""
        fd, command.input = command.input, None
        if fd is None:
            return
        if command.armed:
            self.epoll.unregister(fd)
            del self.inputs[fd]
        os.close(fd)
        while command.writes:
            self.queue({"id": command.writes.popleft()[0], "error": reason}, b"")
