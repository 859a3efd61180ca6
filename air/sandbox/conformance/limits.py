"""Conformance checks (tests of the interface `Box` in a real box) of the resource limits of a box, and of the
signal settings and open files with which a command starts."""

from __future__ import annotations

import asyncio
import time

from air.errors import BoxFileError
from air.sandbox.conformance.check import Checks, expect, line, same, sh
from air.sandbox.contract.box import Box

CHECKS = Checks()
MIB = 1 << 20
_INTERNAL = 0b111 << 31
"""Bit mask of the signals 32 to 34, which C libraries reserve for themselves. One check demands that a
command starts with no signal ignored, but it skips these three signals: with glibc, a child process may start
with two of them ignored."""
_CGROUP = """
cd /sys/fs/cgroup
for f in cpu.max memory.max memory.swap.max pids.max cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us \\
    memory/memory.limit_in_bytes memory/memory.memsw.limit_in_bytes pids/pids.max
do [ -r $f ] && echo ${f##*/} $(cat $f); done
echo swaps $(wc -l < /proc/swaps)
"""
_FOLDERS = "df -Pk /workspace /scratch /tmp /dev/shm | awk 'NR > 1 {print $2}'"


@CHECKS.add(container=True, cpus=0.5, pids=32, memory_mb=64, disk_mb=16)
async def the_kernel_keeps_the_limits(box: Box) -> None:
    rows = [row.split() for row in (await line(box, _CGROUP)).splitlines()]
    values = {name: rest for name, *rest in rows}
    old = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    quota, period = values.get("cpu.max") or (values[name][0] for name in old)
    expect(quota.isdigit() and int(quota) == int(period) // 2, values)
    (memory,) = values.get("memory.max") or values["memory.limit_in_bytes"]
    sizes = await line(box, _FOLDERS)  # folders lie in memory, too: added to the limit
    same(int(memory), box.spec.limits.memory_mb * MIB + sum(map(int, sizes.split())) * 1024)
    (pids,) = values["pids.max"]
    expect(pids.isdigit() and int(pids) <= 40, values)
    both = values.get("memory.memsw.limit_in_bytes")
    none = values.get("memory.swap.max") == ["0"]
    expect(both == [memory] or none or (both is None and values["swaps"] == ["1"]), values)


_SPAWN = """
import subprocess as s
all = []
try:
    while len(all) < 100: all.append(s.Popen(['sleep', '600']))
except OSError: pass
for one in all: one.kill()
print(len(all))
"""


@CHECKS.add(container=True, pids=32)
async def there_are_no_more_processes_than_allowed(box: Box) -> None:
    count = int((await box.exec(["python3", "-c", _SPAWN], timeout=60)).text)
    expect(16 < count < 33, count)


@CHECKS.add(container=True)
async def only_the_named_folders_can_be_written(box: Box) -> None:
    writable = await line(box, "find / -xdev -writable ! -type l 2>/dev/null | sort | head")
    same(writable.split(), ["/scratch", "/tmp", "/workspace"])


@CHECKS.add(container=True)
async def writable_folders_take_no_setuid_program_and_no_device(box: Box) -> None:
    for folder in ("/workspace", "/scratch", "/tmp", "/dev/shm"):
        options = await line(box, f"awk '$2 == \"{folder}\" {{print $4}}' /proc/mounts")
        expect({"nosuid", "nodev", "rw"} <= set(options.split(",")), (folder, options))


@CHECKS.add(container=True, memory_mb=64, disk_mb=16, shm_mb=16)
async def empty_files_are_bounded(box: Box) -> None:
    make = (
        "import os, sys\n"
        "os.chdir(sys.argv[1])\n"
        "try:\n"
        "    for i in range(20000): open(str(i), 'w').close()\n"
        "except OSError: pass\n"
        "print(len(os.listdir('.')))\n"
    )
    for folder, most in (
        ("/workspace", 8192),
        ("/scratch", 8192),
        ("/dev/shm", 8192),
        ("/tmp", 17_000),
    ):
        made = await box.exec(["python3", "-c", make, folder], timeout=60)
        expect(int(made.text) <= most, (folder, made))


@CHECKS.add(container=True)
async def open_files_are_bounded(box: Box) -> None:
    most = await line(box, "ulimit -Hn")
    expect(most.isdigit() and int(most) <= 4096, most)


@CHECKS.add()
async def a_crash_leaves_no_core(box: Box) -> None:
    same(await line(box, "ulimit -Hc"), "0")


@CHECKS.add()
async def out_of_memory_ends_commands_first(box: Box) -> None:
    same(await line(box, "cat /proc/self/oom_score_adj"), "1000")


@CHECKS.add()
async def a_command_gets_nothing_but_its_streams(box: Box) -> None:
    other = asyncio.create_task(box.exec("echo up > up; sleep 1", timeout=60))
    await sh(box, "until [ -e up ]; do sleep 0.02; done")
    same((await line(box, "ls /proc/self/fd")).split(), ["0", "1", "2", "3"])  # 3 is ls's own
    expect((await other).ok, await other)


@CHECKS.add(pids=256)
async def a_command_begins_with_no_signal_blocked_or_ignored(box: Box) -> None:
    ask = ["grep", "-E", "^Sig(Blk|Ign):", "/proc/self/status"]
    # Several at once, because the guest may block signals while it starts a command.
    for result in await asyncio.gather(*(box.exec(ask, timeout=60) for _ in range(8))):
        rows = dict(row.split() for row in result.text.splitlines())
        masks = {name: int(mask, 16) & ~_INTERNAL for name, mask in rows.items()}
        same(masks, {"SigBlk:": 0, "SigIgn:": 0})


@CHECKS.add()
async def a_signal_to_its_own_group_ends_a_command_alone(box: Box) -> None:
    other = asyncio.create_task(box.exec("echo up > up; sleep 1; echo done", timeout=60))
    await sh(box, "until [ -e up ]; do sleep 0.02; done")
    same((await box.exec("kill -9 0; sleep 600", timeout=60)).code, 137)
    same((await other).stdout, b"done\n")


@CHECKS.add()
async def a_command_that_closes_its_output_is_awaited(box: Box) -> None:
    result = await box.exec("exec >&- 2>&-; sleep 0.3; exit 3", timeout=60)
    same((result.code, result.timed_out), (3, False))
    expect(0.2 < result.seconds < 30, result)  # a host may learn of the start a little late


_SWAP = """
import ctypes, os, sys
swap = ctypes.CDLL(None, use_errno=True).renameat2
while not os.path.exists("stop"):
    for _ in range(1000):
        if swap(-100, b"name", -100, b"other", 2):
            sys.exit(os.strerror(ctypes.get_errno()))
"""


@CHECKS.add()
async def a_name_that_is_swapped_while_it_is_read_leads_nowhere(box: Box) -> None:
    await box.write("swap.py", _SWAP.encode())
    for make in ("ln -s /etc/passwd other", "mkfifo other"):
        await sh(box, f"rm -f stop; echo mine > name; {make}")
        swapping = asyncio.create_task(box.exec(["python3", "swap.py"], timeout=60))
        seen, enough = 0, time.monotonic() + 10
        for _ in range(1000):
            if seen and time.monotonic() > enough:
                break
            try:
                data = await asyncio.wait_for(box.read("name"), 60)
            except BoxFileError:
                continue
            same(data, b"mine\n")
            seen += 1
        await sh(box, "touch stop")
        expect((await swapping).ok, await swapping)
        expect(seen, "the file was never read")
        await sh(box, "rm -f name other")
