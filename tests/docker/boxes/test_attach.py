"""`air box exec` in a live container: beside the agent, and without a trace in the episode."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest

from air.sandbox import open_box
from air.sandbox.contract.box import Box, BoxSpec
from air.sandbox.contract.open_box import OpenBox
from air.sandbox.docker import container_spec, engine
from tests.fork_server import of_this_run
from tests.processes import running

pytestmark = pytest.mark.docker
PIPE = asyncio.subprocess.PIPE


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    async with await open_box(BoxSpec(), run="visited") as box:
        yield box


def _start(
    *args: str, stdin: int | None = None
) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    argv = of_this_run().program("air", "box", "exec", *args)
    return running(*argv, stdin=stdin, stdout=PIPE, stderr=PIPE)


async def _exec(*args: str, stdin: bytes | None = None) -> tuple[int | None, str, str]:
    async with _start(*args, stdin=None if stdin is None else PIPE) as process:
        out, err = await asyncio.wait_for(process.communicate(stdin), 120)
    return process.returncode, out.decode(), err.decode()


async def test_a_command_sees_what_the_agent_sees(box: Box) -> None:
    await box.write("mine", b"kept")
    script = "id -u; pwd; cat mine; cat /proc/self/oom_score_adj; echo $HOME $OMP_NUM_THREADS $LANG"
    script += "; ulimit -Hn; ulimit -Hc"
    agent = (await box.exec(script, timeout=60)).text
    code, out, err = await _exec(box.id, "--", "sh", "-c", f"{script}; echo err >&2; exit 7")
    assert (code, err) == (7, "err\n")
    assert out == agent == "1000\n/workspace\nkept1000\n/workspace 1 C.UTF-8\n4096\n0\n"


@pytest.mark.parametrize("user", ["0", "games"])
async def test_in_an_open_box_a_command_has_the_user_and_folder_of_the_agents_commands(
    user: str,
) -> None:
    spec = BoxSpec(open=OpenBox(user=user, workspace="/var/lib", keep=True))
    async with await open_box(spec, run="visited") as box:
        agent = (await box.exec("id -u; id -g; pwd", timeout=60)).text
        assert await _exec(box.id, "--", "sh", "-c", "id -u; id -g; pwd") == (0, agent, "")
        assert agent.endswith("/var/lib\n")


async def test_exit_codes_and_options_are_the_commands_own(box: Box) -> None:
    assert await _exec(box.id[4:11], "true") == (0, "", "")
    code, _, err = await _exec(box.id, "--", "no-such-program")
    assert (code, "not found" in err) == (127, True)
    assert await _exec(box.id, "--", "printf", "%s|", "--debug", "-i", "a b") == (
        0,
        "--debug|-i|a b|",
        "",
    )
    code, _, err = await _exec("nowhere", "--", "true")
    assert (code, "there is no live box `nowhere`" in err) == (2, True)


async def test_much_output_and_input_arrive_whole(box: Box) -> None:
    code, out, _ = await _exec(box.id, "--", "seq", "200000")
    assert (code, out) == (0, "".join(f"{i}\n" for i in range(1, 200_001)))
    code, out, _ = await _exec("-i", box.id, "--", "wc", "-c", stdin=b"x" * 1_000_000)
    assert (code, out) == (0, "1000000\n")
    assert await _exec(box.id, "--", "cat", stdin=b"never read") == (0, "", "")


async def test_output_comes_as_it_is_printed(box: Box) -> None:
    async with _start(
        box.id, "--", "sh", "-c", "echo now; while [ ! -e go ]; do :; done"
    ) as process:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 60) == b"now\n"
        await box.write("go", b"")
        assert await asyncio.wait_for(process.wait(), 60) == 0


async def _sleeps(box: Box) -> str:
    """How many of the box's processes sleep for 987 s."""
    script = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep 98[7]' || true"
    return (await box.exec(script, timeout=60)).text.strip()


async def test_an_interrupt_takes_the_command_with_it(box: Box) -> None:
    async with _start(box.id, "--", "sh", "-c", "echo up; setsid sleep 987 & sleep 987") as process:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 60) == b"up\n"
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 60) == 130
    for _ in range(600):
        if await _sleeps(box) == "0":
            break
        await asyncio.sleep(0.1)
    assert await _sleeps(box) == "0"


async def test_the_episode_goes_on_undisturbed(box: Box) -> None:
    """A timeout of the agent's does not end our command, nor does ours hold up the agent's."""
    async with _start(
        box.id, "--", "sh", "-c", "echo up; while [ ! -e go ]; do :; done"
    ) as process:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 60) == b"up\n"
        result = await box.exec("(setsid env -i sleep 60 &); sleep 60", timeout=0.5)
        assert result.timed_out
        assert (await box.exec("echo fine", timeout=60)).text == "fine\n"
        await box.write("go", b"")
        assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_a_box_that_ends_meanwhile_is_said(box: Box) -> None:
    async with _start(box.id, "--", "sh", "-c", "echo up; sleep 600") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert await asyncio.wait_for(process.stdout.readline(), 60) == b"up\n"
        await box.close()
        assert await asyncio.wait_for(process.wait(), 60) in (1, 137)


async def test_a_box_that_does_not_run_is_refused() -> None:
    name = "air-not-started"
    engine.client().create_container(**container_spec.container(BoxSpec(), name, "visited"))
    try:
        code, _, err = await _exec(name, "--", "true")
        assert (code, "does not run (created)" in err) == (2, True)
    finally:
        engine.remove(name)


async def test_a_shell_at_a_terminal(box: Box) -> None:
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "air.cli.main", "box", "exec", "-i", box.id, "--", "bash"]
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    async with running(*argv, **streams, start_new_session=True) as process:
        os.close(theirs)
        os.write(ours, b"test -t 0 && echo at-$((20+3)); exit 5\n")
        seen = b""
        while b"at-23" not in seen:
            seen += await asyncio.wait_for(asyncio.to_thread(os.read, ours, 4096), 60)
        drained = asyncio.create_task(asyncio.to_thread(_drain, ours))
        assert await asyncio.wait_for(process.wait(), 60) == 5
    await drained
    os.close(ours)


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except OSError:
        return  # the other end is closed
