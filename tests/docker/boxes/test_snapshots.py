"""Snapshots of containers: the keeper's life, and what is left when something of it breaks off."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from air.cli.main import main
from air.errors import BoxDiedError, ConfigError, MissingError
from air.sandbox import open_box
from air.sandbox.contract.box import Box, BoxLimits, BoxSpec
from air.sandbox.docker import engine, snapshot_service
from air.sandbox.docker.box import DockerBox
from air.sandbox.ops import listing
from air.sandbox.pool.box_pool import Pool
from tests.docker.client import boxes_of
from tests.processes import running
from tests.unit.sandbox.process.full_disk import played_on_a_full_disk
from tests.until import until

pytestmark = pytest.mark.docker
SPEC = BoxSpec(limits=BoxLimits(disk_mb=16))


def _keepers(run: str) -> list[str]:
    return [c["Id"] for c in boxes_of(run) if c["Names"][0].startswith("/air-keeper")]


async def _open(run: str) -> DockerBox:
    box = await open_box(SPEC, run=run)
    assert isinstance(box, DockerBox)
    return box


async def test_a_pool_lends_forks_and_the_keeper_ends_with_the_last_of_them() -> None:
    async with Pool(4, warm=1, run="forks") as pool:
        async with pool.lease(SPEC) as box:
            await box.write("a", b"0")
            snapshot = await box.snapshot()
        async with snapshot:

            async def fork(index: int) -> bytes:
                async with pool.lease(SPEC, snapshot=snapshot) as box:
                    await box.exec(f"echo -n {index} >> a", timeout=60)
                    return await box.read("a")

            assert await asyncio.gather(*map(fork, range(6))) == [b"0%d" % i for i in range(6)]
            assert _keepers("forks")
    assert not boxes_of("forks")
    assert pool.stats.live == 0


async def test_a_pool_has_the_keeper_ready_where_it_is_asked_to() -> None:
    async with Pool(2, run="ready", snapshots=True) as pool:
        kept = _keepers("ready")
        assert len(kept) == 1
        async with pool.lease(SPEC) as box, await box.snapshot():
            assert _keepers("ready") == kept
        assert _keepers("ready") == kept
    assert not boxes_of("ready")


async def test_a_keeper_is_listed_apart_from_boxes(capsys: pytest.CaptureFixture[str]) -> None:
    async with Pool(2, run="apart", snapshots=True) as pool, pool.lease(SPEC) as box:
        found = (listing.containers(), listing.helpers())
        boxes, helpers = ([one for one in ones if one.run == "apart"] for ones in found)
        assert [one.name for one in boxes] == [box.id]
        (helper,) = helpers
        with pytest.raises(MissingError, match="there is no live box"):
            listing.find(helper.name)
        assert await asyncio.to_thread(main, ["box", "ls"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if helper.name in line] == [
            f"helper container {helper.name}, not a box: pid {os.getpid()}"
        ]
        assert len([line for line in lines if line.startswith(box.id)]) == 1


async def test_a_keeper_that_dies_loses_its_snapshots_and_nothing_else() -> None:
    async with await open_box(SPEC, run="lost") as box:
        await box.write("a", b"1")
        snapshot = await box.snapshot()
    async with await open_box(SPEC, run="lost") as fork, await open_box(SPEC, run="lost") as late:
        await fork.restore(snapshot)
        name = next(c["Names"][0] for c in boxes_of("lost") if "keeper" in c["Names"][0])
        await asyncio.to_thread(engine.remove, name.lstrip("/"))
        assert await fork.read("a") == b"1"
        with pytest.raises(BoxDiedError):
            await late.restore(snapshot)
        await snapshot.close()
        async with await fork.snapshot() as again, await open_box(SPEC, run="lost") as child:
            await child.restore(again)  # by a new keeper
            assert await child.read("a") == b"1"
    assert not boxes_of("lost")


async def test_a_snapshot_that_cannot_be_dropped_releases_its_keeper() -> None:
    async with await open_box(SPEC, run="undropped") as box:
        snapshot = await box.snapshot()
        (keeper,) = _keepers("undropped")
        command = [
            "python3",
            "-c",
            "import ctypes; assert not ctypes.CDLL(None).umount2(b'/k/1', 2)",
        ]
        unmount = engine.client().exec_create(keeper, command)["Id"]
        assert engine.client().exec_start(unmount) == b""
        with pytest.raises(BoxDiedError, match="unmounting"):
            await snapshot.close()
    assert not boxes_of("undropped")


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.01, 0.1, 0.3])
async def test_a_cancelled_snapshot_leaves_nothing(delay: float) -> None:
    async with await open_box(SPEC, run=f"cut-{os.getpid()}") as box:
        task = asyncio.create_task(box.snapshot())
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await task.result().close()
    assert not boxes_of(f"cut-{os.getpid()}")


async def test_a_keeper_enters_no_process_but_the_boxs_own() -> None:
    """The number of a box's process may belong to another box's, or to the host's, by now."""
    async with await _open("enters") as box, await _open("enters") as other:
        await other.write("a", b"1")
        own, foreign = await box._location(), await other._location()
        keeper = await snapshot_service.hold("enters")
        try:
            snapshot = await keeper.hold_again().take(own)
            others = [(foreign.pid, "not of the box's container"), ((1 << 22) + 1, "No such file")]
            others += [(await keeper._attached.pid(), others[0][1])]
            others += [(1, f"{others[0][1]}|Permission denied")]
            for pid, why in others:
                wrong = own._replace(id="air-wrong", pid=pid)
                with pytest.raises(BoxDiedError, match=why):
                    await keeper.take(wrong)
                with pytest.raises(BoxDiedError, match=why):
                    await keeper.fork(wrong, snapshot, disk_mb=8)
            await keeper.fork(own, snapshot, disk_mb=8)
            await keeper.drop(own.id)
            await snapshot.close()
            assert await other.read("a") == b"1"
            assert (await other.exec("ls -A", timeout=60)).text == "a\n"
            assert len(await _mounts(keeper)) == 1
        finally:
            await keeper.release()
    assert not boxes_of("enters")


async def test_a_snapshot_that_fails_closes_its_box() -> None:
    async with await _open("fails") as box, await _open("fails") as other:
        box._attached._pid = await other._attached.pid()  # as if the number had been given anew
        with pytest.raises(BoxDiedError, match="a snapshot failed"):
            await box.snapshot()
        for use in (box.exec("true", timeout=60), box.read("a"), box.snapshot()):
            with pytest.raises(BoxDiedError, match=box.id):
                await use
        await box.close()
        assert [c["Names"][0] for c in boxes_of("fails")] == [f"/{other.id}"]
        assert (await other.exec("echo alive", timeout=60)).text == "alive\n"
    assert not boxes_of("fails")


async def test_a_command_in_a_frozen_box_is_a_dead_box() -> None:
    async with await _open("frozen") as box:
        await box._guest.request({"op": "freeze"})
        with pytest.raises(BoxDiedError, match="is frozen"):
            await box.exec("true", timeout=60)


async def test_what_a_keeper_mounts_is_given_back() -> None:
    async with await open_box(SPEC, run="mounts") as box:
        await box.write("a", b"1")
        snapshot = await box.snapshot()
    kept = await snapshot_service.hold("mounts")
    try:
        for _ in range(3):
            async with await open_box(SPEC, run="mounts") as fork:
                await fork.restore(snapshot)
                older, snapshot = snapshot, await fork.snapshot()
            await older.close()
        assert len(await _mounts(kept)) == 1 + 4
        await snapshot.close()
        assert len(await _mounts(kept)) == 1
    finally:
        await kept.release()
    assert not boxes_of("mounts")


async def test_a_snapshot_that_is_closed_twice_takes_nothing_from_another() -> None:
    async with await open_box(SPEC, run="twice") as box, await open_box(SPEC, run="twice") as other:
        await other.write("a", b"1")
        snapshot, kept = await box.snapshot(), await other.snapshot()
    await snapshot.close()
    await snapshot.close()
    async with kept, await open_box(SPEC, run="twice") as fork:
        await fork.restore(kept)
        assert await fork.read("a") == b"1"
    assert not boxes_of("twice")


async def test_a_fork_takes_as_many_files_as_a_box_and_no_setuid_program() -> None:
    async with await open_box(SPEC, run="options") as box:
        fresh = await _workspace(box)
        snapshot = await box.snapshot()
    async with snapshot, await open_box(SPEC, run="options") as fork:
        await fork.restore(snapshot)
        forked = await _workspace(fork)
    for files, options in (fresh, forked):
        assert {"nosuid", "nodev"} <= options
        assert files == fresh[0]


async def _workspace(box: Box) -> tuple[int, set[str]]:
    """How many files the workspace may hold, and how it is mounted."""
    script = "stat -f -c %c .; awk '$2 == \"/workspace\" {print $4}' /proc/mounts | tail -n 1"
    files, options = (await box.exec(script, timeout=60)).text.split()
    return int(files), set(options.split(","))


async def _mounts(kept: snapshot_service.SnapshotHelper) -> list[str]:
    """What is mounted in the keeper's own folder, that folder included."""
    pid = await kept._attached.pid()
    with open(f"/proc/{pid}/mounts") as table:  # noqa: ASYNC230, PTH123
        return [line.split()[1] for line in table if line.split()[1].startswith("/k")]


HARNESS = """
import asyncio, sys
from air.sandbox import open_box
from air.sandbox.contract.box import BoxSpec

async def main():
    box = await open_box(BoxSpec(), run=sys.argv[1])
    await box.snapshot()
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_sigkill_of_the_harness_ends_the_keeper() -> None:
    argv = [sys.executable, "-c", HARNESS, "killed-keeper"]
    async with running(*argv, stdout=asyncio.subprocess.PIPE) as harness:
        assert harness.stdout is not None
        assert await asyncio.wait_for(harness.stdout.readline(), 60) == b"ready\n"
        assert boxes_of("killed-keeper")
        harness.send_signal(signal.SIGKILL)
    await until(lambda: not boxes_of("killed-keeper"), every=0.1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_during_a_copy_is_a_failure_of_the_machine(tmp_path: Path) -> None:
    error, files = played_on_a_full_disk("docker", "copy", tmp_path)
    assert error.startswith(
        f"InfrastructureError: a copy of a workspace cannot be stored in {tmp_path}"
    )
    assert error.endswith("No space left on device")
    assert files == "big"


async def test_a_container_does_not_start_from_another_kind_of_box() -> None:
    process = SPEC.model_copy(update={"provider": "process"})
    async with (
        await open_box(process) as box,
        await box.snapshot() as snapshot,
        await open_box(SPEC) as other,
    ):
        with pytest.raises(ConfigError):
            await other.restore(snapshot)


async def test_a_pool_that_is_cancelled_while_it_opens_keeps_nothing() -> None:
    keeper = await snapshot_service.hold("cancelled")
    opening = asyncio.create_task(Pool(1, run="cancelled", snapshots=True).__aenter__())
    await asyncio.sleep(0)  # it holds the keeper, and looks for what earlier runs left
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await keeper.release()
    assert not keeper.alive
