"""Runs prime-rl's launcher as a process, and ends it together with all processes that it has started.

The launcher also ends if this process is killed: the kernel then sends SIGTERM to it, after which prime-rl
ends its own processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from air.aio import restore_signal_handlers
from air.env.failure_breaker import opened

INTERRUPTED = 130
GRACE = 150.0
"""Seconds until the launcher is killed after its first signal; long, because prime-rl may need minutes to
end."""
PATIENCE = 30.0
"""Seconds until processes that cannot be killed, for example because a driver hangs, are left alone."""
LOOK = 0.5
"""Seconds between two calls of `LauncherProcess.look`, which checks whether the launcher must be ended."""
MARK = "AIR_PRIME_RL_LAUNCH"
"""An environment variable of the launcher and of all processes that it starts. Its value differs for each
launcher, so they can be found, also those that have left its process group, as the processes of torchrun."""
_MOST_BYTES = 8 << 20
"""Maximum number of bytes that are read of a process's environment. The kernel starts no process with more,
but a process can declare gigabytes of its memory to be its environment."""
_TIED = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM):
    sys.exit("prctl: " + os.strerror(ctypes.get_errno()))
if os.getppid() != int(sys.argv[1]):
    sys.exit("the process that started prime-rl has ended")
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)  # Python ignores them, and the command would inherit that
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""A Python program that asks the kernel to send SIGTERM to this process when its parent ends, and then
becomes the command in its arguments. Arguments: the parent's process id, and the command."""


class LauncherProcess:
    """A command, prime-rl's launcher, that runs in a process group of its own with the environment variables
    `env`. If the file `breaker` says that too many consecutive episodes failed, `look` ends the command.
    `grace` is the number of seconds between its first signal and its death. The command inherits the open
    files `keep` (file descriptors), such as a locked file."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        breaker: Path,
        *,
        grace: float = GRACE,
        keep: Sequence[int] = (),
    ) -> None:
        self._breaker, self._grace = breaker, grace
        self._mark = f"{MARK}={secrets.token_hex(16)}"
        self._first_signal: float | None = None
        self._reason = ""
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command],
            # prime-rl renames its processes with setproctitle, which would overwrite their environment.
            env={**env, MARK: self._mark.partition("=")[2], "SPT_NOENV": "1"},
            stdin=subprocess.DEVNULL,
            process_group=0,
            pass_fds=keep,
        )

    def is_running(self) -> bool:
        """Returns whether the launcher has not ended yet."""
        return self._child.poll() is None

    def send(self, number: int) -> None:
        """Sends the signal `number` to the launcher. The first call starts the period of grace, after which
        `look` kills the launcher's process group."""
        self._child.send_signal(number)
        if self._first_signal is None:
            self._first_signal = time.monotonic()

    def look(self) -> None:
        """Sends SIGTERM to the command if too many consecutive episodes failed, and prints the reason. Kills
        its process group if the command has had enough time since its first signal. Call this repeatedly."""
        if not self._reason and (reason := opened(self._breaker)):
            self._reason = reason
            print(f"error: {reason}", file=sys.stderr, flush=True)
            self.send(signal.SIGTERM)
        if self._first_signal is not None and time.monotonic() - self._first_signal > self._grace:
            self._kill_group()

    def wait(self, seconds: float) -> None:
        """Waits until the launcher has ended, but at most `seconds` seconds. Raises nothing if it has not
        ended then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=seconds)

    def end(self) -> None:
        """Kills the command and all processes that it has started, so that none of them still occupies a
        GPU."""
        self._kill_group()
        self._child.wait()
        killed: set[int] = set()
        deadline = time.monotonic() + PATIENCE
        # Again and again, because one of them may have started another meanwhile.
        while found := {*marked(self._mark), *filter(_is_alive, killed)}:
            if time.monotonic() > deadline:
                text = f"processes of prime-rl could not be killed: {sorted(found)}"
                print(f"warning: {text}", file=sys.stderr, flush=True)
                return
            for process in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)
            killed |= found
            time.sleep(0.01)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)

    @property
    def exit_code(self) -> int:
        """The exit code of the ended command: 1 if too many consecutive episodes failed, 128 + N if signal N
        ended the command."""
        if self._reason:
            return 1
        code = self._child.returncode
        return code if code >= 0 else 128 - code


def _is_alive(process: int) -> bool:
    """Returns whether a process still has resources such as a GPU: it exists, and is no zombie."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def marked(mark: str) -> list[int]:
    """Returns the ids of the processes whose environment has the entry `mark`, as `NAME=VALUE`. Leaves out
    processes that have ended, and those of other users."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                with (folder / "environ").open("rb", buffering=0) as file:
                    entries = file.read(_MOST_BYTES).split(b"\0")
                if mark.encode() in entries:
                    found.append(int(folder.name))
    return found


def supervise(
    command: Sequence[str], env: Mapping[str, str], breaker: Path, *, grace: float = GRACE
) -> int:
    """Runs a command in a process group of its own with the environment variables `env`, and waits for its
    end. Forwards SIGINT, SIGTERM and SIGHUP to the command. Also sends SIGTERM to the command when the file
    `breaker` says that too many consecutive episodes failed.

    Returns 130 if this process got one of these signals; 1 if too many consecutive episodes failed; otherwise
    the exit code of the command (128 + N if signal N ended the command). Kills the process group `grace`
    seconds after the command got its first signal. Call this function in the main thread.
    """
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)

    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, receive) for number in handled}
    process, passed = LauncherProcess(command, env, breaker, grace=grace), 0
    try:
        while process.is_running():
            for number in received[passed:]:
                process.send(number)
                passed += 1
            process.look()
            process.wait(LOOK)
    finally:
        process.end()
        restore_signal_handlers(before)
    return INTERRUPTED if received else process.exit_code


async def supervise_in_task(
    command: Sequence[str],
    env: Mapping[str, str],
    breaker: Path,
    *,
    grace: float = GRACE,
    keep: Sequence[int] = (),
) -> int:
    """Runs a command in a process group of its own with the environment variables `env`, and waits for its
    end, in an asyncio task. Changes no signal handlers. Sends SIGTERM to the command when the file `breaker`
    says that too many consecutive episodes failed, and kills its process group `grace` seconds after its
    first signal. Returns 1 if too many consecutive episodes failed, otherwise the exit code of the command
    (128 + N if signal N ended it).

    If the task is cancelled (Ctrl-C), sends SIGTERM to the command, waits for its end, and raises
    CancelledError; if the task is cancelled once more, kills the command at once. The command inherits the
    open files `keep` (file descriptors). Call this function in the main thread, because the command gets
    SIGTERM when the calling thread ends.
    """
    process = LauncherProcess(command, env, breaker, grace=grace, keep=keep)
    cancelled: asyncio.CancelledError | None = None
    try:
        while process.is_running():
            try:
                await asyncio.sleep(LOOK)
            except asyncio.CancelledError as error:
                if cancelled is not None:
                    raise
                cancelled = error
                text = "ends prime-rl, which may take minutes; Ctrl-C once more kills it"
                print(text, file=sys.stderr, flush=True)
                process.send(signal.SIGTERM)
            process.look()
    finally:
        process.end()
    if cancelled is not None:
        raise cancelled
    return process.exit_code
