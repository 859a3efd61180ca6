"""What agent code could try against the runner that plays it, all in one grader box with a second user."""

from __future__ import annotations

import json
from typing import Any

import pytest

from air import paths, tasks
from air.sandbox.contract.box import Box
from air.sandbox.pool.box_pool import Pool

pytestmark = pytest.mark.docker

SHARED = paths.shipped("tasks") / "_shared"
DRIVER = """
import json, sys
from pathlib import Path
import grading, runner
grading.HERE.chmod(0o700)
answers = {}
for name, (source, limits) in json.loads(Path("/grader/attempts.json").read_text()).items():
    Path("/workspace/given.py").write_text(source)
    said = answers[name] = []
    try:
        with runner.Runner(Path("/workspace/given.py"), "f", seed=7, limits=runner.Limits(**limits)) as game:
            for number in range(2):
                game.load()
                said.append(game.call(number))
    except grading.BadArtefact as error:
        said.append("fault: " + str(error))
print(json.dumps(answers))
"""
"""Loads and calls the code of every attempt twice."""
C = (
    "import ctypes, os, resource, signal, socket, time\n"
    "libc = ctypes.CDLL(None, use_errno=True)\nP = os.getppid()\n"
    "ADD_KEY = {'x86_64': 248, 'aarch64': 217}[os.uname().machine]\n"
)
DENIED = {
    "the memory of its parent": "open('/proc/%d/mem' % P, 'r+b')",
    "the environment of its parent": "open('/proc/%d/environ' % P)",
    "the files of its parent": "os.listdir('/proc/%d/fd' % P)",
    "a stopped parent": "os.kill(P, signal.SIGSTOP)",
    "a killed parent": "os.kill(P, signal.SIGKILL)",
    "the limits of its parent": "resource.prlimit(P, resource.RLIMIT_NOFILE, (1, 1))",
    "the cores of its parent": "os.sched_setaffinity(P, {0})",
    "the priority of its parent": "os.setpriority(os.PRIO_PROCESS, P, 19)",
    "a traced parent": "assert_refused(libc.ptrace(16, P, 0, 0))",
    "memory without a name": "os.memfd_create('x')",
    "another program": "os.execv('/usr/bin/true', ['true'])",
    "a process": "os.fork()",
    "a later death": "open('/proc/self/oom_score_adj', 'w').write('0')",
    "an open self": "assert_refused(libc.prctl(4, 1, 0, 0, 0))",
    "shared memory": "assert_refused(libc.shmget(7, 4096, 0o1666))",
    "a semaphore": "assert_refused(libc.semget(7, 1, 0o1666))",
    "a queue": "assert_refused(libc.msgget(7, 0o1666))",
    "a queue with a name": "assert_refused(libc.mq_open(b'/x', 0o102, 0o666, None))",
    "a key of the kernel": "assert_refused(libc.syscall(ADD_KEY, b'user', b'x', b'y', 1, -4))",
    "counters of its parent": "open('/proc/%d/stat' % P)",
    "counters of its own": "open('/proc/self/status')",
    "counters of the machine": "open('/proc/stat')",
    "the clock of its parent": "time.clock_gettime(~P << 3 | 2)",
    "the memory of the machine": "assert_refused(libc.sysinfo(ctypes.create_string_buffer(200)))",
    "the number of a pipe": "os.pipe()",
    "the number of a socket": "socket.socketpair()",
    "a socket": "socket.socket()",
    "a removed file that is kept": "assert_refused(libc.syscall(444, bytes([1] + [0] * 7), 8, 0))",
    "calls without a filter": "assert_refused(libc.syscall(425, 1, 0))",
    "the times of a device": "os.utime('/dev/null')",
    "a file": "open('x', 'w')",
    "the times of /tmp": "os.listdir('/tmp')",
    "a file in /tmp": "open('/tmp/x', 'w')",
    "a file in /dev/shm": "open('/dev/shm/x', 'w')",
    "a file in /dev/mqueue": "os.open('/dev/mqueue/x', os.O_CREAT | os.O_RDWR)",
}
"""What must raise in agent code, by what it would gain."""
DENIED_BY_LANDLOCK = {
    "counters of the box": "os.listdir('/sys/fs/cgroup')",
    "counters of the network": "open('/sys/class/net/lo/statistics/rx_bytes')",
}
"""What must raise in addition if the kernel has Landlock."""
REFUSED = C + (
    "def assert_refused(result):\n"
    "    if result == -1: raise OSError(ctypes.get_errno(), 'refused')\n"
    "def f(x):\n    try:\n        ATTEMPT\n"
    "    except (OSError, ValueError) as error:\n        return 'refused'\n    return 'done'\n"
)
STATE = {
    "files": (
        "import os, pathlib\ndef f(x):\n    found = os.listdir('.') + os.listdir(os.environ['TMPDIR'])\n"
        "    os.makedirs('a/b')\n    open('a/b/c', 'w').write('x' * 99)\n    os.chmod('a', 0)\n"
        "    for _ in range(3000):\n        os.mkdir('d'); os.chdir('d')\n    return found\n"
    ),
    "room on the disk": (
        "import os\ndef f(x):\n    free = os.statvfs('.').f_bavail, os.statvfs('.').f_ffree\n"
        "    for at in range(60): open(str(at), 'wb').write(bytes(900_000))\n    return free\n"
    ),
}
"""What the second load must not see of the first."""
MEMORY = C + (
    "import mmap\ndef f(x):\n    held = []\n    while True:\n"
    "        held.append(mmap.mmap(-1, 1 << 20))\n        held[-1].write(b'x' * (1 << 20))\n"
    "        held[-1].madvise(mmap.MADV_DONTNEED)\n"
)
"""Memory that no process counts as its own."""


async def play(
    box: Box, attempts: dict[str, tuple[str, dict[str, Any]]], *, landlock: bool = True
) -> dict[str, list[Any]]:
    """What the driver says of each attempt; its own end is checked. Without `landlock`, the player takes the
    kernel for one that lacks it."""
    for name in ("grading", "runner", "player"):
        text = (SHARED / f"{name}.py").read_text(encoding="utf-8")
        if not landlock and name == "player":
            changed = text.replace("= 444, 445, 446", "= 9444, 445, 446")
            assert changed != text
            text = changed
        await box.write(f"/grader/{name}.py", text.encode())
    await box.write("/grader/driver.py", DRIVER.encode())
    await box.write("/grader/attempts.json", json.dumps(attempts).encode())
    result = await box.exec(["python3", "/grader/driver.py"], timeout=600)
    assert result.ok, result.text
    found: dict[str, list[Any]] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("provider", ["docker", "process"])
async def test_agent_code_is_shut_in(provider: str) -> None:
    spec = tasks.load("gridMaze").grader_spec(provider)  # type: ignore[arg-type]
    denied = DENIED | DENIED_BY_LANDLOCK
    attempts: dict[str, tuple[str, dict[str, Any]]] = {
        name: (REFUSED.replace("ATTEMPT", line), {"seconds": 600}) for name, line in denied.items()
    }
    files = {"seconds": 600, "file_mb": 1}
    attempts |= {name: (source, files) for name, source in STATE.items()}
    if provider == "docker":  # a process box limits nothing but the address space
        attempts["memory"] = (
            MEMORY,
            dict.fromkeys(("cpu_seconds", "memory_mb"), None) | {"seconds": 600},
        )
    async with Pool(1) as pool, pool.lease(spec) as box:
        found = await play(box, attempts)
    assert {name: found[name] for name in denied} == dict.fromkeys(denied, ["refused"] * 2)
    for name in STATE:
        first, second = found[name]
        assert first == second, name
    if provider == "docker":
        assert found["memory"] == ["fault: given.py ended before it was done"]


async def test_containers_shut_agent_code_in_without_landlock() -> None:
    """Modes of files then close all but the counters of the box."""
    spec = tasks.load("gridMaze").grader_spec("docker")
    attempts: dict[str, tuple[str, dict[str, Any]]] = {
        name: (REFUSED.replace("ATTEMPT", line), {"seconds": 600})
        for name, line in (DENIED | DENIED_BY_LANDLOCK).items()
    }
    async with Pool(1) as pool, pool.lease(spec) as box:
        found = await play(box, attempts, landlock=False)
    expected = dict.fromkeys(DENIED, ["refused"] * 2)
    assert found == expected | dict.fromkeys(DENIED_BY_LANDLOCK, ["done"] * 2)
