"""`air box` where boxes are processes: what is listed, what was run, and what cannot be entered."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from air.cli.episodes import shell_attach
from air.cli.episodes.shell_output import Screen
from air.cli.main import main
from air.env import recording
from air.env.config import ResearchEnvConfig
from air.errors import MissingError
from air.sandbox import open_box
from air.sandbox.contract import ownership
from air.sandbox.contract.box import BoxSpec
from air.sandbox.ops import command_log
from air.sandbox.ops.command_log import CommandLog
from air.train.loop import run_folder
from tests.fork_server import of_this_run
from tests.processes import running

SPEC = BoxSpec(provider="process")
HOLDER = """
import asyncio, sys
from air.sandbox import open_box
from air.sandbox.contract.box import BoxSpec

async def main():
    async with await open_box(BoxSpec(provider="process"), run="held") as box:
        await box.exec("echo begun", timeout=60)
        print(box.id, box.workspace, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await box.exec("echo later", timeout=60)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, and no engine."""
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")


async def _box(*args: str) -> tuple[int, str, str]:
    """`air box ARGS` as a process: exit code, standard output, standard error."""
    argv = of_this_run().program("air", "box", *args)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=pipe)
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_process_boxes_are_listed_and_without_an_engine_nothing_else() -> None:
    async with await open_box(SPEC, run="listed") as box:
        code, out, err = await _box("ls")
        (row,) = [line.split() for line in out.splitlines() if line.startswith(box.id)]
        assert row[:6] == [box.id, "process", "running", "listed", "–", "–"]
        assert 120 < int(row[6]) <= 180  # minutes, of which the slow start of `air` takes some
        assert row[7:] == ["min", "pid", f"{os.getpid()}"]
    assert code == 0
    assert err.startswith("containers cannot be listed: DOCKER_HOST=")
    assert "no Docker engine answers" in err
    code, out, _ = await _box("ls")
    assert (code, box.id in out) == (0, False)


async def test_a_box_is_listed_with_the_run_task_and_step_of_its_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ResearchEnvConfig(record_dir=tmp_path / "mine" / "trajectories")
    recording.TRAINING_STEP.set(7)
    async with await open_box(SPEC) as box:
        box.note_use(**recording.use(config, "titanic", "e1"))
        assert await asyncio.to_thread(main, ["box", "ls"]) == 0
        (row,) = [row for row in capsys.readouterr().out.splitlines() if row.startswith(box.id)]
        assert row.split()[1:6] == ["process", "running", "mine", "titanic", "7"]
        assert await asyncio.to_thread(main, ["box", "logs", box.id]) == 0
        assert "used for: task titanic, step 7, run mine" in capsys.readouterr().out


async def test_attaching_to_a_run_takes_its_next_episode(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    config = ResearchEnvConfig(record_dir=folder / "trajectories")
    screen = Screen(as_json=False)
    (folder / "trajectories").mkdir(parents=True)
    with pytest.raises(MissingError, match="does not go on"):
        shell_attach.find(str(folder), screen)
    async with await open_box(SPEC) as old:
        old.note_use(**recording.use(config, "titanic", "e1"))
        for name in ("mine", str(folder)):
            waiting = asyncio.create_task(asyncio.to_thread(shell_attach.find, name, screen))
            await asyncio.sleep(0.5)  # were it to take the present episode, it would have it by now
            assert not waiting.done()
            async with await open_box(SPEC) as new:
                new.note_use(**recording.use(config, "titanic", f"after {name}"))
                assert (await asyncio.wait_for(waiting, 60)).name == new.id
    with run_folder.locked(folder):  # the run goes on, and at first has no box
        waiting = asyncio.create_task(asyncio.to_thread(shell_attach.find, str(folder), screen))
        async with await open_box(SPEC) as box:
            box.note_use(**recording.use(config, "titanic", "e9"))
            assert (await asyncio.wait_for(waiting, 60)).name == box.id


async def test_a_process_box_is_a_folder_and_its_path_is_told() -> None:
    async with await open_box(SPEC) as box:
        for name in (box.id, box.id[4:], box.id[:9]):
            code, out, err = await _box("exec", name, "--", "ls")
            assert (code, out) == (2, "")
            assert f"box {box.id} is a process box: a folder" in err
            assert err.rstrip().endswith(f"cd {box.host_workspace}/")


async def test_what_cannot_be_found_is_said() -> None:
    async with await open_box(SPEC), await open_box(SPEC):
        code, _, err = await _box("exec", "air-", "--", "ls")
        assert code == 2
        assert "boxes begin with" in err
    code, _, err = await _box("exec", "air-0", "--")
    assert (code, "error: no command" in err) == (2, True)
    code, _, err = await _box("exec", "nowhere", "--", "ls")
    assert (code, "no Docker engine answers" in err) == (2, True)
    code, _, err = await _box("logs", "nowhere")
    assert (code, "no box `nowhere` has a command log" in err) == (2, True)
    for name in ("air-z1", "air-z2"):
        record = CommandLog(name)
        record.start(SPEC, run="", owner=ownership.owner(), workspace="/w")
        record.end("closed")
    code, _, err = await _box("logs", "z")  # no box has such a name of itself
    assert (code, "the names of 2 boxes begin with" in err) == (2, True)


async def test_logs_of_a_live_box_and_of_one_that_is_gone() -> None:
    async with await open_box(SPEC, run="told") as box:
        await box.exec("echo one", timeout=60)
        await box.exec("exit 3", timeout=60)
        code, live, _ = await _box("logs", box.id)
        assert code == 0
    code, ended, _ = await _box("logs", box.id[:10])
    assert code == 0
    told = [line.partition("  ")[2] for line in ended.splitlines()]
    assert told[0].startswith(
        f"{box.id}: process {box.host_workspace}/, run told, pid {os.getpid()}"
    )
    assert "memory_mb=1024" in told[0]
    assert told[1] == "#1 $ echo one"
    assert told[2].startswith("#1 exit 0 in 0.0")
    assert told[2].endswith(" s, 4 + 0 bytes")
    assert told[3:4] == ["#2 $ exit 3"]
    assert told[4].startswith("#2 exit 3 in ")
    assert told[5:] == ["end: closed; 2 commands"]
    assert live.splitlines() == ended.splitlines()[:-1]


@asynccontextmanager
async def _held() -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A process that holds a box, and the box's name."""
    pipe = asyncio.subprocess.PIPE
    async with running(sys.executable, "-c", HOLDER, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        name, _ = (await asyncio.wait_for(holder.stdout.readline(), 60)).decode().split()
        yield holder, name


async def test_following_a_box_to_its_end() -> None:
    argv = of_this_run().program("air", "box", "logs", "-f")
    async with (
        _held() as (holder, name),
        running(*argv, name, stdout=asyncio.subprocess.PIPE) as follower,
    ):
        assert follower.stdout is not None
        assert holder.stdin is not None
        for word in (name.encode(), b"#1 $ echo begun", b"#1 exit 0"):
            assert word in await asyncio.wait_for(follower.stdout.readline(), 60)
        holder.stdin.close()
        rest = await asyncio.wait_for(follower.stdout.read(), 60)
        assert b"#2 $ echo later" in rest
        assert b"end: closed; 2 commands" in rest
        assert await follower.wait() == await holder.wait() == 0


async def test_a_box_whose_process_was_killed_has_no_end() -> None:
    async with _held() as (holder, name):
        holder.send_signal(signal.SIGKILL)
    code, out, _ = await _box("logs", "-f", name)
    assert code == 0
    assert out.splitlines()[-1] == "the log has no end: the box's owner was killed"


def test_a_terminal_obeys_nothing_that_an_agent_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    record = CommandLog("air-sly")
    record.start(SPEC, run="", owner=ownership.owner(), workspace="/w")
    record.run("echo \x1b[2J\x07\udcff\ncat ü")
    assert main(["box", "logs", "sly"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[1].endswith("#1 $ echo \\x1b[2J\\x07\\udcff")
    assert told[2].strip() == "cat ü"
    record.end("closed")
    assert command_log.find("sly")
