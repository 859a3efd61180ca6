"""Runs one command and ends it, with everything that it started, as soon as standard input closes.

    python guard.py GRACE FOLDER COMMAND…

Standard input is a pipe whose other end the owner holds: it closes when the owner ends, SIGKILL
included. Then the command gets SIGTERM; when it has ended, or after GRACE seconds, all its descendants get
it too (also those that left its process group: as a subreaper this process inherits them), after GRACE
seconds more SIGKILL, and FOLDER is removed. SIGTERM ends
them in the same way and keeps FOLDER. When the command ends by itself, its descendants are ended too and
the exit code is the command's (128 + the signal that killed it); FOLDER stays. SIGKILL of this process
itself ends the command, but not what the command has started. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_TICK = 0.1
_LIBC = ctypes.CDLL(None, use_errno=True)


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code, or 0 where it was to be ended."""
    grace, folder, command = float(argv[0]), argv[1], argv[2:]
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_child)
    closed = False
    while process.poll() is None and not told and not closed:
        closed = bool(select.select([0], [], [], _TICK)[0]) and not os.read(0, 1024)
    ended = process.poll()
    if ended is None:
        process.terminate()
        deadline = time.monotonic() + grace
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(_TICK)
    _end_all(grace)
    if closed:
        shutil.rmtree(folder, ignore_errors=True)
    if ended is None:
        return 0
    return ended if ended >= 0 else 128 - ended


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _child() -> None:
    """In the command's process, before it starts: it ends with this guard, and heeds signals as usual."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end_all(grace: float) -> None:
    """Ends every descendant; orphans come to this process, so none is left when it has no child."""
    deadline = time.monotonic() + grace
    _send(signal.SIGTERM)
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if time.monotonic() > deadline:
            _send(signal.SIGKILL)
        time.sleep(_TICK)


def _send(number: int) -> None:
    for pid in _descendants(os.getpid()):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _descendants(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:  # it has ended
            continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
