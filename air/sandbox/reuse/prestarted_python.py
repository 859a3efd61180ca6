"""The part of the guest (air's program inside a box) that starts a Python interpreter before a command needs
it, so that commands begin sooner. A box is an isolated place for commands, here a container.

`Prestarted` is the interpreter that is started in advance (see `air.sandbox.reuse.zygote`). Before each
command it makes a fork, which already runs as the Unix user of commands and waits. The fork runs one command
(the interpreter's own script, or any other program) and ends. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import array
import binascii
import os
import select
import socket

from air.sandbox.guest.spawn import run_from_path
from air.sandbox.guest.users import (
    SETGID,
    SETPCAP,
    SETUID,
    SYS_RESOURCE,
    keep_capabilities,
    limit_capabilities,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from air.sandbox.guest.spawn import Starter

CONTROL, PROGRAM = 3, 4
JOB_BYTES = 1 << 16
CAPABILITIES = (SETGID, SETUID, SETPCAP, SYS_RESOURCE)
START_SECONDS, FORK_SECONDS = 20.0, 5.0
STARTED, READY, FAILED = b"started", b"ready", b"failed"


class NotPrestarted(Exception):
    """Raised if the Python interpreter that is started in advance does not start, does not answer, or has
    ended."""


class Prestarted:
    """A Python interpreter that is started in advance, once per box, and its fork that waits for a job (a
    command to run).

    `config` has the keys `argv` (the interpreter's command line), `cwd` (its working directory) and `program`
    (a zip file, in Base64, with the module `sitecustomize`: see `air.sandbox.reuse.zygote`). `starter` is the
    object that starts commands in the usual way, without a fork; its user and environment are used here, too.
    """

    def __init__(self, config: dict[str, Any], starter: Starter) -> None:
        self.argv: list[str] = config["argv"]
        self.cwd: str = config["cwd"]
        self.env = starter.env
        self.uid = starter.user or 0
        self.jobs: socket.socket | None = None
        """The socket to the fork of the interpreter that waits for a job (a command) or runs one. None if
        there is no such fork."""
        self.fork_pid = 0
        """The pid of the interpreter's last fork. 0 after the fork has ended."""
        self.waits = False
        """Whether the interpreter's last fork still waits for its job (a command)."""
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = os.memfd_create("air", os.MFD_CLOEXEC)
        os.write(program, binascii.a2b_base64(config["program"]))
        self.pid = self._launch(theirs.fileno(), program)
        theirs.close()
        os.close(program)
        if self._heard(self.control, START_SECONDS) != STARTED:
            raise NotPrestarted(f"{self.argv[0]} did not start")

    def _launch(self, control: int, program: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setsid()
            control, program = os.dup(control), os.dup(program)
            # Streams of the same kinds as a command's: Python remembers the kinds from its start.
            for number, fd in enumerate((os.open("/dev/null", os.O_RDONLY), os.pipe()[1])):
                os.dup2(fd, number)
            # Copied to unused numbers first, so that neither descriptor is overwritten.
            spare = max(control, program, PROGRAM) + 1
            os.dup2(control, spare)
            os.dup2(program, spare + 1)
            os.dup2(spare, CONTROL)
            os.dup2(spare + 1, PROGRAM)
            os.closerange(PROGRAM + 1, spare + 2)
            os.setgroups([])
            limit_capabilities(CAPABILITIES)
            keep_capabilities(CAPABILITIES)
            os.chdir(self.cwd)
            path = f"/proc/self/fd/{PROGRAM}"
            others = self.env.get("PYTHONPATH")
            env = dict(self.env, PYTHONPATH=f"{path}:{others}" if others else path)
            run_from_path(os.execve, self.argv, env)
        except BaseException as error:  # nothing may return into the guest's loop
            os.write(2, f"cannot start {self.argv[0]!r} in advance: {error}\n".encode())
        os._exit(1)

    def prepare(self) -> None:
        """Makes a new fork of the Python interpreter that was started in advance, and waits until the fork is
        ready to run a command. Raises NotPrestarted if that fails.

        The new fork kills all other processes of the Unix user who runs commands, so no command may run
        during this call.
        """
        self.discard()
        self.jobs, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        right = array.array("i", [theirs.fileno()])
        try:
            self.control.sendmsg(
                [b"%d" % self.uid], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, right)]
            )
            theirs.close()
            self.fork_pid = int(self._heard(self.control, FORK_SECONDS))
            if self._heard(self.jobs, FORK_SECONDS) != READY:
                raise NotPrestarted("its fork is not ready")
        except (OSError, ValueError) as error:
            raise NotPrestarted(str(error)) from error
        self.waits = True

    def run(
        self, argv: list[str], streams: tuple[int, ...], cwd: str, env: dict[str, str], mark: str
    ) -> int | None:
        """Gives a command to the waiting fork of the Python interpreter that was started in advance, and
        returns the fork's pid. Returns None if no fork waits, or if this command cannot run in a fork; the
        caller must then start the command itself.

        If the command equals the command line, folder and environment with which the interpreter was started,
        the fork runs the interpreter's own script. Otherwise it executes the command's program. `streams` are
        the file descriptors of the command's standard input, output and error. `mark` is the name of an
        environment variable in `env` whose value differs for each command; the comparison ignores it.
        """
        if not self.waits or self.jobs is None:
            return None
        plain = (argv, cwd.rstrip("/")) == (self.argv, self.cwd) and {**env, mark: ""} == {
            **self.env,
            mark: "",
        }
        texts = [*argv, *(f"{name}={value}" for name, value in env.items())]
        parts = ["script" if plain else "program", mark, env[mark], cwd, str(len(argv)), *texts]
        job = b"\0".join(os.fsencode(part) for part in parts)
        inherits = any(part.startswith("/proc/self/fd/") for part in argv)
        if inherits or not argv or len(job) > JOB_BYTES or any("\0" in part for part in parts):
            self.discard()
            return None
        rights = array.array("i", streams)
        try:
            self.jobs.sendmsg([job], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError:
            self.discard()
            return None
        self.waits = False
        return self.fork_pid

    def ended(self) -> tuple[int, int, bool] | None:
        """Receives the message that the last fork of the Python interpreter, which was started in advance,
        has ended; the interpreter sends it. Returns the fork's pid, its exit status in the form of
        `os.waitpid`, and whether the program of its command could be executed.

        Returns None if no message has come yet. Raises NotPrestarted if the interpreter itself has ended.
        """
        try:
            message = self.control.recv(64, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            message = b""
        if not message:
            raise NotPrestarted("it has ended")
        pid, status = map(int, message.split())
        began = True
        if self.jobs is not None:
            began = self._heard(self.jobs, 0.0) != FAILED
            self.jobs.close()
        self.jobs, self.fork_pid, self.waits = None, 0, False
        return pid, status, began

    def discard(self) -> None:
        """Ends the fork of the Python interpreter that waits for a command, if there is one. Called before
        another command of the same user starts in the usual way, because that command could harm the fork."""
        if self.fork_pid and self.waits and self.jobs is not None:
            self.jobs.close()
            self.jobs, self.waits = None, False
            self._heard(self.control, FORK_SECONDS)
            self.fork_pid = 0

    def _heard(self, source: socket.socket, seconds: float) -> bytes:
        """Receives one message from the socket `source`, and returns it. Returns `b""` if no message comes
        within `seconds`, or if the other side is gone."""
        try:
            if select.select([source], [], [], seconds)[0]:
                return source.recv(64)
        except OSError:
            pass
        return b""
