"""A script that runs one command, and ends it with all its descendants when standard input closes.

    python die_with_parent.py GRACE FOLDER COMMAND…

Standard input is a pipe from the process that started this script. The pipe closes when that process ends,
even by SIGKILL. Then the script sends SIGTERM to the command. When the command has ended, or after GRACE
seconds, the script sends SIGTERM to all processes that remain, and after GRACE more seconds SIGKILL. This
includes descendants that left the command's process group, because orphans become children of the script.
Finally the script removes FOLDER. SIGTERM to the script has the same effect, but FOLDER is not removed.

If the command ends by itself, the script ends its descendants in the same way, does not remove FOLDER, and
exits with the command's exit code (128 + N after signal N). SIGKILL of the script ends only the command
itself. The script uses only the standard library.
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
    """Runs a command until it ends, until standard input closes, or until SIGTERM arrives. `argv` has, in
    this order: the number of seconds to wait after each SIGTERM; the folder that is removed when standard
    input closes; and the command with its arguments. Returns the exit code of the command, or 0 if this
    script ended the command."""
    grace, folder, command = float(argv[0]), argv[1], argv[2:]
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_child)
    closed = False
    while process.poll() is None and not signals and not closed:
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
    """Runs in the child process directly before the command starts. Makes the kernel kill the child when this
    script ends, and restores the default effect of SIGINT."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end_all(grace: float) -> None:
    """Ends every descendant of this process: sends SIGTERM to all, and after `grace` seconds SIGKILL. Returns
    when this process has no children; orphaned descendants count, because they become its children."""
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
        except OSError:  # the process has ended
            continue
    tree = [root]
    for pid in tree:
        tree += [child for child, parent in parents.items() if parent == pid]
    return tree[1:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
