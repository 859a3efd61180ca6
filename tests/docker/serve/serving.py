"""Starts real servers of `air serve` in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STOP_SECONDS = 120


class Served:
    """A server that answers at `url`."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: Path) -> None:
        self.process, self.url, self._log = process, url, log

    def log(self) -> list[dict[str, Any]]:
        """The lines of its log so far, without the one that it is writing."""
        whole, _, _ = self._log.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def boxes(self) -> dict[str, Any]:
        """What its page `/health` says of boxes. `httpx.get` would load certificates first, for 25 ms."""
        with urllib.request.urlopen(f"{self.url}/health", timeout=60) as answer:
            return dict(json.load(answer)["boxes"])

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends it a signal and gives its exit code."""
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)


@contextmanager
def serving(
    *flags: str, image: str = "air-base", what: str = "sandbox", **env: str
) -> Iterator[Served]:
    """A server with these flags, on a free port, until the block ends."""
    argv = [sys.executable, "-m", "air.cli.main", "serve", what, "--port", "0"]
    argv += ["--image", image] if what == "sandbox" else []
    with tempfile.NamedTemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*argv, *flags],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | env,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("serving on "), Path(log.name).read_text()
            yield Served(process, line.split()[-1], Path(log.name))
        finally:
            if process.poll() is None:
                process.terminate()
                assert process.wait(STOP_SECONDS) == 0
            process.stdout.close()
