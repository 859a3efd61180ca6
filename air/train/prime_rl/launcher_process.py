"""Runs prime-rl's launcher as a process, and ends it together with all processes that it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from air.env.failure_breaker import opened

INTERRUPTED = 130


def supervise(
    command: Sequence[str], env: Mapping[str, str], breaker: Path, *, grace: float = 150.0
) -> int:
    """Runs a command in a process group of its own with the environment variables `env`, and waits for its
    end. Forwards SIGINT, SIGTERM and SIGHUP to the command. Also sends SIGTERM to the command when the file
    `breaker` says that too many consecutive episodes failed.

    Returns 130 if this process got one of these signals; 1 if too many consecutive episodes failed; otherwise
    the exit code of the command (128 + N if signal N ended the command). Kills the process group `grace`
    seconds after the command got its first signal; the default is long because prime-rl may need minutes to
    end.
    """
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)

    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, receive) for number in handled}
    child = subprocess.Popen(command, env=dict(env), stdin=subprocess.DEVNULL, process_group=0)
    passed, ending, reason = 0, 0.0, ""
    try:
        while child.poll() is None:
            for number in received[passed:]:
                child.send_signal(number)
                passed, ending = passed + 1, ending or time.monotonic()
            if not reason and (reason := opened(breaker)):
                print(f"error: {reason}", file=sys.stderr, flush=True)
                child.terminate()
                ending = ending or time.monotonic()
            if ending and time.monotonic() - ending > grace:
                os.killpg(child.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=0.5)
    finally:
        _end_group(child)
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        return INTERRUPTED
    if reason:
        return 1
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Kills all processes of the launcher's process group, so that none of them still occupies a GPU."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
