"""Runs `air`, `rl` and `sft` in processes that are forked from one that has imported everything.

A command of its own process imports for about seven seconds before it does anything. The server imports
once; each command then starts in milliseconds, with its own folder, environment, streams and host name.
All workers of a test run use one server. It starts with the first command and ends with the test run.
With `--forked-workers`, pytest-xdist's workers are such commands too.

    server = ForkServer(folder)
    done = server.run(["rl", "@", "run.toml"], cwd=folder, env=dict(os.environ), seconds=300)

Shell scripts ask the same server: see `tests/command.py`.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import importlib.metadata
import json
import os
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO

FOLDER_ENV = "AIR_TEST_FORK_SERVER"
RUN_ENV = "AIR_TEST_RUN"
"""Names the process of the test run: pytest's own or, with pytest-xdist, the workers' controller."""
START_SECONDS = 300.0
IMPORTED = (
    "air.cli.runs.rl",
    "air.cli.runs.sft",
    "air.cli.runs.eval",
    "air.cli.runs.demos",
    "air.train.choose_engine",
    "air.train.loop.run",
    "air.train.evaluation.scripted_agent",
    "air.train.model.demonstrations",
    "air.train.model.sft",
    "air.env.environment",
    "air.env.chat.harness",
    "air.sandbox.docker.box",
    "air.worlds.openenv",
    "air.worlds.proposals",
    "air.worlds.questions",
    "air.worlds.rows",
    "mcp",  # else imported with the first taskset
    "renderers",
    "transformers.models.auto.modeling_auto",  # this and the next: else imported with the first model
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen3.modeling_qwen3",
    "verifiers.v1.tasksets",
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
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with self.spawn(argv, cwd=cwd, env=env, streams=(out, err)) as command:
                code = command.wait(seconds)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode("utf-8", "replace"))
        return subprocess.CompletedProcess(list(argv), code, *texts)

    def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        streams: Sequence[IO[bytes] | int],
    ) -> ForkedCommand:
        """Starts one command.

        Args:
            streams: its output, its errors and, if there are three, its input. An input that is a terminal
                becomes its controlling terminal.
        """
        link = socket.socket(socket.AF_UNIX)
        try:
            self._connect(link)
            request = json.dumps({"argv": list(argv), "cwd": str(cwd), "env": dict(env)}).encode()
            files = [s if isinstance(s, int) else s.fileno() for s in streams]
            socket.send_fds(link, [len(request).to_bytes(8, "big")], files)
            link.sendall(request)
            pid = int.from_bytes(_exactly(link, 8), "big")
        except BaseException:
            link.close()
            raise
        return ForkedCommand(list(argv), pid, link)

    def start(self) -> Path:
        """Starts the server if it does not run; returns its socket."""
        with socket.socket(socket.AF_UNIX) as link:
            self._connect(link)
        return self._address

    def program(self, *argv: str) -> list[str]:
        """A command line whose process asks the server for a command, hands it its streams and passes signals
        on. Its process id is not the command's."""
        here = Path(__file__).with_name("command.py")
        return [sys.executable, "-IS", str(here), str(self.start()), *argv]

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
        """Starts the server, which ends with the test run."""
        root = str(Path(__file__).parents[1])
        os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", "tests.fork_server", str(self._address), os.environ[RUN_ENV]],
            os.environ | {"PYTHONPATH": root},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self._log), os.O_WRONLY | os.O_CREAT, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )


class ForkedCommand:
    """A command that the fork server started. Leaving its `with` block kills it and its process group.

    Attributes:
        pid: its process, which leads a session of its own.
        returncode: its exit code, None while it runs; a signal's number with a minus.
    """

    def __init__(self, argv: list[str], pid: int, link: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._argv, self._link = argv, link

    def __enter__(self) -> ForkedCommand:
        return self

    def __exit__(self, *_: object) -> None:
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.wait(60)
        self._link.close()

    def poll(self) -> int | None:
        """The exit code, None while the command runs."""
        if self.returncode is None and select.select([self._link], [], [], 0)[0]:
            self._take_code()
        return self.returncode

    def wait(self, seconds: float) -> int:
        """Waits for the exit code.

        Raises:
            TimeoutExpired: the command ran longer than `seconds`; it and its process group are killed.
        """
        if self.returncode is None:
            if not select.select([self._link], [], [], seconds)[0]:
                os.killpg(self.pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(self._argv, seconds)
            self._take_code()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signals the command, not its children; does nothing if it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _take_code(self) -> None:
        self.returncode = int.from_bytes(_exactly(self._link, 8), "big", signed=True)
        self._link.close()


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
    alive = os.pidfd_open(run)
    gc.disable()  # collections during the imports would take a second and free nothing
    for name in IMPORTED:
        importlib.import_module(name)
    gc.enable()
    gc.collect()
    gc.freeze()  # so that collections in the commands copy none of these pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who watch
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(f"{address}.new")
        door.listen()
        Path(f"{address}.new").rename(address)
        while True:
            ready, _, _ = select.select([door, alive], [], [])
            if alive in ready:
                # A run that was killed could not remove its folder.
                shutil.rmtree(Path(address).parent, ignore_errors=True)
                return
            if door in ready:
                link, _ = door.accept()
                if os.fork() == 0:
                    door.close()
                    _watch(link)


def _watch(link: socket.socket) -> None:
    """The parent of one command: forks it, waits, and tells its exit code. Kills it and its process group if
    whoever asked for it ends first."""
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
    for file in files:
        os.close(file)
    ended = os.pidfd_open(pid)
    link.sendall(pid.to_bytes(8, "big"))
    if ended not in select.select([ended, link], [], [])[0]:
        os.killpg(pid, signal.SIGKILL)
        os._exit(0)
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
    given = os.open(os.devnull, os.O_RDONLY) if given is None else given
    for source, target in ((given, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
        os.close(source)
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    env, argv = request["env"], request["argv"]
    assert isinstance(env, dict)
    assert isinstance(argv, list)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # what the server's libraries asked for while they were imported
    os.chdir(str(request["cwd"]))
    sys.argv = argv
    if encoding := env.get("PYTHONIOENCODING"):
        name, _, errors = encoding.partition(":")
        sys.stdin.reconfigure(encoding=name, errors=errors or "strict")
    path = str(env.get("PYTHONPATH", ""))
    sys.path[:0] = [str(Path(part).absolute()) for part in path.split(os.pathsep) if part]
    code: object = 1
    try:
        code = _program(argv)()
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


def _run_file(path: str) -> None:
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")


def _run_module(name: str) -> None:
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _program(argv: list[str]) -> Callable[[], object]:
    """The program that a command line names: ours, another package's, `python -c TEXT`, `python -m MODULE` or
    `python FILE`. pytest-xdist's workers are started as `python -u -c TEXT`."""
    if argv[:2] == ["python", "-u"]:
        argv = ["python", *argv[2:]]
    if argv[:2] == ["python", "-c"]:
        sys.argv = ["-c", *argv[3:]]
        main_module = sys.modules["__main__"] = types.ModuleType("__main__")
        return partial(exec, argv[2], main_module.__dict__)
    if argv[:2] == ["python", "-m"]:
        sys.argv = argv[2:]
        return partial(_run_module, argv[2])
    if argv[0] == "python":
        sys.argv = argv[1:]
        return partial(_run_file, argv[1])
    if argv[0] in ("air", "rl", "sft"):
        from air.cli.main import main

        return partial(main, argv[1:] if argv[0] == "air" else argv)
    (script,) = importlib.metadata.entry_points(group="console_scripts", name=argv[0])
    program: Callable[[], object] = script.load()
    return program


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
