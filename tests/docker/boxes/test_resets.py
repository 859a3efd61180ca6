"""Boxes that serve several users, one after another: what a reset promises, and attacks on that promise."""

from __future__ import annotations

import asyncio
import io
import re
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path

import pytest

from air.errors import BoxDiedError, BoxFileError
from air.sandbox import open_box
from air.sandbox.contract.box import Box, BoxLimits, BoxSpec, ExecResult
from air.sandbox.wire.guest_box import GuestBox
from tests.docker.boxes.leftovers import LEFTOVERS, SEES

pytestmark = pytest.mark.docker
SCRIPT = "air_program.py"
COMMAND = ("python3", SCRIPT)
LIMITS = BoxLimits(disk_mb=32, pids=64)
PLAIN = BoxSpec(limits=LIMITS, scratch=("/mnt",), reusable=True)
PRESTARTED = PLAIN.model_copy(update={"prestart": COMMAND})
SECONDS = 120


@asynccontextmanager
async def opened(spec: BoxSpec = PRESTARTED) -> AsyncIterator[Box]:
    async with await open_box(spec, run="resets") as box:
        yield box


async def run(box: Box, code: str, *, stdin: bytes = b"") -> ExecResult:
    """Runs a script as the server does: with the command that the box has started in advance."""
    await box.write(SCRIPT, code.encode())
    return await box.exec(COMMAND, timeout=SECONDS, stdin=stdin)


HARMLESS = {
    "odd names": "for name in (b'a\\nb', b'\\xff', b'-rf', b' ', b'.x', b'x' * 255): open(name, 'w').close()",
    "locked folders": "os.makedirs('a/b/c'); open('a/b/c/d', 'w').close(); os.chmod('a/b/c/d', 0)\n"
    "for path in ('a/b/c', 'a/b', 'a'): os.chmod(path, 0)",
    "links": "os.symlink('/etc', 'a'); os.symlink('.', 'b'); os.symlink('/proc/1', '/tmp/c')",
    "special files": "os.mkfifo('a'); socket.socket(socket.AF_UNIX).bind('b')",
    "an open file without a name": "f = open('a', 'w+b'); f.write(bytes(10**6)); os.unlink('a')",
    "every folder": "for path in ('/mnt/a', '/tmp/a', '/dev/shm/a'): open(path, 'w').write('x')",
    "a full disk": "try:\n f = open('a', 'wb', 0)\n while True: f.write(bytes(2**20))\nexcept OSError: pass",
    "modules for later": "os.makedirs('.local/lib/python3.11/site-packages')\n"
    "for path in ('.local/lib/python3.11/site-packages/usercustomize.py', 'sitecustomize.py', 'os.py'):\n"
    " open(path, 'w').write('print(1)')",
    "shared memory that ends": "import mmap; m = mmap.mmap(-1, 1000); m.write(b'x')",
    "a pipe and a pair of sockets": "os.pipe(); socket.socketpair()[0].send(b'x')",
    "a crash": "os.kill(os.getpid(), 11)",
}


async def test_after_a_reset_nothing_of_the_last_program_is_there() -> None:
    async with opened() as box:
        new = (await run(box, SEES)).text
        assert await box.reset() == ""
        for name, code in (HARMLESS | LEFTOVERS).items():
            done = await run(box, f"import os, socket, sys\n{code}\n")
            assert done.ok or name not in LEFTOVERS, f"{name}: {done.text}"
            assert await box.reset() == "", name
            assert (await run(box, SEES)).text == new, name
            assert await box.reset() == "", name


@pytest.mark.parametrize("spec", [PLAIN, PRESTARTED], ids=["plain", "prestarted"])
async def test_a_box_that_was_frozen_and_thawed_can_be_reset(spec: BoxSpec) -> None:
    async with opened(spec) as box:
        for _ in range(3):
            assert (await run(box, "open('a', 'w')")).ok
            await box.freeze()
            await box.thaw()
            assert await box.reset() == ""
            assert (await run(box, "import os; print(os.listdir())")).text == f"['{SCRIPT}']\n"
        await box.freeze()
        assert await box.reset() == "its processes are stopped"


TELLING = {
    "a process": (
        "import subprocess; subprocess.Popen(['sleep', '99'], stdout=-3, stderr=-3)",
        "processes remained",
    ),
    "a daemon": (
        "import os\nif not os.fork():\n os.setsid()\n if not os.fork():\n"
        "  os.closerange(0, 9); os.system('sleep 99')\n",
        "processes remained",
    ),
    "a process that keeps the output": (
        "import os, time\nif not os.fork(): time.sleep(99)",
        "a process kept the output of its command",
    ),
    "a kill": ("import os; os.kill(os.getpid(), 9)", "a command was killed"),
    "a message queue": (
        "import ctypes; ctypes.CDLL(None).msgget(1, 0o1777)",
        "/proc/sysvipc/msg is not as it was",
    ),
    "a semaphore": (
        "import ctypes; ctypes.CDLL(None).semget(1, 1, 0o1777)",
        "/proc/sysvipc/sem is not as it was",
    ),
    "a POSIX queue": (
        "import ctypes; ctypes.CDLL('librt.so.1').mq_open(b'/q', 0o102, 0o777, None)",
        "/dev/mqueue is not as it was",
    ),
    "a connection": (
        "import socket\ns = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(s.getsockname())",
        "/proc/net/dev is not as it was",
    ),
    "a mode": ("import os; os.chmod('/workspace', 0o777)", "/workspace is not as it was"),
    "an attribute": (
        "import os; os.setxattr('/tmp', 'user.a', b'x')",
        "/tmp is not as it was",
    ),
    "a flag": (
        "import fcntl, os\nfd = os.open('/dev/shm', os.O_RDONLY)\n"
        "fcntl.ioctl(fd, 0x40086602, (64).to_bytes(8, 'little'))",
        "/dev/shm is not as it was",
    ),
    "the time of a device": ("import os; os.utime('/dev/null')", "/dev is not as it was"),
    "a deep tree": (
        "import os\nfor _ in range(3000): os.mkdir('a'); os.chdir('a')",
        "its folders are too deep",
    ),
    "many files": (
        "for i in range(7000): open(f'/mnt/{i}', 'w').close(); open(f'/tmp/{i}', 'w').close()",
        "it has too many files",
    ),
}


@pytest.mark.parametrize("name", TELLING)
async def test_what_a_reset_cannot_undo_ends_the_box(name: str) -> None:
    code, reason = TELLING[name]
    async with opened() as box:
        outcome = await run(box, code)
        assert outcome.code == (137 if name == "a kill" else 0), outcome.text
        assert await box.reset() == reason
        assert await box.reset() == reason  # for good


async def test_processes_that_run_from_the_listing_end_the_box() -> None:
    chain = "import os\nfor fd in (0, 1, 2): os.close(fd)\nif not os.fork():\n while not os.fork(): pass"
    async with opened() as box:
        await run(box, chain)
        assert await box.reset() in ("processes remained", "processes hid from the listing")


async def test_a_command_past_its_time_ends_the_box() -> None:
    async with opened() as box:
        assert (await box.exec(["sleep", "99"], timeout=0.1)).timed_out
        # The kill of the command also ends the Python, which it may take for one of its processes.
        assert await box.reset() in ("a command was stopped", "its Python was ended")


ATTACK = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
mine = os.getpid()
for pid in [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != mine]:
    for what in (
        lambda: os.kill(pid, signal.SIGKILL),
        lambda: os.kill(pid, signal.SIGSTOP),
        lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
        lambda: os.sched_setaffinity(pid, {0}),
        lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),
        lambda: __import__("resource").prlimit(pid, 7, (3, 3)),
        lambda: open(f"/proc/{pid}/mem", "r+b"),
        lambda: os.listdir(f"/proc/{pid}/fd"),
        lambda: open(f"/proc/{pid}/environ").read(),
        lambda: open(f"/proc/{pid}/oom_score_adj", "w").write("1000"),
    ):
        try:
            what()
            print("could", pid)
        except PermissionError:
            pass
    if libc.ptrace(16, pid, 0, 0) == 0:
        print("traces", pid)
print(os.getppid() in (0, mine))
print([line for line in open("/proc/self/status") if line[:3] in ("Cap", "NoN", "Uid", "Gid")])
"""


async def test_no_program_can_touch_what_forks_the_next_one() -> None:
    async with opened() as box:
        first = await run(box, ATTACK)
        assert first.ok, first.text
        assert "could" not in first.text
        assert "traces" not in first.text
        assert await box.reset() == ""
    async with opened(PLAIN) as box:
        plain = await run(box, ATTACK)
    assert first.text.splitlines()[-1] == plain.text.splitlines()[-1]  # no capability more


async def test_memory_of_the_last_program_is_not_in_the_next_one() -> None:
    search = """
backwards = b"margorp-tsal-eht-fo-"
for line in open("/proc/self/maps"):
    span, mode = line.split()[:2]
    if "r" in mode and "[v" not in line:
        start, end = (int(part, 16) for part in span.split("-"))
        with open("/proc/self/mem", "rb") as memory:
            memory.seek(start)
            data = memory.read(end - start)
        for part in data.split(b"a-secret")[1:]:
            if part[:20][::-1] == backwards:
                print("there", line)
"""
    secret = "secret = 'a-secret-of-the-last-program'\nprint(input())"
    async with opened() as box:
        for _ in range(2):
            await run(box, secret, stdin=b"a-secret-of-the-last-program\n")
            assert await box.reset() == ""
        found = await run(box, search)
        assert (found.code, found.text) == (0, "")


ADDRESS = re.compile(rb"0x[0-9a-f]+")
GONE = "class A:\n def __del__(self): print('gone')\n"
OWN = "import os; f = os.fdopen(os.dup(1), 'w'); f.write('unflushed')\n"
ENDS = {
    "generators": "def g():\n try: yield\n finally: print('closed')\nx = g(); next(x)",
    "its own module": f"import sys\n{GONE}a = A(); me = sys.modules['__main__']",
    "its own module, kept elsewhere": f"import json, sys\n{GONE}a = A(); json.me = sys.modules['__main__']",
    "kept in a module that was there": f"import os\n{GONE}os.a = A()",
    "kept in an imported module": f"import json\n{GONE}json.a = A()",
    "kept in a module of its own": f"open('helper.py', 'w').close()\nimport helper\n{GONE}helper.a = A()",
    "kept in sys": f"import sys\n{GONE}sys.a = A()",
    "kept as a stream": f"import sys\n{GONE}"
    "class S(A):\n def write(self, text): sys.__stdout__.write(text)\n def flush(self): pass\n"
    "sys.stdout = S()",
    "imports at the end": "class A:\n def __del__(self):\n  import os; print(os.path.join('a', 'b'))\n"
    "a = A()",
    "imports of new modules at the end": "class A:\n def __del__(self): import json\na = A()",
    "finalizers": "import weakref\nclass A: pass\na = A(); weakref.finalize(a, print, 'final')",
    "order at exit": f"import atexit\nfor i in range(3): atexit.register(print, i)\n{GONE}a = A()",
    "exit functions run early": "import atexit\natexit.register(print, 1)\n"
    f"atexit._run_exitfuncs()\n{GONE}a = A(); print(2)",
    "an exit function fails": f"import atexit\natexit.register(lambda: 1 / 0)\n{GONE}a = A()",
    "daemons": "import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
    "output of C": "import ctypes; print('a', flush=True); ctypes.CDLL(None).printf(b'b')",
    "closed output": "import sys; print(1); sys.stdout.close()",
    "no output": "import sys; sys.stdout = sys.__stdout__ = None",
    "output that fails": "import os; print('x'); os.dup2(os.open('/dev/full', os.O_WRONLY), 1)",
    "modules without order": f"import sys\nsys.modules['a'] = 1; sys.modules['os'] = None\n{GONE}a = A()",
    "no main": f"import sys\n{GONE}a = A(); del sys.modules['__main__']",
    "a fork": f"import os\n{GONE}a = A()\nif os.fork(): os.wait()",
    "exit": f"import sys\n{GONE}a = A(); sys.exit()",
    "a hook": f"import sys\nsys.excepthook = lambda *a: print(a[0])\n{GONE}a = A(); 1 / 0",
    "asyncio": "import asyncio\nasync def f(): print(await asyncio.sleep(0, 1))\nasyncio.run(f()); f()",
    "a stream of its own": OWN,
    "a stream, and a hook": f"{OWN}import sys; sys.excepthook = lambda *_: None",
    "a stream, and a signal's handler": f"{OWN}import signal; signal.signal(15, lambda *_: None)",
    "a search function": f"import codecs\n{GONE}a = A()\ncodecs.register(lambda name: None)",
    "an executor": "from concurrent.futures import ThreadPoolExecutor as E\n"
    "e = E(1); e.submit(print, 'a'); e.submit(print, 'b' * 20_000)",
    "much output": "import sys\nfor i in range(400): print('x' * 50)\nsys.stderr.write('e' * 20_000)",
    "shared memory": "from multiprocessing import shared_memory as m\n"
    "s = m.SharedMemory(create=True, size=9); s.close(); s.unlink(); print('done')",
    "a temporary folder": "import tempfile\nd = tempfile.TemporaryDirectory(dir='/tmp')",
    "text in another encoding": "import io, sys\n"
    "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-16'); print('a')",
    "a signal at the end": "import atexit, os\natexit.register(lambda: os.kill(os.getpid(), 15))",
    "an exit in an exit function": "import atexit, os\natexit.register(lambda: os._exit(7))",
    "an end in a thread": "import os, threading\nthreading.Thread(target=lambda: os._exit(5)).start()",
    "log": "import logging; logging.warning('a'); print('b')",
}
"""How programs can end. What is left out of Python's end must be nothing that they could see."""
PROGRAMS = ENDS | {
    "print": "print(1 + 1)",
    "place": "import sys; print(__file__, __name__, sys.argv, sys.path, sys.flags, sys.executable, __spec__)",
    "modules": "import sys; print(sorted(sys.modules))",
    "frames": "import inspect; print(len(inspect.stack()))",
    "path hooks": "import sys\nprint([hook.__name__ for hook in sys.path_hooks])\n"
    "print(sorted(each for each in sys.path_importer_cache if 'python' in each))",
    "traceback": "def f(): return 1 / 0\nf()",
    "syntax": "print(1",
    "exit code": "import sys; sys.exit(3)",
    "exit text": "raise SystemExit('bye')",
    "at exit": "import atexit; atexit.register(print, 'bye')",
    "destructors": "class A:\n def __del__(self): print('gone')\na = A()",
    "cycles": "class A:\n def __del__(self): print('gone')\na = [A()]; a.append(a); del a\nb = A(); b.b = b",
    "main": "import sys; print(sorted(globals()), sys.modules['__main__'].__dict__ is globals())",
    "unflushed": "import sys; f = open('out', 'w'); f.write('x'); sys.stdout.write('no newline')",
    "threads": "import threading, time\ndef f(): time.sleep(0.05); print('t')\n"
    "threading.Thread(target=f).start()",
    "stdin": "import sys; print(repr(input()), repr(sys.stdin.read()), sys.stdin.seekable())",
    "stdin by path": "print(open('/dev/stdin').read(), open(0).read())",
    "streams": "import sys; print([(f.encoding, f.errors, f.line_buffering, f.isatty()) for f in "
    "(sys.stdin, sys.stdout, sys.stderr)])",
    "seeking": "import sys\nprint(sys.stdin.seekable(), sys.stdout.seekable())\n"
    "sys.stdin.seek(0); print(sys.stdin.read()); sys.stdout.tell()",
    "spawned processes": "import multiprocessing as m\nif __name__ == '__main__':\n"
    " m.set_start_method('spawn')\n with m.Pool(1) as p: print(p.map(abs, [-1]))",
    "signals": "import signal; print([signal.getsignal(n) for n in range(1, 32)])",
    "a child": "import subprocess, sys\n"
    "print(subprocess.run([sys.executable, '-c', 'print(2)'], capture_output=True))",
    "a pipe": "import os; os.system('yes | head -1')",
    "ctypes": "import ctypes; print(ctypes.CDLL(None).abs(-3), ctypes.CFUNCTYPE(int)(lambda: 7)())",
    "numpy": "import numpy; print(numpy.ones(3) @ numpy.ones(3))",
    "processes": "import multiprocessing\nif __name__ == '__main__':\n"
    " with multiprocessing.Pool(2) as p: print(p.map(abs, [-1, -2]))",
    "limits": "import resource; print([resource.getrlimit(n) for n in range(16)])",
    "priority": "import os; print(os.getpriority(0, 0), open('/proc/self/oom_score_adj').read())",
    "open files": "import os; print(os.listdir('/proc/self/fd'))",
    "environment": "import os; print(sorted((k, v) for k, v in os.environ.items() if k != 'AIR_COMMAND'))",
}


LINGERING = {"shared memory", "spawned processes"}
"""Programs with a process of Python's own that ends a moment after them. A reset before is refused."""


async def test_a_prestarted_python_runs_a_script_as_a_new_one_does() -> None:
    async with opened() as box, opened(PLAIN) as plain:
        for name in (one for one in PROGRAMS if one not in LINGERING):
            await _ends_alike(box, plain, name)
            assert await box.reset() == "", name
        for name in sorted(LINGERING):
            async with opened() as fresh:
                await _ends_alike(fresh, plain, name)


async def _ends_alike(box: Box, plain: Box, name: str) -> None:
    """Runs one of `PROGRAMS` in a box with a prestarted Python and in another one."""
    got, expected = [await run(one, PROGRAMS[name], stdin=b"one\ntwo\n") for one in (box, plain)]
    first, second = (
        (result.code, result.stdout, ADDRESS.sub(b"", result.stderr)) for result in (got, expected)
    )
    assert first == second, name
    await plain.exec("rm -rf out helper.py", timeout=SECONDS)


async def test_a_prestarted_python_runs_an_archive_as_a_new_one_does() -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("helper.py", "NUMBER = 7")
        file.writestr("__main__.py", "import helper, sys; print(helper.NUMBER, sys.path[0])")
    async with opened() as box, opened(PLAIN) as plain:
        for _ in range(2):
            results = []
            for each in (box, plain):
                await each.write(SCRIPT, archive.getvalue())
                results.append(await each.exec(COMMAND, timeout=SECONDS))
            first, second = ((one.code, one.stdout, one.stderr) for one in results)
            assert first == second
            assert first[:2] == (0, b"7 /workspace/air_program.py\n")
            assert await box.reset() == ""


@pytest.mark.parametrize("command", [("-c", "print(2)"), ("-m", "this")])
async def test_a_prestarted_python_without_a_script(command: tuple[str, str]) -> None:
    """Python looks for no file then, so the forks begin earlier."""
    argv = ("python3", *command)
    async with opened(PLAIN.model_copy(update={"prestart": argv})) as box:
        for _ in range(2):
            result = await box.exec(argv, timeout=SECONDS)
            assert result.code == 0
            assert result.stdout
            assert await box.reset() == ""


LAST = {
    "a script": ({SCRIPT: b"open('left', 'w').write('x'); print(2)"}, COMMAND, 0, ""),
    "another program": ({}, ("bash", "-c", "echo 2 > /tmp/left; echo 2"), 0, ""),
    "a program that does not start": ({}, ("no-such-program",), 127, ""),
    "a process that remains": (
        {SCRIPT: b"import os, time\nif not os.fork(): time.sleep(99)\nprint(2)"},
        COMMAND,
        0,
        "a process kept the output of its command",
    ),
}


async def test_a_box_resets_itself_after_its_last_command() -> None:
    async with opened() as box:
        assert isinstance(box, GuestBox)
        for name, (files, command, code, reason) in [*list(LAST.items())[:-1], *LAST.items()]:
            result = await box.exec(command, timeout=SECONDS, files=files, then_reset=True)
            assert result.code == code, name
            assert await box.reset() == reason, name
            with pytest.raises(BoxFileError, match="has had its last command"):
                await box.write("left", b"for the next caller")
            with pytest.raises(BoxDiedError, match="has had its last command"):
                await box.exec("echo 2 > left", timeout=SECONDS)
            if reason:  # the last of them
                await box.end_processes()
                return
            box.hand_out()
            left = await box.exec("ls -A . /tmp", timeout=SECONDS)
            assert left.stdout == b".:\n\n/tmp:\n", name
            assert await box.reset() == "", name


async def test_a_result_larger_than_the_pipe_is_sent_before_the_reset() -> None:
    command = "for n in $(seq 500); do : > $n; done; head -c 3000000 /dev/zero"
    async with opened() as box:
        for _ in range(3):
            result = await box.exec(command, timeout=SECONDS, max_bytes=3_000_000, then_reset=True)
            assert (result.code, len(result.stdout)) == (0, 3_000_000)
            assert await box.reset() == ""
            box.hand_out()


async def test_a_last_command_that_is_refused_or_cancelled_is_followed_by_a_reset() -> None:
    async with opened() as box:
        assert isinstance(box, GuestBox)
        files = {"first": b"1", "/etc/second": b"2"}
        with pytest.raises(BoxFileError):
            await box.exec("true", timeout=SECONDS, files=files, then_reset=True)
        assert await box.reset() == ""
        box.hand_out()
        assert (await box.exec("ls -A", timeout=SECONDS)).stdout == b""
        running = asyncio.create_task(box.exec("sleep 99", timeout=SECONDS, then_reset=True))
        await asyncio.sleep(0.1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await box.reset() == "a command was stopped"


async def test_packages_and_variables_of_a_request_get_a_new_interpreter() -> None:
    async with opened() as box:
        folder = "import site; print(site.getusersitepackages())"
        path = (await run(box, folder)).stdout.decode().strip()
        assert await box.reset() == ""
        await box.write(f"{path}/usercustomize.py", b"print('custom')")
        assert (await run(box, "print(2)")).stdout == b"custom\n2\n"
        assert await box.reset() == ""
        await box.write(SCRIPT, b"import sys; print(sys.flags.optimize)")
        result = await box.exec(COMMAND, timeout=SECONDS, env={"PYTHONOPTIMIZE": "2"})
        assert result.stdout == b"2\n"
        assert await box.reset() == ""
        assert (await run(box, "print(2)")).stdout == b"2\n"


async def test_other_commands_run_in_a_prestarted_box_as_in_any() -> None:
    async with opened() as box:
        missing = await box.exec(["no-such-program"], timeout=SECONDS)
        assert (missing.code, missing.began) == (127, False)
        assert missing.stderr == b"air: cannot run 'no-such-program': No such file or directory\n"
        assert await box.reset() == ""
        long = "echo " + "x" * 200_000 + " | wc -c"
        assert (await box.exec(long, timeout=SECONDS)).stdout == b"200001\n"
        assert (await box.exec("echo two", timeout=SECONDS)).stdout == b"two\n"
        assert await box.reset() == ""
        results = [await run(box, "print(2)"), await run(box, "print(3)")]  # the second starts anew
        assert [result.stdout for result in results] == [b"2\n", b"3\n"]
        assert await box.reset() == ""


FOLDERS = {
    "empty": "",
    "an empty folder name": "/no/such/folder::/usr/bin:/bin",
    "folders of the workspace": "/workspace/one:/workspace/two:/usr/bin:/bin",
    "a file among the folders": "/workspace/executable:/usr/bin:/bin",
}
NAMES = (
    *("no-such-program", "plain", "executable", "unmarked", "folder", "broken", "sh", ""),
    *(
        "./no-such-program",
        "./one/plain",
        "./executable",
        "./unmarked",
        "one/",
        "./plain/x",
        "/bin/sh",
    ),
)


async def test_a_prestarted_box_finds_programs_as_any_box_does(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    (two / "folder").mkdir(parents=True)
    one.mkdir()
    for folder in (tmp_path, one):
        (folder / "plain").write_text("#!/bin/sh\necho ran\n")
        for name, mark in (("executable", "/bin/sh"), ("broken", "/no/such/shell")):
            (folder / name).write_text(f"#!{mark}\necho ran\n")
            (folder / name).chmod(0o755)
        (folder / "unmarked").write_text("echo ran\n")
        (folder / "unmarked").chmod(0o755)
    async with opened() as box, opened(PLAIN) as plain:
        for (about, path), name in product(FOLDERS.items(), NAMES):
            results = []
            for each in (box, plain):
                await each.put(tmp_path, ".")
                argv = [name, "-c", "echo ran"]
                done = await each.exec(argv, timeout=SECONDS, env={"PATH": path})
                results.append((done.code, done.stdout, done.stderr, done.began))
                assert await each.reset() == "", (about, name)
            assert results[0] == results[1], (about, name)


async def test_only_closed_boxes_can_be_reset() -> None:
    for change in ({"second_user": True}, {"network": ("pypi.org",)}, {"provider": "process"}):
        with pytest.raises(ValueError, match="reusable"):
            BoxSpec(**{**PLAIN.model_dump(), **change})
    with pytest.raises(ValueError, match="prestart"):
        BoxSpec(prestart=COMMAND)
    async with opened(BoxSpec(limits=LIMITS)) as box:
        assert await box.reset() == "boxes of this kind serve only one user"
    async with opened(PLAIN) as box:
        await box.exec("echo x > a", timeout=SECONDS)
        assert await box.reset() == ""
        assert (await box.exec("ls", timeout=SECONDS)).stdout == b""
        await box.forward(0, ("127.0.0.1", 1))
        assert await box.reset() == "it was used for 'listen'"
