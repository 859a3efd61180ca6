"""Defences that the contract does not name: of the guest and of the host's end, each by itself."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from air import sandbox
from air.errors import BoxDiedError, BoxFileError, BoxStartError
from air.sandbox import open_box
from air.sandbox.contract import ownership
from air.sandbox.contract.box import BoxSpec
from air.sandbox.guest import running_commands
from air.sandbox.guest.frames import frame
from air.sandbox.pool import box_pool
from air.sandbox.pool.box_pool import Pool
from air.sandbox.pool.gpu_leases import GpuLease
from air.sandbox.process import box as process
from air.sandbox.wire import file_transfer
from air.sandbox.wire.connection import Connection, interpreter, program
from air.sandbox.wire.file_transfer import Entry
from tests.processes import running
from tests.until import until

SPEC = BoxSpec(provider="process")


def _below(root: Path) -> list[int]:
    """Processes whose working directory lies in `root`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            where = str((entry / "cwd").readlink())
        except OSError:
            continue
        if where.startswith(str(root)):
            found.append(int(entry.name))
    return found


async def _none_below(root: Path) -> None:
    await until(lambda: not _below(root))


# The guest.


async def test_nothing_begins_in_a_frozen_box() -> None:
    async with await open_box(SPEC) as box:
        assert isinstance(box, process.ProcessBox)
        await box._guest.request({"op": "freeze"})
        with pytest.raises(BoxDiedError, match="is frozen"):
            await box.exec("true", timeout=60)


async def test_a_snapshot_that_fails_closes_its_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_PROCESS_BOX", "plain")
    async with await open_box(SPEC) as box:
        root = Path(box.workspace)
        root.rename(root.parent / "moved")  # noqa: ASYNC240
        with pytest.raises(BoxDiedError, match="could not be copied"):
            await box.snapshot()
        with pytest.raises(BoxDiedError, match="closed"):
            await box.exec("true", timeout=60)
    assert not root.parent.exists()


async def test_a_freeze_ends_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_PROCESS_BOX", "plain")  # whose folder a listing shows
    async with await open_box(SPEC) as box:
        assert isinstance(box, process.ProcessBox)
        await box.exec("(setsid sleep 600 > /dev/null 2>&1 &); sleep 600 > /dev/null &", timeout=60)
        root = Path(box.workspace)
        assert len(_below(root)) >= 2
        await box._guest.request({"op": "freeze"})
        assert not _below(root)


async def test_signals_that_can_be_caught_do_not_end_the_guest() -> None:
    async with await open_box(SPEC) as box:
        for name in ("HUP", "INT", "QUIT", "USR1", "USR2", "PIPE", "ALRM", "TSTP", "TTIN", "XCPU"):
            await box.exec(f"kill -{name} $PPID", timeout=60)
        assert (await box.exec("echo alive", timeout=60)).text == "alive\n"


async def test_a_guest_is_in_a_session_of_its_own() -> None:
    async with await open_box(SPEC) as box:
        assert isinstance(box, process.ProcessBox)
        assert box._process is not None
        assert os.getsid(box._process.pid) == box._process.pid


async def test_a_command_dies_with_a_guest_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_PROCESS_BOX", "plain")  # whose folder a listing shows
    async with await open_box(SPEC) as box:
        assert isinstance(box, process.ProcessBox)
        assert box._process is not None
        running = asyncio.create_task(box.exec("touch up; exec sleep 600", timeout=600))
        await box.exec("until [ -e up ]; do sleep 0.02; done", timeout=60)
        root = Path(box.workspace)
        assert _below(root)
        box._process.kill()
        with pytest.raises(BoxDiedError):
            await running
        await _none_below(root)


FORKS = """
import asyncio, os, sys, time
from air.sandbox import open_box
from air.sandbox.contract.box import BoxSpec

async def main():
    box = await open_box(BoxSpec(provider="process"))
    print(box.workspace, flush=True)
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        time.sleep(600)  # it has the guest's pipes, which therefore never close
    await box.exec("sleep 600", timeout=600)

asyncio.run(main())
"""


async def test_a_child_that_keeps_the_pipes_does_not_keep_the_box(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIR_PROCESS_BOX", "plain")  # whose folder a listing shows
    argv = [sys.executable, "-W", "ignore", "-c", FORKS]
    async with running(*argv, stdout=asyncio.subprocess.PIPE) as harness:
        assert harness.stdout is not None
        workspace = (await asyncio.wait_for(harness.stdout.readline(), 60)).decode().strip()
        child = int(await asyncio.wait_for(harness.stdout.readline(), 60))
        harness.kill()
    try:
        await _none_below(Path(workspace).parent)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_guest_that_is_never_configured_ends() -> None:
    sent = program(arguments="patience=0.5")
    argv = interpreter(sys.executable, sent, source=True)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as guest:
        assert guest.stdin is not None
        guest.stdin.write(sent)
        guest.stdin.flush()
        try:
            assert guest.wait(300) == 0
        finally:
            guest.kill()


def test_output_that_is_cut_is_not_kept_in_memory() -> None:
    output = running_commands.Output(1000)
    for _ in range(200):
        output.add(b"x" * 10_000)
    assert len(output.head) + len(output.tail) <= 2000
    assert len(output.bytes()) < 1100


# The host's end of files.


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/x", "a//b", "./x", "a\0b", ".."])
def test_what_a_box_answers_names_no_place_elsewhere(tmp_path: Path, path: str) -> None:
    dest = tmp_path / "dest"
    with pytest.raises(BoxFileError, match="would leave"):
        file_transfer.lay([Entry("", True), Entry(path, False, data=b"1")], dest, "name")
    assert [p.name for p in tmp_path.iterdir()] == ["dest"]


def test_a_copy_is_not_written_through_a_link(tmp_path: Path) -> None:
    victim, dest = tmp_path / "victim", tmp_path / "dest"
    victim.write_text("kept")
    dest.mkdir()
    (dest / "x").symlink_to(victim)
    with pytest.raises(BoxFileError, match="symbolic links"):
        file_transfer.lay([Entry("x", False, data=b"1")], dest, "name")
    assert victim.read_text() == "kept"


def test_a_copy_keeps_no_mode_but_whether_it_may_be_executed(tmp_path: Path) -> None:
    file_transfer.lay(
        [Entry("x", False, 0o6777, b""), Entry("y", False, 0o666, b"")], tmp_path, "name"
    )
    modes = [(tmp_path / name).stat().st_mode & 0o7777 for name in ("x", "y")]
    assert modes == [0o755, 0o644]


# The host's end of the stream.


@asynccontextmanager
async def _stream() -> AsyncIterator[tuple[Connection, socket.socket]]:
    """A connection, and the other end of its stream."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    connection = Connection(reader, writer, stderr=None, name="b")
    with theirs:
        yield connection, theirs
    await connection.close()


def _piece(kind: int, data: bytes) -> bytes:
    return struct.pack(">BxxxI", kind, len(data)) + data


async def test_an_answer_that_nobody_asked_for_is_ignored() -> None:
    async with _stream() as (connection, guest):
        waiting = asyncio.create_task(connection.request({"op": "exec"}))
        await asyncio.sleep(0)
        for answer in ({"id": 99}, {"id": "1"}, {"id": None}, {}, {"op": "else"}, {"id": 1}):
            guest.sendall(_piece(1, frame(answer)))
        assert await asyncio.wait_for(waiting, 60) == ({"id": 1}, b"")


async def test_an_answer_without_bottom_ends_the_box_not_the_harness() -> None:
    async with _stream() as (connection, guest):
        waiting = asyncio.create_task(connection.request({"op": "exec"}))
        await asyncio.sleep(0)
        head = b"[" * 200_000
        sent = struct.pack(">II", len(head), 0) + head
        await asyncio.to_thread(guest.sendall, _piece(1, sent))
        with pytest.raises(BoxDiedError, match="its stream broke"):
            await asyncio.wait_for(waiting, 60)


async def test_of_a_guests_errors_only_the_end_is_kept() -> None:
    async with _stream() as (connection, guest):
        waiting = asyncio.create_task(connection.request({"op": "exec"}))
        await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.to_thread(guest.sendall, _piece(2, b"x" * 10_000))
        guest.sendall(_piece(2, b" the end"))
        guest.shutdown(socket.SHUT_WR)
        with pytest.raises(BoxDiedError, match=r"the end\)") as caught:
            await asyncio.wait_for(waiting, 60)
    assert len(str(caught.value)) < 5000


# The pool.


async def test_a_spare_that_has_waited_too_long_is_not_handed_out() -> None:
    async with Pool(2, warm=1) as boxes:
        boxes.prepare(SPEC)
        for _ in range(2000):
            if spares := [box for subpool in boxes._subpools.values() for box in subpool.ready]:
                break
            await asyncio.sleep(0.01)
        spares[0].born -= ownership.WARM_SECONDS
        async with boxes.lease(SPEC) as box:
            assert box is not spares[0]


class Counted(process.ProcessBox):
    """A process box that counts how many of it start at once."""

    now = most = 0

    @classmethod
    async def open(
        cls, spec: BoxSpec, *, run: str = "", gpus: GpuLease | None = None
    ) -> process.ProcessBox:
        """Starts slowly enough for every start that may to be there."""
        Counted.now += 1
        Counted.most = max(Counted.most, Counted.now)
        try:
            await asyncio.sleep(0.3)
            return await process.ProcessBox.open(spec, run=run, gpus=gpus)
        finally:
            Counted.now -= 1


async def test_only_a_few_boxes_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sandbox.PROVIDERS, "process", (__name__, "Counted"))
    async with Pool(10) as boxes:

        async def one() -> None:
            async with boxes.lease(SPEC):
                pass

        await asyncio.gather(*(one() for _ in range(10)))
    assert Counted.most == box_pool.STARTS_AT_ONCE


class Refused(process.ProcessBox):
    """A process box that never starts."""

    tries = 0

    @classmethod
    async def open(
        cls, spec: BoxSpec, *, run: str = "", gpus: GpuLease | None = None
    ) -> process.ProcessBox:
        """Fails for good."""
        Refused.tries += 1
        raise BoxStartError("for good")


async def test_a_start_that_fails_for_good_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sandbox.PROVIDERS, "process", (__name__, "Refused"))
    async with Pool(1) as boxes:
        with pytest.raises(BoxStartError, match="for good"):
            await boxes.take(SPEC)
    assert Refused.tries == 1


async def test_a_cancelled_close_still_removes_the_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_PROCESS_BOX", "plain")  # whose folder a listing shows
    for turns in range(1, 5):
        box = await open_box(SPEC)
        root = Path(box.workspace).parent
        closing = asyncio.create_task(box.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        assert not await asyncio.to_thread(root.exists)
        assert not _below(root)


async def test_a_pool_removes_what_dead_processes_left_when_it_opens() -> None:
    argv = [sys.executable, "-c", "import os; print(os.getpid())"]
    pid = int(await asyncio.to_thread(subprocess.check_output, argv))
    host, _, start = ownership.owner().rsplit(":", 2)
    namespace = host.rpartition("/")[2]
    folder = Path(tempfile.gettempdir(), f"{ownership.FOLDER_PREFIX}{namespace}-{pid}-{start}-89ab")
    await asyncio.to_thread(folder.mkdir)
    async with Pool(1):
        assert not await asyncio.to_thread(folder.exists)


ACTS = """
import json, os, sys
from air.sandbox.guest import users

def able():
    row = next(row for row in open("/proc/self/status") if row.startswith("CapEff"))
    try:
        os.close(os.open(sys.argv[1], os.O_RDONLY))
        return [int(row.split()[1], 16), True]
    except PermissionError:
        return [int(row.split()[1], 16), False]

users.become_guest(1000, users.ROOTS)
found = []
for switch in (users.open_files_of, users._act_as):
    for ident in (1000, 0, 1000):
        switch(ident, ident)
        found.append(able())
print(json.dumps(found))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_where_linux_has_no_ids_for_files_the_effective_ids_give_the_same_rights(
    tmp_path: Path,
) -> None:
    """gVisor has no ids for files. There, both ways must give a process the same capabilities and the same
    access to files."""
    hidden = tmp_path / "hidden"
    hidden.touch(0o600)
    done = subprocess.run(
        [sys.executable, "-c", ACTS, str(hidden)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found[:3] == found[3:]
    assert [opened for _, opened in found[:3]] == [False, True, False]
