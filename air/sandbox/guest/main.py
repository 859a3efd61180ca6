"""The guest: the program in every box that executes all commands and file operations.

The guest exchanges messages (frames) with the host, the air process that started the box, on standard input
and output. Commands never inherit these streams, and the guest's memory cannot be read by commands, so
nothing in the box can forge its frames. Each command runs in a session of its own. A timeout or a cancelled
request kills the command with all its descendants. The guest recognises the descendants by an environment
variable (`AIR_COMMAND`) that it sets to another value for each command. The guest ends, and with it
everything in the box, if standard input closes, if no bytes come for `SILENCE_SECONDS` (a killed container
engine leaves the stream open), or if the time to live is over. Standard library only, Python >= 3.8, one
thread.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time

# Inside a box there is no package `air`: the bootstrap loads these modules under the same names.
from air.sandbox.guest import frames, running_commands
from air.sandbox.guest.accounts import Rights
from air.sandbox.guest.command_streams import StartedCommand, StartedCommands
from air.sandbox.guest.entries import Entries
from air.sandbox.guest.files import FileRefused, Files, OpenFiles, Refused
from air.sandbox.guest.outbox import MultiFrameAnswers, Outbox
from air.sandbox.guest.relay import Relay
from air.sandbox.guest.spawn import NotStarted, Starter, bound
from air.sandbox.guest.users import become_guest, give_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from air.sandbox.guest.files import AnswerFrames

    Operation = Callable[[dict[str, Any], bytes], "dict[str, Any] | None"]

READ_BYTES = 1 << 16
"""Maximum number of bytes that the guest (this program) reads at once from the host or from a command's
output: the size of a pipe's buffer."""
OF_USERS = frozenset({"exec", "start", "write", "mkdir", "make", "rename", "stat"})
"""The names of the requests that the guest (this program) handles in an open box with the rights of the user
whom the request names. Requests with several answers are not listed, although they use a user's rights too:
for them, `Rights.during` sets the rights before each answer."""
FRAMES = 16
"""Maximum number of received frames (messages of the host) that the guest (this program) handles before it
looks for ended commands and sends their results."""
SILENCE_SECONDS = 300.0
HOST_SILENT = "its host was silent for too long"
"""The reason that the guest (this program) reports when it ends because the host (the air process that
started the box) sent nothing for `SILENCE_SECONDS`. Commands in the box can never cause such an end, so it
counts as an infrastructure error."""
PATIENCE = 20.0
"""Seconds that the guest (this program) waits for its configuration, which the host sends together with the
guest's program. If no configuration comes, for example because the host's process has died, the guest ends.
The time is long, because on a busy machine the configuration can be late. See also
`air.sandbox.wire.connection.PATIENCE`."""


class Guest:
    """The event loop of the guest, air's program in a box. It waits for requests of the host (the air process
    that started the box), for output of commands, and for data of network connections to forwarded ports, and
    handles them."""

    def __init__(self, config: dict[str, Any]) -> None:
        bound(config.get("bounds", []))
        self.me = os.getpid()
        self.mark = os.urandom(8).hex()
        self.starter = Starter(config, self.mark)
        # This needs root: the guest gives up most of its capabilities next.
        self.reuse = _reuse(config["reuse"], self.starter) if "reuse" in config else None
        self.rights: Rights | None = None
        if config.get("open"):
            folders = [seen for _, seen in config["roots"][:-1]]
            self.rights = Rights(config["open"], folders, config["keep"])
        elif self.starter.user is not None:
            give_folders([seen for _, seen in config["roots"]], self.starter.user)
            become_guest(self.starter.user)
        running_commands.prctl(running_commands.PR_SET_DUMPABLE, 0)
        self.files = OpenFiles(config["roots"]) if self.rights else Files(config["roots"])
        self.entries = Entries(self.files)
        self.remove: str | None = config["remove"]
        self.inbox = bytearray()
        self.commands: dict[int, running_commands.Command] = {}
        self.freezer = running_commands.Freezer(self._processes, self.commands, self.me == 1)
        self.pipes: dict[int, running_commands.Command | None] = {}
        self.deadline = float("inf")
        self.silence: float = config.get("silence", SILENCE_SECONDS)
        self.heard = time.monotonic()
        self.over = self.frozen = self.behind = False
        self.killer = running_commands.Killer(self._processes, self.reap, self.me == 1)
        for fd in config.get("locks", ()):  # held until this process ends, but not by its commands
            os.set_inheritable(fd, False)
        self._prepare()
        if self.reuse is not None:
            self.reuse.begin(self)
        self.operations = self._operations()

    def _prepare(self) -> None:
        running_commands.prctl(running_commands.PR_SET_CHILD_SUBREAPER, 1)
        if self.me != 1:
            running_commands.prctl(running_commands.PR_SET_PDEATHSIG, signal.SIGTERM)
        for number in running_commands.SIGNALS:
            signal.signal(number, lambda *_: None)  # not ignored: commands would inherit that
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # commands inherit the mask
        if self.me != 1:
            signal.signal(signal.SIGTERM, self._interrupted)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.wake, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        os.set_blocking(1, False)
        self.epoll = select.epoll()
        for fd in (0, self.wake):
            self.epoll.register(fd, select.EPOLLIN)
        self.epoll.register(1, 0)
        self.outbox = Outbox(self.epoll)
        self.send = self.outbox.send
        self.relay = Relay(self.epoll, self.outbox.queue)
        self.started = StartedCommands(self.epoll, self.outbox.send)
        self.answers = MultiFrameAnswers(self.outbox)
        self.outbox.sources = [self.relay, self.started, self.answers]

    def _interrupted(self, *_: object) -> None:
        self.over = True  # no exception, which could interrupt `end` and leave processes stopped

    def run(self) -> None:
        """Handles requests until the guest (this program) must end: standard input closes or is silent for
        too long, or the time to live is over."""
        ready: dict[str, Any] = {"op": "ready", "shell": self.starter.shell}
        if self.rights:
            ready.update(self.rights.facts(self.files.roots[0][1]))
        self.send(ready)
        self.outbox.flush()
        while not self.over:
            for fd, events in self.epoll.poll(self._patience()):
                if fd == 0:
                    if not self.behind and not self._receive():
                        return
                elif fd == 1:
                    if events & (select.EPOLLERR | select.EPOLLHUP):
                        return
                    self.outbox.flush()
                elif fd == self.wake:
                    os.read(self.wake, 4096)
                elif fd in self.pipes:
                    self._drain(fd)
                elif self.reuse is not None and self.reuse.event(fd):
                    pass
                elif self.started.event(fd, events) or self.relay.event(fd, events):
                    self.outbox.flush()
            self._work()
            self.reap()
            for command in list(self.commands.values()):
                self._kill_if_late(command)
            self.killer.wait()
            for command in list(self.commands.values()):
                self._advance(command, time.monotonic())
            now = time.monotonic()
            if now >= self.deadline:
                self._leave("its time to live is over")
            elif now >= self.heard + self.silence:
                self._leave(HOST_SILENT)
            if self.outbox.unsent:
                self.outbox.flush()
            if self.reuse is not None:
                self.reuse.reset_when_sent()

    def _leave(self, reason: str) -> None:
        self.send({"op": "bye", "reason": reason})
        self.over = True

    def _patience(self) -> float:
        if self.behind:
            return 0.0
        times = [command.drain_until or command.deadline for command in self.commands.values()]
        return max(0.0, min(self.heard + self.silence, self.deadline, *times) - time.monotonic())

    # Frames

    def _receive(self) -> bool:
        data = os.read(0, READ_BYTES)
        self.heard = time.monotonic()
        self.inbox += data
        return bool(data)

    def _work(self) -> None:
        """Handles at most `FRAMES` received frames (messages of the host). Sets `self.behind` to true if
        further received frames may be waiting."""
        for _ in range(FRAMES):
            request = frames.take(self.inbox)
            self.behind = request is not None
            if request is None:
                return
            self.handle(*request)

    # Requests: each method takes a frame. It returns the answer, or None if no answer comes, or a later one.

    def handle(self, header: dict[str, Any], body: bytes) -> None:
        """Handles one request of the host, which arrived as a frame with this `header` and `body`, and queues
        its answer. If the request fails, the answer contains the error."""
        try:
            if self.reuse is not None:
                self.reuse.saw_request(header)
            operation = self.operations.get(header["op"])
            if operation is None:
                raise Refused(f"unknown operation {header['op']!r}")
            if self.rights and header["op"] in OF_USERS:
                header["account"] = self.rights.of(header)
            answer = operation(header, body)
        except (OSError, Refused, ValueError) as error:
            answer = {"error": running_commands.reason(error)}
        if answer is not None:
            self.send(dict(answer, id=header["id"]))

    def _operations(self) -> dict[str, Operation]:
        return {
            **({} if self.reuse is None else {"reset": self.reuse.reset}),
            "abort": self._abort,
            "beat": self._beat,
            "close": self.started.close_input,
            "continue": self.freezer.go_on,
            "end": self._end_processes,
            "exec": self._exec,
            "freeze": self._freeze,
            "get": lambda header, _: self._answer_in_frames(header, self.files.get(header)),
            "gather": lambda header, _: self._answer_in_frames(header, self.entries.gather(header)),
            "grant": self.started.grant,
            "input": self.started.write,
            "kill": self._cancel,
            "lease": self._lease,
            "list": lambda header, _: self._answer_in_frames(header, self.entries.list(header)),
            "listen": self.relay.listen,
            "make": self.entries.make,
            "mkdir": self.files.mkdir,
            "relay": self._relay,
            "remove": lambda header, _: self._answer_in_frames(header, self.entries.remove(header)),
            "rename": self.entries.rename,
            "reroot": self.files.reopen,
            "resize": self.started.resize,
            "signal": self._signal,
            "start": self._exec,
            "stat": self.entries.stat,
            "stop": self.freezer.stop,
            "write": self.files.write,
        }

    def _abort(self, header: dict[str, Any], _: bytes) -> None:
        """Cancels the request with the id `header["target"]` (a `write`, an `input`, or a request with
        several answers), because nobody waits for its answer any more. Gets no answer itself; its body is
        ignored."""
        if self.rights:
            self.rights.of_root()
        self.files.abort(header["target"])
        self.started.abort(header["target"])
        self.answers.abort(header["target"])

    def _beat(self, *_: object) -> None:
        self.send({"op": "beat"})

    def _answer_in_frames(self, header: dict[str, Any], answer: AnswerFrames) -> None:
        """Begins the operation of the request `header`, whose answer consists of several frames (messages).
        `answer` is a generator that does the operation and yields the frames; between two frames, the guest
        (this program) does other work."""
        if self.rights:
            answer = self.rights.during(answer, header)
        self.answers.add(header["id"], answer)

    def _lease(self, header: dict[str, Any], _: bytes) -> None:
        self.deadline = time.monotonic() + header["seconds"]

    def _relay(self, header: dict[str, Any], body: bytes) -> None:
        self.relay.take(header, body)
        self.outbox.flush()

    # Commands

    def _freeze(self, *_frame: object) -> dict[str, Any]:
        """Kills every process of the box except the guest (this process), and refuses new commands for good,
        so that the workspace can become a snapshot. Returns an empty answer; the request's frame is ignored.
        Raises Refused if the processes do not end."""
        self.frozen = True
        for command in list(self.commands.values()):
            command.cancelled = True
        if not self.killer.kill_all():
            raise Refused("the processes of the box do not end")
        return {}

    def _end_processes(self, *_frame: object) -> dict[str, Any]:
        """Kills every process of the box except the guest (this process). Requests that wait for a running
        command still get its result. Returns an empty answer; the request's frame is ignored. Raises Refused
        if the processes do not end."""
        if not self.killer.kill_all():
            raise Refused("the processes of the box do not end")
        return {}

    def _exec(self, header: dict[str, Any], body: bytes) -> None:
        ident: int = header["id"]
        if self.frozen:
            raise Refused("the box is frozen")
        try:
            body = self.files.write_before_command(header, body)
        except FileRefused as error:
            self.send({"id": ident, "refused": [error.path, running_commands.reason(error.cause)]})
            self._has_ended(header.get("reset"))
            return
        self.killer.wait()
        header["now"] = time.monotonic()
        try:
            child = self.starter.start(ident, header, body)
        except NotStarted as error:
            self.send(*running_commands.failed_start(ident, error.code, str(error)))
            self._has_ended(header.get("reset"))
            return
        if header["op"] == "start":
            started = self.commands[ident] = StartedCommand(ident, child, header)
            self.started.add(started)
            return
        command = self.commands[ident] = running_commands.Command(ident, child, header)
        for fd in child.outputs:
            os.set_blocking(fd, False)
            self.pipes[fd] = command
            self.epoll.register(fd, select.EPOLLIN)

    def _signal(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        """Sends the signal `header["number"]` to the process group of the command that `Box.start` started
        with the request id `header["target"]`. SIGKILL goes to all the command's descendants. Returns an
        empty answer; the request's body is ignored."""
        command = self.started.live(header)
        if header["number"] == signal.SIGKILL:
            self.killer.kill(command)
        else:
            os.kill(-command.pid, header["number"])
        return {}

    def _cancel(self, header: dict[str, Any], _: bytes) -> None:
        command = self.commands.get(header["target"])
        if command is not None:
            command.cancelled = True
            self.killer.kill(command)

    def _drain(self, fd: int) -> None:
        command = self.pipes[fd]
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # a terminal whose other ends are closed
            data = b""
        if not data:
            self.epoll.unregister(fd)
            os.close(fd)
            del self.pipes[fd]
            if command is not None:
                command.open.discard(fd)
        elif command is not None:
            command.outputs[fd].add(data)
            command.heard(time.monotonic())

    def reap(self) -> None:
        """Collects the exit status of dead child processes: the first processes of commands, and orphaned
        processes, whose new parent is the guest (this process)."""
        leaders = {command.pid: command for command in self.commands.values()}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in leaders:
                leaders[pid].status = status
            elif self.reuse is not None:
                self.reuse.strays += 1

    def _kill_if_late(self, command: running_commands.Command) -> None:
        """Kills a command whose deadline has passed."""
        if command.status is None and time.monotonic() >= command.deadline:
            command.timed_out = True
            self.killer.kill(command)
            command.deadline = time.monotonic() + 1.0  # if a process is slow to die, kill again

    def _advance(self, command: running_commands.Command, now: float) -> None:
        """Sends the result of a command, at the monotonic time `now`, if the command has ended and all its
        output is read."""
        if command.status is None:
            return
        if command.drain_until is None:
            command.drain(now)
        elif command.open and now < command.drain_until:
            return
        for fd in command.open.intersection(self.pipes):  # this loop may be late: output can wait
            self._drain(fd)
        if not command.settled(now):
            return
        del self.commands[command.ident]
        if self.reuse is not None:
            self.reuse.saw_end(command)
        left = self.started.forget(command) if isinstance(command, StartedCommand) else command.open
        for fd in left:  # a background process holds the pipe: read on, and discard
            self.pipes[fd] = None
        if not command.cancelled:
            self.send(*command.result(now, self.starter.began(command.ident)))
        self._has_ended(command.reset)

    def _has_ended(self, reset: int | None) -> None:
        """Called when a command's answer is queued. `reset` is the id of the reset that follows the box's
        last command; None after any other command."""
        if reset is not None and self.reuse is not None:
            self.reuse.reset_after(reset)

    def _processes(self, command: running_commands.Command | None = None) -> set[int]:
        """Returns the pids of the live processes of one command (its first process and all descendants), or
        of all processes of the box except the guest (this process) if `command` is None."""
        if command is None and self.me == 1:
            return set(running_commands.processes()) - {1}
        leaders = {other.pid for other in self.commands.values()}
        return running_commands.tree(self.me, self.mark, leaders, command, self.rights)

    def end(self) -> None:
        """Cleans up before the guest (this process) exits: kills the box's remaining processes, and removes
        the box's folder on the host if the configuration names it (`self.remove`).

        If the guest is process 1 of its pid namespace, the kernel kills the processes instead when the guest
        exits.
        """
        if self.me != 1:
            self.killer.kill_all()
        if self.remove:
            import shutil

            try:
                shutil.rmtree(self.remove, ignore_errors=True)
            except RecursionError:  # thousands of nested folders
                return  # the host, or the next cleanup, removes what remains


def _reuse(config: dict[str, Any], starter: Starter) -> Any:
    """Returns the object (a `Reuse` of the module `air.sandbox.reuse.resets`) that can reset this box for
    another caller.

    `config` is the part of the configuration of the guest (this program) about resets. `config["sources"]`
    maps module names to source code, `resets` last; this function executes them. The host sends the sources
    only to reusable boxes, because other boxes do not need them.
    """
    module: Any = None
    for name, source in config["sources"].items():
        full_name = f"air.sandbox.reuse.{name}"
        module = sys.modules[full_name] = type(os)(full_name)
        exec(compile(source, f"air/{name}.py", "exec"), module.__dict__)
    return module.Reuse(config, starter)


def main(patience: float = PATIENCE) -> None:
    """Runs the guest, air's program in a box: receives the configuration, handles requests until the box
    ends, and cleans up. If no configuration comes within `patience` seconds, ends the process."""
    guest = Guest(frames.receive(patience))
    gc.freeze()  # garbage collections skip all objects that exist by now
    try:
        guest.run()
    except BrokenPipeError:
        pass  # the host's process is gone
    finally:
        guest.end()
