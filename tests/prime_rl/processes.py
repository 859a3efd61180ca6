"""Processes of a run, started as prime-rl's launcher starts them, and ended with the test."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path


class Failed(AssertionError):
    """A process ended, or did not do in time what was waited for; shows the end of its log."""

    def __init__(self, what: str, log: Path) -> None:
        lines = log.read_text(errors="replace").splitlines()[-40:] if log.exists() else []
        super().__init__("\n".join([f"{what}; the end of {log}:", *lines]))


@contextmanager
def started(
    module: str, *args: object, log: Path, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m MODULE ARGS`; with all its children it ends when the context does."""
    with ended([sys.executable, "-m", module, *map(str, args)], log=log, env=env) as process:
        yield process


@contextmanager
def ended(
    argv: Sequence[str], *, log: Path, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process group of its own; SIGTERM, and SIGKILL ten seconds later."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        process = subprocess.Popen(
            argv,
            env=dict(os.environ) if env is None else env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def run(module: str, *args: object, log: Path, seconds: float = 300) -> str:
    """Runs `python -m MODULE ARGS` to its end; returns what it printed.

    Raises:
        Failed: another exit code than 0, or it took too long.
    """
    with started(module, *args, log=log) as process:
        wait_for_end(process, module, log, seconds)
    return log.read_text(errors="replace")


def wait_for_end(
    process: subprocess.Popen[bytes],
    name: str,
    log: Path,
    seconds: float,
    beside: Callable[[], None] = lambda: None,
) -> None:
    """Waits until a process exits with 0; `beside` raises when one that it needs has failed.

    Raises:
        Failed: another exit code, or it took too long.
    """
    deadline = time.monotonic() + seconds
    while process.poll() is None:
        beside()
        if time.monotonic() > deadline:
            raise Failed(f"{name} still ran after {seconds:.0f} s", log)
        time.sleep(0.2)
    if process.returncode != 0:
        raise Failed(f"{name} ended with exit code {process.returncode}", log)


def free_port() -> int:
    """A port on loopback that was free a moment ago."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many different ports on loopback that were free a moment ago."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
