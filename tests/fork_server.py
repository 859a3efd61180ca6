"""Runs `air`, `rl` and `sft` in processes that are forked from one that has imported everything.

A command of its own process imports for about seven seconds before it does anything. The server imports
once; each command then starts in milliseconds, with its own folder, environment, streams and host name.
All workers of a test run use one server. It starts with the first command and ends with the test run.

    server = ForkServer(folder)
    done = server.run(["rl", "@", "run.toml"], cwd=folder, env=dict(os.environ), seconds=300)

Shell scripts ask the same server: see `tests/docs/command.py`.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

FOLDER_ENV = "AIR_TEST_FORK_SERVER"
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
    """One server for all who name the same folder.

    Args:
        folder: where its socket and its log lie. The first process that asks starts the server.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._address, self._log = folder, folder / "socket", folder / "log"

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

    def start(self) -> Path:
        """Starts the server if it does not run; returns its socket."""
        with socket.socket(socket.AF_UNIX) as link:
            self._connect(link)
        return self._address

    def _connect(self, link: socket.socket) -> None:
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._log.exists():
                self._launch()
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                link.connect(str(self._address))
                return
            except (FileNotFoundError, ConnectionRefusedError):
                assert time.monotonic() < until, self._log.read_text()
                assert "Traceback" not in self._log.read_text(), self._log.read_text()
                time.sleep(0.05)

    def _launch(self) -> None:
        """Starts the server, which ends with the test run: with the parent of pytest-xdist's workers."""
        run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
        root = str(Path(__file__).parents[1])
        os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", "tests.fork_server", str(self._address), str(run)],
            os.environ | {"PYTHONPATH": root},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self._log), os.O_WRONLY | os.O_CREAT, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )


def of_this_run() -> ForkServer:
    """The server that all workers of this test run use; `conftest` names its folder."""
    return ForkServer(Path(os.environ[FOLDER_ENV]))


def _exactly(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = link.recv(size - len(data))
        if not piece:
            raise EOFError("the fork server closed the connection")
        data += piece
    return data


def serve(address: str, run: int) -> None:
    """Answers commands until the process `run` has ended."""
    import importlib

    alive = os.pidfd_open(run)
    for name in IMPORTED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who watch
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(f"{address}.new")
        door.listen()
        Path(f"{address}.new").rename(address)
        while True:
            ready, _, _ = select.select([door, alive], [], [])
            if alive in ready:
                return
            if door in ready:
                link, _ = door.accept()
                if os.fork() == 0:
                    door.close()
                    _watch(link)


def _watch(link: socket.socket) -> None:
    """The parent of one command: forks it, waits, and tells its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _take_host_name(link)
    head, files, _, _ = socket.recv_fds(link, 8, 3)
    if not head:  # `start` only asks whether anybody answers
        os._exit(0)
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


def _take_host_name(link: socket.socket) -> None:
    """Gives this process the host name of whoever asks: workers have host names of their own (`conftest`)."""
    asking, _, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    namespace = Path(f"/proc/{asking}/ns/uts")
    if namespace.readlink() != Path("/proc/self/ns/uts").readlink():
        with namespace.open() as theirs:
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.setns(theirs.fileno(), 0) == 0, os.strerror(ctypes.get_errno())


def _play(request: dict[str, object], out: int, err: int, given: int | None = None) -> None:
    """Becomes the command; `given` is its standard input, empty by default."""
    from air.cli.main import main

    given = os.open(os.devnull, os.O_RDONLY) if given is None else given
    for source, target in ((given, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    env, argv = request["env"], request["argv"]
    assert isinstance(env, dict)
    assert isinstance(argv, list)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(str(request["cwd"]))
    sys.argv = argv
    path = str(env.get("PYTHONPATH", ""))
    sys.path[:0] = [str(Path(part).absolute()) for part in path.split(os.pathsep) if part]
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
    serve(sys.argv[1], int(sys.argv[2]))
