"""Conformance checks (tests of the interface `Box` in a real box) that no command can slow down, limit or end
the guest (the program that runs all commands of a box).

A guest that dies or does not answer could be mistaken for a failure of the infrastructure, which would
exclude the episode from training.
"""

from __future__ import annotations

import asyncio
import time

from air.sandbox.conformance.check import Checks, expect, line, same
from air.sandbox.contract.box import SECOND_UID_ENV, Box, ExecResult

CHECKS = Checks()
_LIMIT = """
import resource
for name in ("AS", "STACK", "DATA", "NOFILE", "CPU", "FSIZE", "NPROC", "MEMLOCK", "CORE"):
    try:
        resource.prlimit(1, getattr(resource, "RLIMIT_" + name), (0, 0))
        print(name)
    except PermissionError:
        pass
"""
_SCHEDULE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attack(name, act):
    try:
        act()
        print(name)
    except (PermissionError, ProcessLookupError):
        pass
def io_priority():
    number = {"x86_64": 251, "aarch64": 30}.get(os.uname().machine)
    if number is None or libc.syscall(number, 1, 1, 3 << 13) < 0:
        raise PermissionError
attack("idle", lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)))
attack("batch", lambda: os.sched_setscheduler(1, os.SCHED_BATCH, os.sched_param(0)))
attack("nice", lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
attack("group", lambda: os.setpriority(os.PRIO_PGRP, os.getpgid(1) or 1, 19))
attack("cores", lambda: os.sched_setaffinity(1, {min(os.sched_getaffinity(0))}))
attack("io", io_priority)
"""
_AS_SECOND = f"""
import os, sys
uid = int(os.environ["{SECOND_UID_ENV}"])
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
exec(sys.argv[1])
"""


async def answers(box: Box) -> None:
    """Raises `Unmet` unless the box runs a command and reads and writes a file."""
    same(await line(box, "echo alive"), "alive")
    await box.write("/tmp/alive", b"1")
    same(await box.read("/tmp/alive"), b"1")


async def _python(box: Box, code: str) -> ExecResult:
    return await box.exec(["python3", "-c", code], timeout=300)


@CHECKS.add(container=True)
async def the_guest_takes_no_limits_from_commands(box: Box) -> None:
    same((await _python(box, _LIMIT)).text, "")
    await answers(box)


@CHECKS.add(container=True)
async def the_guest_cannot_be_rescheduled(box: Box) -> None:
    same((await _python(box, _SCHEDULE)).text, "")
    await box.exec("renice -n 19 -u $(id -u)", timeout=60)
    policy = "import os; print(os.getpriority(os.PRIO_PROCESS, 1), os.sched_getscheduler(1))"
    own = "import os; print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0))"
    guest = (await _python(box, policy)).text.split()
    command = (await _python(box, own)).text.split()
    same((int(guest[0]) < int(command[0]), guest[1], command[1]), (True, "0", "0"))


@CHECKS.add(container=True, second_user=True)
async def a_second_user_cannot_limit_or_reschedule_the_guest(box: Box) -> None:
    for attack in (_LIMIT, _SCHEDULE):
        same((await box.exec(["python3", "-c", _AS_SECOND, attack], timeout=60)).text, "")


@CHECKS.add(container=True, pids=128)
async def spinning_processes_do_not_keep_the_guest_from_answering(box: Box) -> None:
    # A guest that runs only while nothing else does would not run again.
    code = _SCHEDULE + "for _ in range(110):\n    if not os.fork():\n        while True: pass\n"
    result = await _python(box, code + "print('spinning')")
    same(result.text, "spinning\n")
    await answers(box)


_FILES = "import os; fd = os.memfd_create('x')\nwhile True: os.write(fd, b'x' * (1 << 20))\n"
_SMALL = """
import os, time
for _ in range(120):
    if os.fork() == 0:
        held = b"x" * (2 << 20)
        time.sleep(60)
"""


_OTHERS = """
import os, sys
for name in os.listdir("/proc"):
    try:
        if name.isdigit() and name not in ("1", str(os.getpid())):
            if os.stat("/proc/" + name).st_uid == os.getuid():
                sys.exit("process " + name + " has not ended")
    except FileNotFoundError:
        pass
"""
FREE_SECONDS, FREE_IN_A_ROW = 600.0, 5
"""How a check waits until a box's memory is free again after it was used up. The memory counts as free when
`FREE_IN_A_ROW` Python processes have run in the box one after another without a failure. (They need far more
memory than the check's shell commands.) The check fails if this takes more than `FREE_SECONDS` seconds."""


async def _use_up_memory(box: Box, before: str = "") -> None:
    """Uses up the box's memory in two ways, one after the other: with files that lie in memory, and with many
    small processes. After each way, frees the memory and checks that the box still answers.

    Each way is a Python script that runs in the box. `before` is Python code that is put at the beginning of
    both scripts.
    """
    for attack in (_FILES, _SMALL):
        await _python(box, before + attack)
        await _free_memory(box)
        await answers(box)


async def _free_memory(box: Box) -> None:
    """Kills all processes of the commands' user, and waits until all have ended, because a process keeps its
    memory until it has ended.

    Tries again if that fails: for lack of memory, the kernel may also kill the command that kills the
    processes or the command that looks for remaining ones.
    """
    until, free = time.monotonic() + FREE_SECONDS, 0
    while free < FREE_IN_A_ROW:
        if not free:
            await box.exec("kill -9 -1", timeout=60)
        result = await _python(box, _OTHERS)
        free = free + 1 if result.ok else 0
        expect(time.monotonic() < until, f"no free memory: {result}")
        if not result.ok:
            await asyncio.sleep(0.1)


@CHECKS.add(container=True, memory_mb=64, disk_mb=16, shm_mb=16)
async def memory_in_small_pieces_does_not_end_the_guest(box: Box) -> None:
    await _use_up_memory(box)


@CHECKS.add(container=True, memory_mb=64, disk_mb=16, shm_mb=16)
async def no_command_leaves_the_order_of_out_of_memory(box: Box) -> None:
    for score in (999, 0, -1000):
        expect(
            not (await box.exec(f"echo {score} > /proc/self/oom_score_adj", timeout=60)).ok, score
        )
    same(await line(box, "setsid cat /proc/self/oom_score_adj"), "1000")
    lower = "try: open('/proc/self/oom_score_adj', 'w').write('0')\nexcept OSError: pass\n"
    await _use_up_memory(box, lower)


_QUEUES = """
import ctypes
libc, sent = ctypes.CDLL(None, use_errno=True), 0
text = ctypes.create_string_buffer(8 + 8192)
text[0] = b"\\1"
while (queue := libc.msgget(0, 0o600)) >= 0:
    while libc.msgsnd(queue, text, 8192, 0o4000) == 0: sent += 8192
sets = 0
while libc.semget(0, 32000, 0o600) >= 0 or libc.semget(0, 200, 0o600) >= 0: sets += 1
print(sent, sets)
"""


@CHECKS.add(container=True, memory_mb=64, disk_mb=16, shm_mb=16)
async def memory_that_outlives_its_process_is_bounded(box: Box) -> None:
    sent, sets = map(int, (await _python(box, _QUEUES)).text.split())
    expect(sent <= 8 << 20 and sets <= 256, (sent, sets))
    await answers(box)


_ENDLESS_ENVIRONMENT = """
import ctypes, os, struct, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.sbrk.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t) + (ctypes.c_int,) * 3 + (ctypes.c_long,)
size = 8 << 30
start = libc.mmap(None, size, 1, 0x4022, -1, 0)  # private, anonymous, and no memory is reserved for it
fields = [int(field) for field in open("/proc/self/stat").read().rpartition(")")[2].split()[1:]]
code, data, brk, stack, arguments = fields[22:24], fields[41:43], fields[43], fields[24], fields[44:46]
layout = (*code, *data, brk, libc.sbrk(0), stack, *arguments, start, start + size, 0, 0, 2**32 - 1)
if start != 2**64 - 1 and libc.prctl(35, 14, struct.pack("12Q2I", *layout), 104, 0) == 0:
    print("set", flush=True)
if os.fork() == 0:
    os.setsid()
    os.closerange(0, 3)
    time.sleep(600)
"""


@CHECKS.add()
async def an_endless_environment_does_not_end_the_guest(box: Box) -> None:
    """To find the processes of a command, the guest reads the environment of processes without a parent."""
    said = (await _python(box, _ENDLESS_ENVIRONMENT)).text
    expect(said == "set\n" or box.isolation == "process", said)  # its limit of memory may forbid it
    expect((await box.exec("sleep 600", timeout=0.5)).timed_out, "the command has ended")
    await answers(box)
