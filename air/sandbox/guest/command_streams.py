"""Sends the output of commands that `Box.start` started to the host (the air process that started the box)
while they run, and passes input on to them. Part of the guest, air's program in the box.

The host grants credit to each command: the number of output bytes that the guest may read and send. If the
reader on the host is slow, the credit runs out, and the command must wait, as it does if a pipe is full.
Outputs are read in turn, and only while the stream to the host can take more bytes, so much output of one
command does not delay other commands. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import collections
import os
import select
import time

from air.sandbox.guest.files import Refused
from air.sandbox.guest.outbox import FrameSource
from air.sandbox.guest.running_commands import Command
from air.sandbox.guest.spawn import resize_terminal, unread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from air.sandbox.guest.running_commands import Child

    Queue = Callable[[dict[str, Any], bytes], None]

PIECE = 1 << 16
PIECE_COST = 1024
"""The number of bytes that each piece of output costs in addition to its own bytes, because many tiny pieces
take much memory. Both count against the command's credit: the number of output bytes that the guest (this
program) may still send to the host."""
ENDED = "the command has ended"


class StartedCommand(Command):
    """A command that `Box.start` started. Also stores its credit (the number of output bytes that the guest,
    this program, may still send to the host), and the input that the command has not read yet."""

    def __init__(self, ident: int, child: Child, header: dict[str, Any]) -> None:
        super().__init__(ident, child, dict(header, max_bytes=0))
        names = ("terminal",) if header.get("terminal") else ("stdout", "stderr")
        self.names = {fd: name for fd, name in zip(self.pipes, names)}  # noqa: B905, C416 — Python 3.8
        self.credit: int = header["window"]
        self.terminal = bool(header.get("terminal"))
        self.input = child.input
        self.armed = False  # whether epoll knows `input`
        self.writes: collections.deque[tuple[int, memoryview]] = collections.deque()
        self.left: dict[int, int] = {}  # bytes that were in a pipe when the command ended

    def drain(self, now: float) -> None:
        super().drain(now)
        self.left = {fd: unread(fd) for fd in self.open}

    def settled(self, now: float) -> bool:
        if not super().settled(now):
            return False
        if any(self.left[fd] > 0 for fd in self.open):
            self.drain_until = float("inf")  # until the reader has taken the rest
            return False
        return True


class StartedCommands(FrameSource):
    """Passes the output of started commands to the host (the air process that started the box), and input
    from the host to the commands."""

    def __init__(self, epoll: select.epoll, queue: Queue) -> None:
        self.epoll = epoll
        self.queue = queue
        self.commands: dict[int, StartedCommand] = {}
        self.outputs: dict[int, StartedCommand] = {}
        self.inputs: dict[int, StartedCommand] = {}
        self.ready: collections.deque[int] = collections.deque()

    def add(self, command: StartedCommand) -> None:
        """Begins to handle a command that was just started: watches its outputs, and reports its process id
        to the host."""
        self.commands[command.ident] = command
        for fd in command.pipes:
            os.set_blocking(fd, False)
            self.outputs[fd] = command
            self.epoll.register(fd, select.EPOLLIN | select.EPOLLONESHOT)
        if command.input is not None:
            os.set_blocking(command.input, False)
        self.queue({"id": command.ident, "more": True, "pid": command.pid}, b"")

    def event(self, fd: int, events: int) -> bool:
        """Handles an epoll event of the file descriptor `fd`: notes that a command has output to read, or
        writes waiting input to it. Returns true if `fd` belongs to a started command, else false. `events`,
        epoll's bit mask, is ignored."""
        if fd in self.outputs:
            if fd not in self.ready:
                self.ready.append(fd)
            return True
        if fd not in self.inputs:
            return False
        self._write(self.inputs[fd])
        return True

    def pull(self) -> None:
        """Reads a piece of output from the next command that has output, and queues the piece as a frame
        (message) for the host."""
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
        command.credit -= len(data) + PIECE_COST
        command.left[fd] = command.left.get(fd, 0) - len(data)
        command.heard(time.monotonic())
        self.queue({"id": command.ident, "more": True, "stream": command.names[fd]}, data)
        if command.credit > 0:
            self.epoll.modify(fd, select.EPOLLIN | select.EPOLLONESHOT)

    def _close_output(self, command: StartedCommand, fd: int) -> None:
        self.epoll.unregister(fd)
        os.close(fd)
        del self.outputs[fd]
        command.open.discard(fd)

    def forget(self, command: StartedCommand) -> list[int]:
        """Removes a command that has ended, and closes its input. Returns the file descriptors of its outputs
        that other processes still hold open; the caller then reads and discards this output."""
        del self.commands[command.ident]
        for fd in command.open:
            del self.outputs[fd]
            self.epoll.modify(fd, select.EPOLLIN)
        self._close_input(command, ENDED)
        return list(command.open)

    # Requests: each method takes a frame. It returns the answer, or None if the answer comes later.

    def grant(self, header: dict[str, Any], _: bytes) -> None:
        """Handles the request `grant` of the host: allows `header["bytes"]` more bytes of output (credit) to
        the command with the request id `header["target"]`. Ignores a command that has ended, and the
        request's body."""
        command = self.commands.get(header["target"])
        if command is None:
            return
        command.credit += header["bytes"]
        if command.credit > 0:
            for fd in command.open:
                if fd not in self.ready:
                    self.epoll.modify(fd, select.EPOLLIN | select.EPOLLONESHOT)

    def write(self, header: dict[str, Any], body: bytes) -> None:
        """Handles the request `input` of the host: writes `body` to the input of the command with the request
        id `header["target"]`. Sends the answer when all of `body` is in the command's pipe or terminal.
        Raises Refused if the command has ended or has no open input."""
        command = self.live(header)
        if command.input is None:
            raise Refused("the command has no standard input, or it is closed")
        command.writes.append((header["id"], memoryview(body)))
        if len(command.writes) == 1:
            self._write(command)

    def abort(self, target: int) -> None:
        """Discards the rest of the `input` request with the id `target`, because nobody waits for its answer
        any more."""
        for command in self.commands.values():
            rest = [write for write in command.writes if write[0] != target]
            command.writes = collections.deque(rest)

    def close_input(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        """Handles the request `close` of the host: closes the standard input of the command with the request
        id `header["target"]`. Returns an empty answer. Raises Refused if the command runs in a terminal or
        has ended."""
        command = self.live(header)
        if command.terminal:
            raise Refused("a terminal is not closed: write the byte 4 to it")
        self._close_input(command, "the standard input was closed")
        return {}

    def resize(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        """Handles the request `resize` of the host: gives the terminal of the command with the request id
        `header["target"]` the size `header["size"]` (rows, columns). Returns an empty answer. Raises Refused
        if the command has no terminal or has ended."""
        command = self.live(header)
        if not command.terminal or command.input is None:
            raise Refused("the command has no terminal")
        resize_terminal(command.input, header["size"])
        return {}

    def live(self, header: dict[str, Any]) -> StartedCommand:
        """Returns the command with the request id `header["target"]`. Raises Refused if the command's first
        process has ended."""
        command = self.commands.get(header["target"])
        if command is None or command.status is not None:
            raise Refused(ENDED)
        return command

    def _write(self, command: StartedCommand) -> None:
        """Writes as many of the waiting bytes as the command's input accepts now. Sends the answer to each
        `input` request whose bytes are all written."""
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

    def _arm(self, command: StartedCommand, fd: int) -> None:
        change = self.epoll.modify if command.armed else self.epoll.register
        change(fd, select.EPOLLOUT | select.EPOLLONESHOT)
        command.armed = True
        self.inputs[fd] = command

    def _close_input(self, command: StartedCommand, reason: str) -> None:
        """Closes the command's input, if it is open. Waiting `input` requests, whose bytes are not all
        written, are answered with the error `reason`."""
        fd, command.input = command.input, None
        if fd is None:
            return
        if command.armed:
            self.epoll.unregister(fd)
            del self.inputs[fd]
        os.close(fd)
        while command.writes:
            self.queue({"id": command.writes.popleft()[0], "error": reason}, b"")
