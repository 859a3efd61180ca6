"""Conformance checks (tests of the interface `Box` in a real box) with hostile commands: after each attack,
the box must still be alive and answer.

No command may be able to end its box. A dead box could be mistaken for a failure of the infrastructure; then
the episode would be excluded from training, and an agent could avoid a bad reward.
"""

from __future__ import annotations

import asyncio
import time

from air.errors import BoxDiedError, BoxFileError
from air.sandbox.conformance.check import Checks, expect, line, refused, same, sh
from air.sandbox.contract.box import SECOND_UID_ENV, Box
from air.sandbox.guest import users
from air.sandbox.guest.frames import frame

CHECKS = Checks()


async def _answers(box: Box) -> None:
    """Raises `Unmet` unless, within 30 seconds, the box runs a command and reads and writes a file."""
    begun = time.monotonic()
    same(await line(box, "echo alive"), "alive")
    await box.write("/tmp/alive", b"1")
    same(await box.read("/tmp/alive"), b"1")
    expect(time.monotonic() - begun < 30, "the box answers slowly")


async def _exists(box: Box, path: str) -> bool:
    try:
        await box.read(path)
    except BoxFileError:
        return False
    return True


@CHECKS.add(container=True, pids=64)
async def a_fork_bomb_is_bounded(box: Box) -> None:
    bomb = "bomb() { bomb | bomb & }; bomb; sleep 60"
    result = await box.exec(bomb, timeout=1.0)
    expect(result.timed_out and result.seconds < 30, result)
    await _answers(box)
    await box.exec("while true; do (setsid env -i sleep 60 &) 2>/dev/null; done", timeout=1.0)
    await _answers(box)


@CHECKS.add(container=True)
async def processes_that_fork_and_leave_are_ended(box: Box) -> None:
    chains = ("f & exit", "setsid bash -c 'f & exit' & exit")
    for chain in chains * 2:
        chain = f"f() {{ {chain}; }}; export -f f; f & sleep 60"
        result = await box.exec(chain, timeout=0.5)
        expect(result.timed_out and result.seconds < 30, result)
        for _ in range(100):  # on a busy machine, killed processes take a while to disappear
            running = await line(box, "grep -l '[f] & exit' /proc/[0-9]*/cmdline | wc -l")
            if running == "0":
                break
        same(running, "0")
    await _answers(box)


@CHECKS.add(container=True, pids=32)
async def with_no_process_left_files_are_still_served(box: Box) -> None:
    await box.write("artefact", b"kept")
    spawn = (
        "import subprocess as s, time\n"
        "try:\n"
        "    while True: s.Popen(['sleep', '600'])\n"
        "except OSError: open('full', 'w').close(); time.sleep(600)\n"
    )
    await box.write("spawn.py", spawn.encode())
    await sh(box, "python3 spawn.py &")
    for _ in range(400):
        if await _exists(box, "full"):
            break
        await asyncio.sleep(0.05)
    result = await box.exec("true", timeout=60)
    refusal = result.code == 126 and b"cannot start" in result.stderr and not result.began
    expect(result.ok or refusal, result)
    same(await box.read("artefact"), b"kept")


@CHECKS.add(container=True, memory_mb=64, disk_mb=16)
async def memory_is_bounded(box: Box) -> None:
    eat = "x = [b'x' * (1 << 20) for _ in range(1000)]"
    result = await box.exec(["python3", "-c", eat], timeout=60)
    expect(not result.ok and not result.timed_out, result)
    await _answers(box)


@CHECKS.add(container=True, memory_mb=64, disk_mb=16, shm_mb=16)
async def memory_of_many_processes_is_bounded(box: Box) -> None:
    # Printed last: a process that is killed to make room for the next one may have got its memory before.
    hold = "import time; x = b'x' * (40 << 20); time.sleep(3); print('kept', flush=True)"
    await box.write("hold.py", hold.encode())
    result = await box.exec("for i in {1..12}; do python3 hold.py & done; wait", timeout=90)
    expect(result.stdout.count(b"kept") < 12 and not result.timed_out, result)
    await _answers(box)


@CHECKS.add(container=True, cpus=0.25)
async def cpu_is_bounded(box: Box) -> None:
    spin = "import time\nend = time.time() + 2\nwhile time.time() < end: pass\nprint(time.process_time())"
    used = float((await box.exec(["python3", "-c", spin], timeout=60)).text)
    expect(used < 1.0, used)


@CHECKS.add(container=True, memory_mb=64, disk_mb=16)
async def full_disks_are_bounded_and_said(box: Box) -> None:
    await box.write("kept", b"kept")
    fill = "cat /dev/zero > $d/fill 2>/dev/null; df -m --output=size,avail $d | tail -1"
    for folder in ("/workspace", "/scratch", "/dev/shm", "/tmp"):
        size, free = map(int, (await line(box, f"d={folder}; {fill}")).split())
        expect(size <= 64 and free == 0, (folder, size, free))
    with refused("No space left"):
        await box.write("new", b"x" * 100_000)
    with refused("No space left"):
        await box.write("kept", b"x" * 5_000_000)
    same(await box.read("kept"), b"kept")
    same(await line(box, "ls -A"), "fill\nkept")
    await sh(box, "rm /tmp/fill fill")
    await _answers(box)


@CHECKS.add(container=True, memory_mb=64, disk_mb=16)
async def shared_memory_does_not_outlive_its_process(box: Box) -> None:
    eat = (
        "import ctypes; c = ctypes.CDLL(None); c.shmat.restype = ctypes.c_void_p\n"
        "for i in range(64):\n"
        "    at = c.shmat(c.shmget(0, 1 << 24, 0o1600), None, 0)\n"
        "    ctypes.memset(ctypes.c_void_p(at), 1, 1 << 24)\n"
    )
    result = await box.exec(["python3", "-c", eat], timeout=60)
    expect(not result.ok, result)
    same(await line(box, "wc -l < /proc/sysvipc/shm"), "1")
    await _answers(box)


@CHECKS.add()
async def output_is_never_taken_for_an_answer(box: Box) -> None:
    forged = b"".join(frame({"id": ident, "code": 7, "out": 0}) for ident in range(9))
    result = await box.exec("tee /dev/stderr; exit 3", stdin=forged, timeout=60)
    same((result.code, result.stdout, result.stderr), (3, forged, forged))
    sockets = await box.exec("ls -l /proc/self/fd | grep -c -e socket -e epoll", timeout=60)
    same(sockets.text, "0\n")


@CHECKS.add(container=True)
async def the_guest_cannot_be_read_or_written(box: Box) -> None:
    for path in ("fd/0", "fd/1", "mem", "oom_score_adj"):
        expect(not (await box.exec(f"echo 1 > /proc/1/{path}", timeout=60)).ok, path)
    for path in ("fd/0", "fd/1", "mem", "environ", "maps"):
        expect(not (await box.exec(f"head -c 1 /proc/1/{path}", timeout=60)).ok, path)
    expect(not (await box.exec("ls /proc/1/fd /proc/1/cwd/", timeout=60)).ok, "its folders")


@CHECKS.add(container=True)
async def the_guest_cannot_be_killed_stopped_or_traced(box: Box) -> None:
    for number in ("KILL", "STOP", "TERM", "INT", "HUP", "SEGV", "USR1", "QUIT", "ABRT", "CHLD"):
        await box.exec(f"kill -{number} 1", timeout=60)
    await box.exec("kill -9 -1", timeout=60)
    attach = "import ctypes; c=ctypes.CDLL(None,use_errno=True); print(c.ptrace(16,1,0,0))"
    same(await line(box, f'python3 -c "{attach}"'), "-1")
    await _answers(box)


@CHECKS.add(container=True)
async def there_is_no_network(box: Box) -> None:
    connect = (
        "import socket,sys\n"
        "for host, port in (('1.1.1.1', 53), ('169.254.169.254', 80), ('172.17.0.1', 22)):\n"
        "    try: socket.create_connection((host, port), 2); print('reached', host)\n"
        "    except OSError: pass\n"
        "try: socket.getaddrinfo('example.com', 80); print('resolved')\n"
        "except OSError: pass\n"
    )
    same(await line(box, "ls /sys/class/net"), "lo")
    same((await box.exec(["python3", "-c", connect], timeout=60)).text, "")
    same(await line(box, "find / -name 'docker.sock' 2>/dev/null | wc -l"), "0")


@CHECKS.add(container=True)
async def nobody_in_it_has_privileges(box: Box) -> None:
    status = await line(box, "grep -E '^(CapEff|CapPrm|CapBnd|NoNewPrivs|Uid)' /proc/self/status")
    fields = {row.split(":")[0]: row.split()[1] for row in status.splitlines()}
    for name in ("CapEff", "CapPrm", "CapBnd"):
        same(int(fields[name], 16), 0)
    same(fields["NoNewPrivs"], "1")
    expect(fields["Uid"] != "0", fields)
    for path in ("/x", "/etc/x", "/usr/bin/x", "/proc/sys/kernel/core_pattern", "/sys/x"):
        expect(not (await box.exec(f"echo 1 > {path}", timeout=60)).ok, path)
    cgroup = await box.exec("find /sys/fs/cgroup -writable -type f 2>/dev/null | head", timeout=60)
    same(cgroup.text, "")
    for script in ("mount -t tmpfs x /mnt", "mknod d c 1 5", "chroot / true"):
        expect(not (await box.exec(script, timeout=60)).ok, script)
    same(await line(box, "ls -d /proc/[0-9]* | wc -l | awk '{print ($1 < 16)}'"), "1")


@CHECKS.add(container=True)
async def nobody_makes_namespaces(box: Box) -> None:
    for script in ("unshare -r true", "unshare -rn true", "unshare -rm true"):
        expect(not (await box.exec(script, timeout=60)).ok, script)


@CHECKS.add(container=True, second_user=True)
async def a_second_user_is_kept_apart(box: Box) -> None:
    await box.write("/scratch/labels", b"secret")
    await box.write("artefact", b"theirs")
    become = (
        "import os, sys\n"
        f"uid = int(os.environ['{SECOND_UID_ENV}'])\n"
        "os.setgroups([]); os.setgid(uid); os.setuid(uid)\n"
        "os.execvp('bash', ['bash', '-c', sys.argv[1]])\n"
    )

    async def second(script: str) -> str:
        return (await box.exec(["python3", "-c", become, script], timeout=60)).text

    same((await second("id -u; cat artefact")).split(), ["65533", "theirs"])
    for script in ("cat /scratch/labels", "ls /scratch", "echo 1 > x", "cat /proc/1/environ"):
        expect("Permission denied" in await second(script), script)
    sleeper = asyncio.create_task(box.exec("sleep 2; echo slept", timeout=60))
    await second("kill -9 -1")
    same((await sleeper).stdout, b"slept\n")
    await second("setsid sleep 987 >/dev/null 2>&1 &")
    result = await box.exec(["python3", "-c", become, "setsid sleep 988 & sleep 60"], timeout=0.5)
    expect(result.timed_out, result)
    same(
        await line(box, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 98[8]' || true"),
        "0",
    )
    capabilities = int(await line(box, "awk '/CapBnd/ {print $2}' /proc/self/status"), 16)
    same(capabilities | 1 << users.SYS_RESOURCE, sum(1 << number for number in users.KEPT))


@CHECKS.add()
async def a_flood_of_small_commands_and_files(box: Box) -> None:
    begun = time.monotonic()
    for _ in range(5):
        if time.monotonic() - begun > 5:
            break
        await asyncio.gather(
            *(box.exec(["true"], timeout=60) for _ in range(20)),
            *(box.write(f"f{i}", b"x" * i) for i in range(20)),
        )
    try:
        same(await line(box, "ls | wc -l"), "20")
    except BoxDiedError as error:
        expect(False, str(error))
