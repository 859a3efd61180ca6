"""What boxes of a pool hold of the host: places and GPUs. Real process boxes, declared GPUs."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from air.errors import ConfigError
from air.sandbox import open_box
from air.sandbox.contract.box import BoxSpec
from air.sandbox.pool import file_locks, host_slots
from air.sandbox.pool.box_pool import Pool
from air.sandbox.pool.gpu_leases import GpuPool
from air.sandbox.pool.gpus import INVENTORY_ENV, Gpu
from air.sandbox.process.box import ProcessBox
from tests.until import until

GPUS = [Gpu(0, "GPU-a"), Gpu(1, "GPU-b")]
PLAIN = BoxSpec(provider="process")
ONE, TWO = (PLAIN.model_copy(update={"gpus": count}) for count in (1, 2))
SHOW = "echo ${CUDA_VISIBLE_DEVICES-unset}"
HARNESS = """
import asyncio, os, sys
from air.sandbox.contract.box import BoxSpec
from air.sandbox.pool.gpu_leases import GpuPool
from air.sandbox.pool.gpus import plan
from air.sandbox.pool.box_pool import Pool

async def main():
    gpus = int(sys.argv[1])
    spec = BoxSpec(provider="process", gpus=gpus)
    async with Pool(2, gpus=GpuPool(plan("auto")) if gpus else None) as pool:
        boxes = [await pool.take(spec) for _ in range(int(sys.argv[2]))]
        print(*(box._process.pid for box in boxes), flush=True)
        sys.stdin.readline()

asyncio.run(main())
"""
CROWD = """
import asyncio, os, sys
from air.sandbox.contract.box import BoxSpec
from air.sandbox.pool.box_pool import Pool

here = sys.argv[1]

async def main():
    async with Pool(3, warm=1) as pool:
        async def one(number):
            async with pool.lease(BoxSpec(provider="process")) as box:
                mine = f"{here}/{os.getpid()}-{number}"
                open(mine, "w").close()
                assert len(os.listdir(here)) <= 2, os.listdir(here)
                await box.exec("sleep 0.1", timeout=60)
                os.unlink(mine)

        await asyncio.gather(*(one(number) for number in range(6)))

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks, an inventory and no engine of the test's own."""
    monkeypatch.setenv(file_locks.FOLDER_ENV, str(tmp_path / "locks"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv(INVENTORY_ENV, "0=GPU-a,1=GPU-b")
    for name in (host_slots.LIMIT_ENV, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def start(script: str, *args: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    argv = [sys.executable, "-c", script, *args]
    return subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def held(prefix: str) -> list[str]:
    return [name for name in file_locks.names(prefix) if file_locks.holder(name)]


def ends(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


async def test_a_box_sees_its_gpus_and_no_others() -> None:
    async with Pool(3, gpus=GpuPool(GPUS)) as pool:
        async with pool.lease(TWO) as box:
            assert box.gpus == ("GPU-a", "GPU-b")
            assert (await box.exec(SHOW, timeout=60)).text == "GPU-a,GPU-b\n"
            assert held("GPU-") == ["GPU-a.0", "GPU-b.0"]
        async with pool.lease(PLAIN) as box:
            assert box.gpus == ()
            assert (await box.exec(SHOW, timeout=60)).text == "\n"
        meddling = ONE.model_copy(update={"env": {"CUDA_VISIBLE_DEVICES": "0,1"}})
        async with pool.lease(meddling) as box:
            assert (await box.exec(SHOW, timeout=60)).text == f"{box.gpus[0]}\n"
    assert held("") == []


async def test_boxes_of_one_gpu_come_one_after_another() -> None:
    inside = 0
    async with Pool(4, gpus=GpuPool(GPUS[:1])) as pool:

        async def one() -> float:
            nonlocal inside
            async with pool.lease(ONE) as box:
                inside += 1
                assert inside == 1
                await box.exec("sleep 0.2", timeout=60)
                inside -= 1
            return box.queue_seconds

        waits = await asyncio.gather(*(one() for _ in range(3)))
    assert max(waits) > 0.4
    assert pool.stats.queue_seconds == pytest.approx(sum(waits))


async def test_gpus_are_given_back_only_when_the_box_is_gone() -> None:
    async with Pool(2, gpus=GpuPool(GPUS[:1])) as pool:
        box = await pool.take(ONE)
        assert isinstance(box, ProcessBox)
        assert box._process is not None
        pid = box._process.pid
        os.kill(pid, signal.SIGSTOP)  # so that it cannot end at once
        pool.give_back(box)
        waiting = asyncio.create_task(pool.take(ONE))
        for turn in range(100):
            assert not ends(pid)
            assert held("GPU-") == ["GPU-a.0"]
            assert held("box.") == ["box.0"]
            assert not waiting.done()
            if turn == 80:
                os.kill(pid, signal.SIGCONT)
                break
            await asyncio.sleep(0.01)
        async with asyncio.timeout(60):
            await waiting
        assert ends(pid)


async def test_a_guest_that_outlives_its_killed_harness_keeps_its_gpu() -> None:
    harness = start(HARNESS, "1", "1")
    guest = int(line(harness))
    os.kill(guest, signal.SIGSTOP)
    harness.send_signal(signal.SIGKILL)
    harness.wait()
    assert await GpuPool(GPUS[:1]).try_take(1) is None
    os.kill(guest, signal.SIGCONT)
    async with asyncio.timeout(60):
        (await GpuPool(GPUS[:1]).take(1)).release()
    harness.communicate()


async def test_commands_do_not_inherit_the_lock() -> None:
    async with Pool(1, gpus=GpuPool(GPUS[:1])) as pool, pool.lease(ONE) as box:
        shown = await box.exec("ls -l /proc/self/fd/ | grep -c GPU-a", timeout=60)
        assert shown.text == "0\n"


async def test_a_box_with_gpus_needs_a_pool_that_has_them() -> None:
    async with Pool(1) as pool:
        with pytest.raises(
            ConfigError, match="gpus: a box needs GPUs, and none are given to boxes"
        ):
            await pool.take(ONE)
        with pytest.raises(ConfigError, match="none are given"):
            pool.prepare(ONE)
    async with Pool(1, gpus=GpuPool(GPUS[:1])) as pool:
        with pytest.raises(ConfigError, match="needs 2 GPUs, and the run has 1: 0 = GPU-a"):
            await pool.take(TWO)
    with pytest.raises(ConfigError, match="a box needs 1 GPUs, but got 0"):
        await open_box(ONE)
    gpus = await GpuPool(GPUS).take(1)
    async with await open_box(ONE, gpus=gpus) as box:
        assert (await box.exec(SHOW, timeout=60)).text == "GPU-a\n"
    gpus.release()


async def test_spares_take_gpus_that_are_free_and_end_where_others_wait() -> None:
    async with Pool(4, warm=2, gpus=GpuPool(GPUS)) as pool:
        elsewhere = GpuPool(GPUS)
        lease = await elsewhere.take(1)
        pool.prepare(ONE)
        await until(lambda: pool.stats.started == 1)
        assert held("GPU-") == ["GPU-a.0", "GPU-b.0"]
        lease.release()
        await until(lambda: pool.stats.started == 2)
        async with asyncio.timeout(60):
            lease = await elsewhere.take(2)
        await until(lambda: pool.stats.live == 0)
        assert pool.stats.failed == 0
        lease.release()
        await until(lambda: pool.stats.started == 4)
        async with pool.lease(ONE):
            assert pool.stats.started == 4  # it was a spare


async def test_a_spare_gives_its_gpu_to_another_spec_of_the_pool() -> None:
    async with Pool(4, warm=1, gpus=GpuPool(GPUS[:1])) as pool:
        pool.prepare(ONE)
        await until(lambda: pool.stats.started == 1)
        other = ONE.model_copy(update={"env": {"OTHER": "1"}})
        async with asyncio.timeout(60), pool.lease(other) as box:
            assert (await box.exec("echo $OTHER", timeout=60)).text == "1\n"


async def test_a_box_that_nobody_waits_for_any_more_keeps_no_gpu() -> None:
    async with Pool(2, gpus=GpuPool(GPUS[:1])) as pool:
        first = await pool.take(ONE)
        waiting = asyncio.create_task(pool.take(ONE))
        await until(lambda: file_locks.wanted("gpu.waiting"))
        waiting.cancel()
        await asyncio.wait([waiting])
        pool.give_back(first)
        await until(lambda: pool.stats.live == 0)
        assert held("") == []


@pytest.mark.slow
def test_a_host_has_so_many_places_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(host_slots.LIMIT_ENV, "2")
    (tmp_path / "here").mkdir()
    both = [start(CROWD, str(tmp_path / "here")) for _ in range(2)]
    for process in both:
        process.communicate(timeout=240)
    assert [process.returncode for process in both] == [0, 0]
    assert file_locks.names("box.") == ["box.0", "box.1", "box.waiting"]
    assert held("box.") == []


async def test_a_killed_process_frees_its_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(host_slots.LIMIT_ENV, "2")
    harness = start(HARNESS, "0", "2")
    line(harness)
    async with Pool(2) as pool:
        lease = pool.lease(PLAIN)
        waiting = asyncio.create_task(lease.__aenter__())
        await until(lambda: file_locks.wanted("box.waiting"))
        for _ in range(50):
            await asyncio.sleep(0.01)
            assert held("box.") == ["box.0", "box.1"]
            assert not waiting.done()
        harness.send_signal(signal.SIGKILL)
        async with asyncio.timeout(60):
            box = await waiting
        assert (await box.exec("echo here", timeout=60)).text == "here\n"
        assert box.queue_seconds > 0.5
    harness.communicate()


async def test_spares_give_their_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(host_slots.LIMIT_ENV, "2")
    async with Pool(4, warm=2) as rich, Pool(2) as poor:
        rich.prepare(PLAIN)
        await until(lambda: rich.stats.started == 2)
        async with asyncio.timeout(60), poor.lease(PLAIN), poor.lease(PLAIN):
            await until(lambda: rich.stats.live == 0)
        await until(lambda: rich.stats.live == 2)
        assert rich.stats.failed == 0


async def test_nested_boxes_do_not_wait_for_those_that_wait_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(host_slots.LIMIT_ENV, "1")
    async with (
        asyncio.timeout(60),
        Pool(1) as agents,
        Pool(2, warm=1, nested=True) as graders,
        agents.lease(PLAIN),
        graders.lease(PLAIN),
    ):
        assert held("") == ["box.0", "nested.0"]


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5"])
def test_a_bad_limit(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(host_slots.LIMIT_ENV, text)
    with pytest.raises(ConfigError, match=f"^AIR_MAX_BOXES: '{text}' must be a positive integer"):
        Pool(1)


def test_the_default_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_slots.max_boxes() >= 128
    monkeypatch.setenv(host_slots.LIMIT_ENV, " 7 ")
    assert host_slots.max_boxes() == 7


async def test_a_folder_of_locks_that_was_asked_for_must_be_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(file_locks.FOLDER_ENV, "/proc/none/locks")
    async with Pool(1) as pool:
        with pytest.raises(ConfigError, match="AIR_LOCK_DIR: the folder of locks"):
            await pool.take(PLAIN)


WITHOUT = """
import asyncio, logging, os
from air.sandbox.contract.box import BoxSpec
from air.sandbox.pool.box_pool import Pool

async def main():
    async with Pool(2, warm=1) as pool:
        for _ in range(2):
            async with pool.lease(BoxSpec(provider="process")) as box:
                print((await box.exec("echo here", timeout=60)).text, end="")

logging.basicConfig()
asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take /run/lock away")
def test_without_the_default_folder_boxes_start_and_the_log_says_so() -> None:
    assert shutil.which("unshare")
    env = {name: value for name, value in os.environ.items() if name != file_locks.FOLDER_ENV}
    hidden = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro none /run/lock && exec "$@"', "sh"]
    if subprocess.run([*hidden, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounts are not allowed here")
    done = subprocess.run(
        [*hidden, sys.executable, "-c", WITHOUT],
        env=env, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout == "here\nhere\n"
    (said,) = (row for row in done.stderr.splitlines() if row.startswith("WARNING"))
    assert "AIR_LOCK_DIR: the folder of locks /run/lock/air cannot be used: Read-only" in said
    assert said.endswith("until then nothing limits the boxes of this host")


async def test_the_log_says_that_places_are_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(host_slots.LIMIT_ENV, "1")
    with caplog.at_level(logging.WARNING):
        async with Pool(2) as pool, pool.lease(PLAIN):
            waiting = asyncio.create_task(pool.take(PLAIN))
            await until(lambda: "waiting for" in caplog.text)
            waiting.cancel()
            await asyncio.wait([waiting])
    assert "waiting for one of the host's 1 slots for boxes (AIR_MAX_BOXES)" in caplog.text
