"""Conformance checks (tests in a real box) of `Box.exec`: the input and the result of a command, and that a
killed command leaves no process behind."""

from __future__ import annotations

import asyncio
import secrets
import time

from air.errors import BoxDiedError
from air.sandbox.conformance.check import Checks, expect, line, refused, same, sh
from air.sandbox.contract.box import Box

CHECKS = Checks()
_NAP = secrets.randbelow(80_000) + 10_000
"""A random number of seconds. The checks start `sleep` processes with this duration, and recognise their own
processes by it."""


@CHECKS.add()
async def a_string_goes_through_bash_a_sequence_as_it_is(box: Box) -> None:
    same((await sh(box, "echo $((1+1)) {a,b}")).stdout, b"2 a b\n")
    result = await box.exec(["printf", "%s|", "$HOME", "a b", ""], timeout=60)
    same(result.stdout, b"$HOME|a b||")


@CHECKS.add()
async def exit_codes_are_data(box: Box) -> None:
    signals = (("kill -9 $$", 137), ("kill -TERM $$", 143), ("kill -USR1 $$", 138))
    for script, code in (("exit 3", 3), *signals):
        result = await box.exec(script, timeout=60)
        same((result.code, result.timed_out, result.ok), (code, False, False))
    same((await box.exec(["no-such-program"], timeout=60)).code, 127)
    same((await box.exec(["/etc/hostname"], timeout=60)).code, 126)
    same((await box.exec([], timeout=60)).code, 126)
    same((await box.exec(["a\0b"], timeout=60)).code, 126)
    same((await box.exec("echo \udcff | od -An -tx1", timeout=60)).stdout.split(), [b"ff", b"0a"])
    same((await box.exec("echo \ud800", timeout=60)).code, 126)


@CHECKS.add()
async def a_program_that_cannot_run_is_told_from_one_that_failed(box: Box) -> None:
    for command, code, began in (
        ("exit 126", 126, True),
        ("no-such-program", 127, True),
        (["no-such-program"], 127, False),
        (["/etc/hostname"], 126, False),
    ):
        result = await box.exec(command, timeout=60)
        same((command, result.code, result.began), (command, code, began))


@CHECKS.add()
async def stdout_and_stderr_stay_apart_and_bytes_stay_bytes(box: Box) -> None:
    result = await sh(box, r"printf '\000\377\r\n\033'; printf err >&2")
    same((result.stdout, result.stderr), (b"\0\xff\r\n\x1b", b"err"))
    expect(not result.truncated, result)


@CHECKS.add()
async def standard_input_is_what_was_given(box: Box) -> None:
    data = bytes(range(256)) * 20_000
    result = await box.exec(["cat"], stdin=data, timeout=60, max_bytes=len(data))
    expect(result.stdout == data, "5 MB through cat came back changed")
    same((await box.exec(["cat"], timeout=60)).stdout, b"")


@CHECKS.add()
async def files_of_a_command_are_written_before_it(box: Box) -> None:
    large = bytes(range(256)) * 5000  # too large to be sent within the request
    for data in (b"one\n", b"", large):
        given = {"a/in": data, "last": b"2"}
        result = await box.exec(
            "cat a/in last -", stdin=b"3", files=given, timeout=60, max_bytes=1 << 21
        )
        expect(result.stdout == data + b"23", f"{len(data)} bytes came back changed")
    with refused("folder", "'a'"):
        await box.exec("touch ran", files={"last": b"4", "a": b"5"}, timeout=60)
    same(await line(box, "ls; cat last"), "a\nlast\n4")


@CHECKS.add()
async def a_lock_on_standard_input_keeps_other_commands_out(box: Box) -> None:
    """Checks that a command that locks its standard input (flock) keeps other commands from locking theirs.
    This works even for commands without input, because the standard input of each of them is the same file,
    /dev/null."""
    hold = "flock -x 0 && touch held && until [ -e release ]; do sleep 0.05; done"
    holder = asyncio.create_task(box.exec(hold, timeout=60))
    await sh(box, "until [ -e held ]; do sleep 0.05; done", timeout=60)
    same((await box.exec("flock -n -x 0", timeout=20)).code, 1)
    await sh(box, "touch release")
    same((await holder).code, 0)
    same((await box.exec("flock -x 0", timeout=60)).code, 0)


@CHECKS.add()
async def working_directory_and_environment(box: Box) -> None:
    same(await line(box, "pwd"), box.workspace)
    await sh(box, "mkdir -p deep/er")
    same((await box.exec("pwd", cwd="deep/er", timeout=60)).text, f"{box.workspace}/deep/er\n")
    same((await box.exec("pwd", cwd="/", timeout=60)).text, "/\n")
    same((await box.exec("pwd", cwd="/workspace/deep", timeout=60)).text, f"{box.workspace}/deep\n")
    missing = await box.exec("pwd", cwd="nowhere", timeout=60)
    expect(missing.code == 126 and b"No such file" in missing.stderr, missing)
    env = {"GREETING": "a b\nc", "PATH": "/bin:/usr/bin"}
    same((await box.exec('echo "$GREETING"', env=env, timeout=60)).text, "a b\nc\n")
    same(await line(box, "cd ~ && pwd"), box.workspace)
    same(await line(box, "python3 -c 'print(1)'"), "1")


@CHECKS.add()
async def commands_are_fresh(box: Box) -> None:
    await sh(box, "export LEFT=1; ulimit -n 64; echo kept > file; cd /")
    same(await line(box, "echo ${LEFT:-gone}; pwd; cat file"), f"gone\n{box.workspace}\nkept")


@CHECKS.add()
async def output_keeps_head_and_tail(box: Box) -> None:
    script = "seq 1 100000; seq 1 100000 >&2"
    result = await box.exec(script, timeout=60, max_bytes=1000)
    for data in (result.stdout, result.stderr):
        expect(len(data) < 1100, len(data))
        expect(data.startswith(b"1\n2\n") and data.endswith(b"\n100000\n"), data)
        expect(b"bytes cut ...]" in data, data)
    expect(result.truncated, result)
    exact = await box.exec("head -c 1000 /dev/zero", timeout=60, max_bytes=1000)
    same((exact.stdout, exact.truncated), (b"\0" * 1000, False))


@CHECKS.add()
async def endless_output_is_bounded(box: Box) -> None:
    result = await box.exec("yes", timeout=1.0)
    expect(result.timed_out and result.truncated and len(result.stdout) < 65_000, result)
    expect(result.seconds < 30, result.seconds)


@CHECKS.add()
async def a_timeout_returns_what_was_printed(box: Box) -> None:
    result = await box.exec("echo early; sleep 60", timeout=0.5)
    same((result.code, result.stdout, result.timed_out), (137, b"early\n", True))
    expect(0.4 < result.seconds < 30, result.seconds)


_ESCAPES = {
    "child": f"sleep {_NAP}.1 & wait",
    "setsid": f"setsid nohup sleep {_NAP}.2 >/dev/null 2>&1 & wait",
    "orphan": f"(setsid sleep {_NAP}.3 & ) ; sleep 60",
    "unmarked": f"(setsid env -i sleep {_NAP}.4 &) ; sleep 60",
    "double-fork": f"(setsid bash -c 'setsid env -i sleep {_NAP}.5 & disown' &) ; sleep 60",
    "deaf": f"trap '' TERM INT HUP; sleep {_NAP}.6; sleep 60",
    "stopped": f"sleep {_NAP}.7 & kill -STOP $!; kill -STOP $$",
}


@CHECKS.add()
async def a_timeout_kills_the_whole_tree(box: Box) -> None:
    for name, script in _ESCAPES.items():
        result = await box.exec(script, timeout=0.4)
        expect(result.timed_out and result.seconds < 30, (name, result))
        same((name, await _sleepers(box)), (name, ""))


@CHECKS.add()
async def a_cancelled_exec_kills_its_command(box: Box) -> None:
    task = asyncio.create_task(box.exec(_ESCAPES["setsid"], timeout=60))
    await _started(box, ".2")
    task.cancel()
    await asyncio.wait([task])
    expect(task.cancelled(), task)
    same(await _sleepers(box), "")


@CHECKS.add()
async def a_killed_process_is_gone_before_the_next_command(box: Box) -> None:
    """After `kill -9`, the next command finds no trace of the process: one that is still ending may hold a
    port or memory that the next command needs. This process has many small pages of memory, so that it takes
    long to end."""
    hold = (
        "import mmap, os, time; kept = mmap.mmap(-1, 100 << 20); kept.madvise(mmap.MADV_NOHUGEPAGE)\n"
        "for page in range(0, len(kept), 4096): kept[page] = 1\n"
        "open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    )
    same(await _states_after_kill(box, hold), "")


WITHOUT_FIRST_THREAD = """
import ctypes, os, threading, time

def beat():
    while True:
        with open('beat', 'w') as file:
            file.write(str(time.monotonic_ns()))
        time.sleep(0.01)

threading.Thread(target=beat).start()
with open('pid', 'w') as file:
    file.write(str(os.getpid()))
ctypes.CDLL(None).pthread_exit(None)
"""
"""A Python program that goes on in a thread after its first thread has ended. The kernel says of its process
that it is a zombie (state Z), as if it had ended."""


@CHECKS.add()
async def a_program_whose_first_thread_has_ended_is_killed(box: Box) -> None:
    same(await _states_after_kill(box, WITHOUT_FIRST_THREAD), "")


async def _states_after_kill(box: Box, code: str) -> str:
    """Runs a Python program in a session of its own, cancels its command when it has written its pid into the
    file `pid`, and returns the states of those of its threads that are still there."""
    script = 'setsid python3 -c "$0" >/dev/null 2>&1 & wait'
    task = asyncio.create_task(box.exec(["bash", "-c", script, code], timeout=120))
    pid = await line(box, "until [ -s pid ]; do sleep 0.01; done; cat pid; rm pid")
    task.cancel()
    await asyncio.wait([task])
    states = f"cat /proc/{pid}/task/*/stat 2>/dev/null | sed 's/.*) //' | cut -c 1 | tr -d 'ZX\n'"
    return await line(box, states)


@CHECKS.add()
async def one_timeout_leaves_other_commands_alone(box: Box) -> None:
    await sh(box, f"setsid sleep {_NAP}.8 >/dev/null 2>&1 &")
    script = f"(setsid sleep {_NAP}.9 &); until [ -e go ]; do sleep 0.05; done; echo done"
    slow = asyncio.create_task(box.exec(script, timeout=60))
    await _started(box, ".8", ".9")
    result = await box.exec("sleep 60", timeout=0.3)
    expect(result.timed_out, result)
    same((await _sleepers(box)).split(), [f"{_NAP}.8", f"{_NAP}.9"])
    await box.write("go", b"")
    same((await slow).stdout, b"done\n")


@CHECKS.add()
async def one_timeout_leaves_another_command_s_program_without_a_first_thread_alone(
    box: Box,
) -> None:
    """The guest finds out to which command a process belongs by the process's environment. The kernel does
    not let it read `environ` of a process whose first thread has ended, so it reads that of a thread that
    runs."""
    script = '(setsid python3 -c "$0" >/dev/null 2>&1 &); until [ -e go ]; do sleep 0.05; done'
    slow = asyncio.create_task(box.exec(["bash", "-c", script, WITHOUT_FIRST_THREAD], timeout=600))
    pid = await line(box, "until [ -s pid ]; do sleep 0.01; done; cat pid")
    ended = f"until grep -q ') Z' /proc/{pid}/stat; do sleep 0.01; done"
    await sh(box, ended)
    result = await box.exec("sleep 60", timeout=0.3)
    expect(result.timed_out, result)
    await sh(box, "rm -f beat; until [ -s beat ]; do sleep 0.01; done")
    await box.write("go", b"")
    expect((await slow).code == 0, await slow)


@CHECKS.add()
async def a_background_child_holds_nothing_up(box: Box) -> None:
    late = (
        "until [ -e go ]; do sleep 0.05; done; for i in 1 2 3 4; do echo $i; done; echo ok > late"
    )
    result = await sh(box, f"({late}) & echo begun")
    same(result.stdout, b"begun\n")
    await box.write("go", b"")
    same(await line(box, "until [ -s late ]; do sleep 0.05; done; cat late"), "ok")


@CHECKS.add(pids=256)
async def commands_run_at_once(box: Box) -> None:
    others = "set -- up-*; while [ $# -lt 32 ]; do sleep 0.1; set -- up-*; done"  # waits for all
    jobs = [box.exec(f"echo > up-{i}; {others}; echo {i}", timeout=60) for i in range(32)]
    results = await asyncio.gather(*jobs)
    same([result.text for result in results], [f"{i}\n" for i in range(32)])


@CHECKS.add(pids=256)
async def commands_at_once_have_each_their_own_folder_environment_and_input(box: Box) -> None:
    numbers = range(24)
    await sh(box, f"for i in $(seq 0 {numbers[-1]}); do mkdir -p at/$i; done")
    script = "pwd; env | grep ^OF_; cat"
    jobs = [
        box.exec(script, cwd=f"at/{i}", env={f"OF_{i}": f"{i} {i}"}, stdin=b"in %d" % i, timeout=60)
        for i in numbers
    ]
    astray = box.exec(script, cwd="at/nowhere", env={"OF_none": ""}, stdin=b"none", timeout=60)
    missing, *results = await asyncio.gather(astray, *jobs)
    for i, result in zip(numbers, results, strict=True):
        same(result.text, f"{box.workspace}/at/{i}\nOF_{i}={i} {i}\nin {i}")
        same(result.code, 0)
    expect(missing.code == 126 and b"No such file" in missing.stderr, missing)


@CHECKS.add()
async def long_commands(box: Box) -> None:
    text = "x" * 10_000_000
    same(await line(box, f"echo {text[:90_000]} | wc -c; cat"), "90001")
    result = await box.exec(f"printf %s {text} | wc -c; echo $0 >/dev/null", timeout=60)
    same(result.text.strip(), "10000000")
    refusal = await box.exec(["echo", text], timeout=60)
    expect(refusal.code == 126 and b"too long" in refusal.stderr, refusal)
    many = await box.exec(["bash", "-c", "echo $#", "-", *["a"] * 50_000], timeout=60)
    same(many.stdout, b"50000\n")


@CHECKS.add()
async def no_zombies_stay(box: Box) -> None:
    for _ in range(3):
        await sh(box, "for i in 1 2 3 4 5; do (setsid sleep 0.01 &) ; done; sleep 0.1")
    script = (
        "for p in /proc/[0-9]*; do cat $p/stat; done 2>/dev/null"
        " | awk -v guest=$PPID '$3 == \"Z\" && $4 == guest' | wc -l"
    )
    for _ in range(100):  # on a busy machine, some may not have ended yet
        zombies = await line(box, script)
        if zombies == "0":
            break
    same(zombies, "0")


@CHECKS.add()
async def closing_twice_is_harmless_and_use_afterwards_says_so(box: Box) -> None:
    running = asyncio.create_task(box.exec("sleep 60", timeout=60))
    await sh(box, "true")
    begun = time.monotonic()
    await asyncio.gather(box.close(), box.close())
    await box.close()
    for use in (running, box.exec("true", timeout=60), box.read("x"), box.write("x", b"")):
        await _died(use)
    expect(time.monotonic() - begun < 30, "whoever waited learnt it late")


@CHECKS.add(seconds=1.0)
async def the_time_to_live_ends_the_box(box: Box) -> None:
    begun = time.monotonic()
    await _died(box.exec("setsid sleep 60 & sleep 60", timeout=60), "time to live")
    expect(time.monotonic() - begun < 30, time.monotonic() - begun)
    await _died(box.exec("true", timeout=60))


async def _died(use: object, word: str = "") -> None:
    try:
        await use  # type: ignore[misc]
    except BoxDiedError as error:
        expect(word in str(error), str(error))
    else:
        expect(False, "a box that is gone was used, and nothing said so")


async def _started(box: Box, *ends: str) -> None:
    """Waits until the checks' `sleep` processes in the box are exactly the expected ones. For each text in
    `ends`, one process must sleep for the number of seconds that begins with `_NAP` and ends with this text.
    Raises `Unmet` after a minute."""
    give_up = time.monotonic() + 60
    while (await _sleepers(box)).split() != [f"{_NAP}{end}" for end in ends]:
        expect(time.monotonic() < give_up, f"no process sleeps {_NAP} s")
        await asyncio.sleep(0.02)


async def _sleepers(box: Box) -> str:
    """Returns which of the `sleep` processes of the checks still run in the box: their durations in seconds,
    as sorted lines without duplicates."""
    script = (
        "for p in /proc/[0-9]*; do [ $(cat $p/comm 2>/dev/null)x = sleepx ] && "
        f"tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null | grep -o '{_NAP}[.0-9]*' | sort -u"
    )
    return (await box.exec(script, timeout=60)).stdout.decode().strip()
