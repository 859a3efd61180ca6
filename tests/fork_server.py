"""Runs `air`, `rl` and `sft` in processes that are forked from one that has imported everything.

A command of its own process imports for about seven seconds before it does anything. The server imports
once; each command then starts in milliseconds, with its own folder, environment and streams. It starts
with the first command and ends with the process that started it.

    server = ForkServer(folder)
    done = server.run(["rl", "@", "run.toml"], cwd=folder, env=dict(os.environ), seconds=300)
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

START_SECONDS = 300.0
IMPORTED = (
    "air.cli.runs.rl",
    "air.cli.runs.sft",
    "air.cli.runs.eval",
    "air.cli.runs.demos",
    "air.train.loop.run",
    "air.train.loop.demos",
    "air.train.model.sft",
    "air.env.environment",
    "air.env.chat.harness",
    "air.sandbox.docker.box",
    "renderers",
)
"""Loaded before the first command."""


class ForkServer:
    """One server; not thread-safe.

    Args:
        folder: where its socket and its log lie.
    """

    def __init__(self, folder: Path) -> None:
        self._address, self._log = folder / "socket", folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """Runs one command to its end.

        Raises:
            TimeoutExpired: it ran longer than `seconds`; it and its process group are killed.
        """
        with (
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
            socket.socket(socket.AF_UNIX) as link,
        ):
            self._connect(link)
            request = json.dumps({"argv": list(argv), "cwd": str(cwd), "env": dict(env)}).encode()
            socket.send_fds(link, [len(request).to_bytes(8, "big")], [out.fileno(), err.fileno()])
            link.sendall(request)
            pid = int.from_bytes(_exactly(link, 8), "big")
            if not select.select([link], [], [], seconds)[0]:
                os.killpg(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(argv), seconds)
            code = int.from_bytes(_exactly(link, 8), "big", signed=True)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode("utf-8", "replace"))
        return subprocess.CompletedProcess(list(argv), code, *texts)

    def close(self) -> None:
        """Ends the server. Calling it twice is harmless."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _connect(self, link: socket.socket) -> None:
        if self._process is None:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.fork_server", str(self._address)],
                    cwd=Path(__file__).parents[1],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                )
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                link.connect(str(self._address))
                return
            except (FileNotFoundError, ConnectionRefusedError):
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < until, self._log.read_text()
                time.sleep(0.05)


def _exactly(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = link.recv(size - len(data))
        if not piece:
            raise EOFError("the fork server closed the connection")
        data += piece
    return data


def serve(address: str) -> None:
    """Answers commands until standard input closes, which is when the tests' process ends."""
    import importlib

    for name in IMPORTED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who watch
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(f"{address}.new")
        door.listen()
        Path(f"{address}.new").rename(address)
        while True:
            ready, _, _ = select.select([door, 0], [], [])
            if 0 in ready and not os.read(0, 1):
                return
            if door in ready:
                link, _ = door.accept()
                if os.fork() == 0:
                    door.close()
                    _watch(link)


def _watch(link: socket.socket) -> None:
    """The parent of one command: forks it, waits, and tells its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, files, _, _ = socket.recv_fds(link, 8, 2)
    head += _exactly(link, 8 - len(head)) if len(head) < 8 else b""
    request = json.loads(_exactly(link, int.from_bytes(head, "big")))
    pid = os.fork()
    if pid == 0:
        os.setsid()
        link.close()
        _play(request, *files)
    link.sendall(pid.to_bytes(8, "big"))
    _, status = os.waitpid(pid, 0)
    link.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "big", signed=True))
    os._exit(0)


def _play(request: dict[str, object], out: int, err: int) -> None:
    """Becomes the command."""
    from air.cli.main import main

    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    env, argv = request["env"], request["argv"]
    assert isinstance(env, dict)
    assert isinstance(argv, list)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(str(request["cwd"]))
    sys.argv = argv
    code: object = 1
    try:
        code = main(argv[1:] if argv[0] == "air" else argv)
    except SystemExit as end:
        code = end.code
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        import atexit

        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1 if code else 0)


if __name__ == "__main__":
    serve(sys.argv[1])
