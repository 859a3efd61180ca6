"""Conformance checks (tests in a real box) of `Box.start`: output while a command runs, the command's input,
terminals, signals, and several handles."""

from __future__ import annotations

import asyncio
import secrets
import signal

from air.errors import BoxCommandError, BoxDiedError, ConfigError
from air.sandbox.conformance.check import Checks, Unmet, expect, line, same, sh
from air.sandbox.contract.box import Box
from air.sandbox.contract.running_command import WINDOW, RunningCommand

CHECKS = Checks()


@CHECKS.add()
async def output_comes_while_the_command_runs(box: Box) -> None:
    command = await box.start(
        "echo out; echo err >&2; until [ -e go ]; do sleep 0.02; done; exit 4"
    )
    output = command.output()
    first = sorted([await anext(output), await anext(output)])
    same(first, [("stderr", b"err\n"), ("stdout", b"out\n")])
    await box.write("go", b"")
    same([piece async for piece in output], [])
    result = await command.wait()
    same((result.code, result.signal, result.stdout, result.timed_out), (4, 0, b"", False))


@CHECKS.add()
async def standard_input_is_written_and_closed_while_the_command_runs(box: Box) -> None:
    command = await box.start("read x; echo got $x; cat | wc -c", stdin=True)
    output = command.output()
    await command.write(b"one\n")
    same(await anext(output), ("stdout", b"got one\n"))
    await command.write(b"x" * 300_000)
    await command.close_stdin()
    same((await anext(output))[1].strip(), b"300000")
    same((await command.wait()).code, 0)
    for use in (command.write(b"x"), command.close_stdin(), command.signal(15)):
        await _refused(use, "ended")
    closed = await box.start("exec <&-; touch closed; sleep 60", stdin=True)
    await sh(box, "until [ -e closed ]; do sleep 0.02; done")
    await _refused(closed.write(b"x"), "closed")
    idle = await box.start("sleep 60", stdin=True)
    await idle.close_stdin()
    await idle.close_stdin()
    await _refused(idle.write(b"x"), "closed")
    none = await box.start("cat; sleep 60")
    await _refused(none.write(b"x"), "no standard input")
    await _refused(none.close_stdin(), "no standard input")
    await _refused(none.resize(2, 3), "no terminal")


@CHECKS.add()
async def a_command_that_never_reads_holds_only_its_writer_up(box: Box) -> None:
    command = await box.start("sleep 60", stdin=True)
    writer = asyncio.create_task(command.write(b"x" * 1_000_000))
    same(await line(box, "echo on"), "on")
    expect(not writer.done(), "a megabyte was written to a command that reads nothing")
    writer.cancel()
    await asyncio.wait([writer])
    await command.signal(signal.SIGKILL)
    same((await command.wait()).signal, signal.SIGKILL)


@CHECKS.add()
async def a_terminal_is_one(box: Box) -> None:
    script = (
        "stty -echo; stty size; read x; echo got $x; stty size; cat; tty >tty; : >ready; sleep 60"
    )
    command = await box.start(script, terminal=(24, 80))
    output = _Reader(command)
    await output.until(b"24 80\r\n")
    await command.resize(50, 132)
    await command.write(b"word\n")
    await output.until(b"got word\r\n50 132\r\n")
    await _refused(command.close_stdin(), "terminal")
    await command.write(b"line\n\x04")
    await output.until(b"line\r\n")
    await sh(box, "until [ -e ready ]; do sleep 0.02; done; [ -s tty ]")
    await command.write(b"\x03")  # Ctrl-C
    result = await command.wait()
    same((result.code, result.signal), (130, signal.SIGINT))
    same({name for name, _ in output.pieces}, {"terminal"})
    for size in ((0, 80), (24, 70_000)):
        try:
            await box.start("true", terminal=size)
        except BoxCommandError:
            continue
        raise Unmet(f"a terminal of {size} was made")


@CHECKS.add()
async def a_signal_goes_to_the_process_group_and_kill_to_all(box: Box) -> None:
    script = "trap 'echo told; exit 5' USR1; echo up; while :; do sleep 0.05; done"
    command = await box.start(script)
    output = _Reader(command)
    await output.until(b"up\n")
    await command.signal(signal.SIGUSR1)
    await output.until(b"told\n")
    same((await command.wait()).code, 5)
    own = _own_seconds()
    command = await box.start(f"(setsid sleep {own} &) ; setsid sleep {own} & echo up; wait")
    await _Reader(command).until(b"up\n")
    await command.signal(signal.SIGKILL)
    same((await command.wait()).code, 137)
    same(await _sleepers(box, own), "0")


@CHECKS.add()
async def a_timeout_ends_a_started_command(box: Box) -> None:
    own = _own_seconds()
    for seconds in (0.5, 10.0, 50.0):  # the shell may come to its first line only after a timeout
        command = await box.start(f"echo early; setsid sleep {own} & wait", timeout=seconds)
        output = [piece async for piece in command.output()]
        result = await command.wait()
        same((result.code, result.timed_out), (137, True))
        same(await _sleepers(box, own), "0")
        if output:
            break
    same(output, [("stdout", b"early\n")])


def _own_seconds() -> str:
    """Returns, as text, a random number of seconds between 60 and 61. A check runs `sleep` with this number,
    and so recognises its own `sleep` processes: some boxes also see the processes of the host and of other
    boxes."""
    return f"60.{secrets.randbelow(10**9):09d}"


async def _sleepers(box: Box, seconds: str) -> str:
    """Returns, as text, how many processes in the box sleep for `seconds`, which is a value of
    `_own_seconds`. Does not count the search itself."""
    pattern = f"{seconds[:-1]}[{seconds[-1]}]"
    return await line(box, f"cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '{pattern}' || true")


@CHECKS.add()
async def a_command_is_listed_and_attached_to_by_its_pid(box: Box) -> None:
    script = "echo first; until [ -e go ]; do sleep 0.02; done; seq 3; [ -e end ]"
    command = await box.start(script, cwd="/tmp", env={"A": "b"})
    other = await box.start(["sleep", "60"], stdin=True)
    first = command.output()
    same(await anext(first), ("stdout", b"first\n"))
    listed = await box.commands()
    info, second = (i for i in listed if i.pid in (command.pid, other.pid))
    same((info.pid, info.command, info.env), (command.pid, script, {"A": "b"}))
    same((info.cwd, info.stdin, info.terminal), (box.path("/tmp"), False, False))
    same((second.pid, second.command, second.stdin), (other.pid, ["sleep", "60"], True))
    again = await box.attach(command.pid)
    await box.exec("touch go end", cwd="/tmp", timeout=60)
    for output in (first, again.output()):
        same(b"".join([data async for _, data in output]), b"1\n2\n3\n")
    same((await again.wait()).code, (await command.wait()).code)
    listed = await box.commands()
    expect(other.pid in [i.pid for i in listed], listed)
    expect(command.pid not in [i.pid for i in listed], listed)
    await _refused(box.attach(command.pid), "no running command")


@CHECKS.add()
async def a_dropped_handle_ends_nothing_and_holds_nothing_up(box: Box) -> None:
    for use in ("drop", "close", "wait"):
        command = await box.start(f"head -c {3 * WINDOW} /dev/zero; echo > done-{use}")
        if use == "close":
            output = command.output()
            await anext(output)
            await output.aclose()  # type: ignore[attr-defined]
        elif use == "wait":
            same((await command.wait()).code, 0)
        del command
        await sh(box, f"until [ -e done-{use} ]; do sleep 0.02; done")


@CHECKS.add()
async def a_slow_reader_holds_only_its_command_up(box: Box) -> None:
    flood = await box.start("yes; true")
    small = await box.start("head -c 3000000 /dev/zero; echo > whole")
    output = small.output()
    await anext(output)
    for _ in range(20):
        same(await line(box, "echo on; ls"), "on")  # the entry `whole` must not exist
    same(3_000_000 - len((await anext(output))[1]) > 0, True)
    await flood.signal(signal.SIGTERM)
    same((await flood.wait()).signal, signal.SIGTERM)
    size = sum([len(data) async for _, data in output])
    expect(size > 1_000_000, size)
    same((await small.wait()).code, 0)
    await sh(box, "test -e whole")


@CHECKS.add()
async def a_slow_reader_gets_what_an_ended_command_printed(box: Box) -> None:
    size = 2 * WINDOW
    command = await box.start(f"head -c {size} /dev/zero; echo > ended; setsid yes >&2 &")
    output, zeros = command.output(), 0
    while not (await box.exec("test -e ended", timeout=60)).ok:
        name, data = await anext(output)
        zeros += len(data) if name == "stdout" else 0
    await sh(box, "sleep 1.5")  # the rest waits in the pipe, though the command has ended
    zeros += sum([len(data) async for name, data in output if name == "stdout"])
    same(zeros, size)
    same((await command.wait()).code, 0)


@CHECKS.add()
async def a_program_that_cannot_run_ends_at_once(box: Box) -> None:
    command = await box.start(["no-such-program"])
    text = b"".join([data async for _, data in command.output()])
    result = await command.wait()
    same((result.code, result.began), (127, False))
    expect(b"no-such-program" in text, text)
    await _refused(box.start(["a"], cwd="/", env={"A": "x" * (1 << 26)}), "too large")
    expect(command.pid not in [info.pid for info in await box.commands()], "it is listed")


@CHECKS.add()
async def another_user_is_refused_in_a_closed_box(box: Box) -> None:
    try:
        await box.start("id", user="root")
    except ConfigError as error:
        expect("has one user" in str(error), str(error))
    else:
        raise Unmet("a command ran as another user")


@CHECKS.add()
async def closing_the_box_ends_every_wait(box: Box) -> None:
    command = await box.start("cat", stdin=True)
    tasks = [asyncio.create_task(use) for use in (command.wait(), _drained(command))]
    await asyncio.sleep(0)
    await box.close()
    for use in (*tasks, command.write(b"x"), box.start("true"), box.attach(command.pid)):
        try:
            await use
        except BoxDiedError:
            continue
        raise Unmet("a box that is gone was used, and nothing said so")


async def _drained(command: RunningCommand) -> None:
    async for _ in command.output():
        pass


async def _refused(use: object, word: str) -> None:
    try:
        await use  # type: ignore[misc]
    except BoxCommandError as error:
        expect(word in str(error), str(error))
    else:
        raise Unmet(f"nothing was refused ({word})")


class _Reader:
    """Reads a command's output piece by piece, until an expected text has come."""

    def __init__(self, command: RunningCommand) -> None:
        self.output = command.output()
        self.pieces: list[tuple[str, bytes]] = []

    async def until(self, text: bytes) -> None:
        """Reads further output until `text` has come. Raises `Unmet` if the output ends first."""
        while text not in b"".join(data for _, data in self.pieces):
            try:
                async with asyncio.timeout(60):
                    self.pieces.append(await anext(self.output))
            except (StopAsyncIteration, TimeoutError):
                raise Unmet(f"{text!r} is not in {self.pieces!r:.2000}") from None
