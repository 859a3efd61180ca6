"""What tests of `air shell` share: scripts, and a person at a pseudo-terminal."""

from __future__ import annotations

import codecs
import errno
import json
import os
import pty
import select
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from air.cli.main import main
from tests.fork_server import of_this_run


def shell(script: str, *flags: str, code: int = 0) -> None:
    """Runs a script in the working folder; it must end with that exit code."""
    Path("script").write_bytes(script.encode())
    assert main(["shell", *flags, "--exec", "script"]) == code


def printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What `--json` printed."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def solve(method: int, level: int) -> str:
    """An action that makes the artefact of a shipped task."""
    return f'echo "method={method} level={level}" > config; python3 solve.py'


def wait_for_process(command: str, seconds: float = 60.0) -> None:
    """Returns once a process with this command line runs, in a box or outside; fails after `seconds`."""
    line = command.replace(" ", "\0").encode() + b"\0"
    give_up = time.monotonic() + seconds
    while not any(_cmdline(process) == line for process in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < give_up, f"no {command}"
        time.sleep(0.02)


def _cmdline(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


class Terminal:
    """A person at a pseudo-terminal."""

    def __init__(self, *argv: str) -> None:
        self._fd, theirs = pty.openpty()
        env = {**os.environ, "TERM": "dumb"}
        self._command = of_this_run().spawn(
            ["air", *argv], cwd=Path.cwd(), env=env, streams=[theirs] * 3
        )
        os.close(theirs)
        self.seen = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def expect(self, text: str, seconds: float = 60.0) -> str:
        """Waits for `text`; gives what came up to it, and forgets that."""
        until = time.monotonic() + seconds
        while text not in self.seen:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._fd], [], [], left)[0]:
                raise AssertionError(f"no {text!r} in {self.seen!r}")
            self.seen += self._read()
        before, _, self.seen = self.seen.partition(text)
        return before

    def type(self, text: str) -> None:
        """Keys."""
        os.write(self._fd, text.encode("utf-8", "surrogateescape"))

    def end(self) -> int:
        """Waits for its end; gives the exit code."""
        while self._read():
            pass
        return self._command.wait(60)

    def kill(self) -> None:
        """Ends it if it still runs."""
        self._command.send_signal(signal.SIGTERM)
        self._command.wait(60)
        os.close(self._fd)

    def _read(self) -> str:
        try:
            return self._decoder.decode(os.read(self._fd, 1 << 16))
        except OSError as error:
            if error.errno != errno.EIO:  # which says that the other end is closed
                raise
            return ""
