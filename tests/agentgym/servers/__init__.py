"""Starts three of AgentGym's servers from a checkout, each in an environment of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ENVIRONMENTS = Path(__file__).parents[3] / "build" / "agentgym"
START_SECONDS = 300.0
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def python(name: str) -> Path:
    """The interpreter that has what the server `name` needs."""
    return ENVIRONMENTS / name / "bin" / "python"


@contextlib.contextmanager
def running(checkout: Path, name: str, log: Path) -> Iterator[str]:
    """Context manager: a server of AgentGym, whose address it yields."""
    port = _free_port()
    command = [
        *(python(name), "-m", "uvicorn", f"agentenv_{name}:app"),
        *("--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"),
    ]
    with log.open("w") as output:
        server = subprocess.Popen(
            command,
            cwd=checkout / f"agentenv-{name}",
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONHASHSEED": "0",
            },  # the order of textcraft's tasks depends on it
        )
        try:
            _wait(f"http://127.0.0.1:{port}/", server, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            with contextlib.suppress(ProcessLookupError):  # the Java processes of sciworld too
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + START_SECONDS
    while time.monotonic() < give_up:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended: {log.read_text()[-2000:]}")
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            _NO_PROXY.open(url, timeout=START_SECONDS).close()
            return
        time.sleep(0.2)
    raise RuntimeError(f"no answer within {START_SECONDS:g} s: {log.read_text()[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
