"""Leases of declared GPUs: real processes, real locks, no engine."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from air.errors import ConfigError, MissingError
from air.sandbox.contract import ownership
from air.sandbox.pool import file_locks, gpu_leases
from air.sandbox.pool.gpu_leases import GpuLease, GpuPool, holders
from air.sandbox.pool.gpus import INVENTORY_ENV, Gpu, plan
from tests.until import until

GPUS = [Gpu(0, "GPU-a"), Gpu(1, "GPU-b"), Gpu(2, "GPU-c")]
WORKER = """
import asyncio, os, sys
from air.sandbox.pool.gpu_leases import GpuPool
from air.sandbox.pool.gpus import plan

inside, count, slots, rounds = sys.argv[1], *map(int, sys.argv[2:5])

async def main():
    pool = GpuPool(plan("auto"), slots_per_gpu=slots)
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(rounds):
        lease = await pool.take(count)
        assert len(set(lease.uuids)) == count
        for place in lease.label.split(","):  # fails where somebody else is on it
            os.close(os.open(f"{inside}/{place}", os.O_CREAT | os.O_EXCL))
        await asyncio.sleep(0)
        for place in lease.label.split(","):
            os.unlink(f"{inside}/{place}")
        lease.release()

asyncio.run(main())
"""
HOLDER = """
import asyncio, sys
from air.sandbox.pool.gpu_leases import GpuPool
from air.sandbox.pool.gpus import plan

async def main():
    lease = await GpuPool(plan("auto"), run="other").take(int(sys.argv[1]))
    print(lease.label, flush=True)
    sys.stdin.readline()
    lease.release()

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks, an inventory and no engine of the test's own."""
    monkeypatch.setenv(file_locks.FOLDER_ENV, str(tmp_path / "locks"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv(INVENTORY_ENV, ",".join(f"{gpu.index}={gpu.uuid}" for gpu in GPUS))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def start(script: str, *args: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    argv = [sys.executable, "-c", script, *args]
    return subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def all_end_well(processes: list[subprocess.Popen[str]]) -> None:
    assert [line(process) for process in processes] == ["ready"] * len(processes)
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=240)
    assert [process.returncode for process in processes] == [0] * len(processes)


def test_two_processes_never_have_one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INVENTORY_ENV, "0=GPU-a")
    all_end_well([start(WORKER, str(tmp_path), "1", "1", "60") for _ in range(2)])


def test_two_of_three_for_each_of_two_processes_is_no_deadlock(tmp_path: Path) -> None:
    all_end_well([start(WORKER, str(tmp_path), "2", "1", "40") for _ in range(2)])


@pytest.mark.slow
def test_sharers_and_those_who_want_it_alone(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv(INVENTORY_ENV, "0=GPU-a")
    ways = [("1", "2", "30"), ("1", "3", "30"), ("1", "1", "30")]
    all_end_well([start(WORKER, str(tmp_path), *way) for way in ways])


async def test_a_killed_holder_frees_it() -> None:
    other = start(HOLDER, "3")
    assert line(other) == "GPU-a.0,GPU-b.0,GPU-c.0"
    pool = GpuPool(GPUS)
    assert await pool.try_take(1) is None
    waiting = asyncio.create_task(pool.take(2))
    await until(lambda: file_locks.wanted(gpu_leases.WAITING))
    assert not waiting.done()
    other.send_signal(signal.SIGKILL)
    async with asyncio.timeout(60):
        lease = await waiting
    assert lease.uuids == ("GPU-a", "GPU-b")
    assert not file_locks.wanted(gpu_leases.WAITING)
    lease.release()
    other.communicate()


async def test_slots() -> None:
    shared = GpuPool(GPUS[:2], slots_per_gpu=2)
    taken = [await shared.take(1) for _ in range(3)]
    assert [lease.label for lease in taken] == ["GPU-a.1", "GPU-b.1", "GPU-a.2"]
    alone = GpuPool(GPUS[:2])
    assert await alone.try_take(1) is None
    assert await shared.try_take(2) is None  # two GPUs, not two places on one
    last = await shared.try_take(1)
    assert last is not None
    assert last.label == "GPU-b.2"
    assert await shared.try_take(1) is None
    for lease in (taken[0], taken[2]):
        lease.release()
    whole = await alone.try_take(1)
    assert whole is not None
    assert whole.label == "GPU-a.0"
    assert await shared.try_take(1) is None
    taken[1].release()
    assert await alone.try_take(1) is None  # `last` is there still
    again = await shared.try_take(1)
    assert again is not None
    assert again.label == "GPU-b.1"


async def test_while_it_waits_only_one_keeps_a_part() -> None:
    """Else two who wait for two GPUs each would wait for one another for ever."""
    one, two = GpuPool(GPUS[:2], run="one"), GpuPool(GPUS[:2], run="two")
    held = await GpuPool(GPUS[:1]).take(1)
    first = asyncio.create_task(one.take(2))
    await until(lambda: file_locks.holder("GPU-b.0"))
    second = asyncio.create_task(two.take(2))
    for _ in range(30):
        holder = file_locks.holder("GPU-b.0")
        assert holder is not None
        assert holder.run == "one"
        await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.wait([first])
    held.release()
    async with asyncio.timeout(60):
        (await second).release()
    assert all(file_locks.holder(f"{gpu.uuid}.0") is None for gpu in GPUS)


async def test_all_or_none() -> None:
    turn = file_locks.acquire("gpu.turn")  # as if another process had it
    held = await GpuPool(GPUS[:1]).take(1)
    waiting = asyncio.create_task(GpuPool(GPUS[:2]).take(2))
    await until(lambda: file_locks.wanted(gpu_leases.WAITING))
    for _ in range(50):
        assert file_locks.holder("GPU-b.0") is None
        await asyncio.sleep(0.01)
    held.release()
    async with asyncio.timeout(60):
        lease = await waiting
    assert lease.uuids == ("GPU-a", "GPU-b")
    assert turn is not None


async def test_who_wants_two_is_not_passed_by_for_ever() -> None:
    """Two others hold a GPU each, and never leave both free at once."""
    ends = asyncio.Event()

    async def change_places(pool: GpuPool) -> None:
        lease = await pool.take(1)
        while not ends.is_set():
            await asyncio.sleep(0.2)
            lease.release()
            lease = await pool.take(1)
        lease.release()

    others = [asyncio.create_task(change_places(GpuPool(GPUS[:2]))) for _ in range(2)]
    await until(lambda: file_locks.holder("GPU-a.0") and file_locks.holder("GPU-b.0"))
    try:
        async with asyncio.timeout(120):
            (await GpuPool(GPUS[:2]).take(2)).release()
    finally:
        ends.set()
        await asyncio.gather(*others)


async def test_first_come_first_served_within_a_process() -> None:
    pool, order = GpuPool(GPUS[:2]), []
    turn = file_locks.acquire("gpu.turn")  # so that nothing is kept for who wants two
    held = await pool.take(1)

    async def one(count: int) -> None:
        lease = await pool.take(count)
        order.append(count)
        lease.release()

    tasks = []
    for count in (2, 1, 2):
        tasks.append(asyncio.create_task(one(count)))
        await asyncio.sleep(0)
    await until(lambda: file_locks.wanted(gpu_leases.WAITING))
    assert await pool.try_take(1) is None  # one is free, but others came first
    held.release()
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks)
    assert order == [2, 1, 2]
    assert turn is not None


async def test_cancelled_waiters_and_errors_hold_nothing() -> None:
    pool = GpuPool(GPUS)
    held = await pool.take(1)
    tasks = [asyncio.create_task(pool.take(3)) for _ in range(3)]
    await until(lambda: file_locks.holder("GPU-b.0"))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert not file_locks.wanted(gpu_leases.WAITING)
    held.release()
    held.release()
    assert [gpu_leases.holders(gpu) for gpu in GPUS] == [{}, {}, {}]


async def test_two_hundred_leases_leave_nothing_open() -> None:
    pool = GpuPool(GPUS, slots_per_gpu=2)
    (await pool.take(1)).release()  # a thread for the engine, which stays
    before = _descriptors()
    for count in range(200):
        (await pool.take(1 + count % 3)).release()
    assert _descriptors() == before
    assert len(list(file_locks.folder().iterdir())) < 15


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_the_log_says_who_holds_them(caplog: pytest.LogCaptureFixture) -> None:
    other = start(HOLDER, "3")
    line(other)
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        waiting = asyncio.create_task(GpuPool(GPUS, say_after=0.3).take(2))
        await until(lambda: caplog.text)
    assert time.monotonic() - began >= 0.3
    said = caplog.records[0].message
    assert said.startswith("waiting for 2 of the GPUs 0 = GPU-a, 1 = GPU-b, 2 = GPU-c: 0 by pid ")
    assert f"2 by pid {other.pid} (" in said
    assert "run other)" in said
    waiting.cancel()
    other.communicate("\n", timeout=60)


async def test_more_than_there_are_is_one_line() -> None:
    pool = GpuPool(GPUS[:1])
    for call in (pool.take(2), pool.try_take(2)):
        with pytest.raises(ConfigError) as caught:
            await call
        assert str(caught.value) == (
            "gpus: a box needs 2 GPUs, and the run has 1: 0 = GPU-a — name more, or take the task out"
        )
    with pytest.raises(ValueError, match="slots_per_gpu"):
        GpuPool(GPUS, slots_per_gpu=0)
    assert os.environ[INVENTORY_ENV]
    with pytest.raises(ConfigError, match="there is no GPU '9'"):
        plan(["9"])


def _container(name: str, label: str, **labels: str) -> dict[str, Any]:
    return {"Names": [f"/{name}"], "Labels": {ownership.GPU_LABEL: label, **labels}}


@pytest.mark.parametrize(
    ("ours", "theirs", "against"),
    [
        ("GPU-a.0", "GPU-a.0", {"GPU-a"}),
        ("GPU-a.0", "GPU-a.2", {"GPU-a"}),
        ("GPU-a.2", "GPU-a.0", {"GPU-a"}),
        ("GPU-a.2", "GPU-a.2", {"GPU-a"}),
        ("GPU-a.1", "GPU-a.2", set()),
        ("GPU-a.2", "GPU-a", {"GPU-a"}),
        ("GPU-a.0", "GPU-ab.0", set()),
        ("GPU-a.0,GPU-b.0", "GPU-c.0, GPU-b.0", {"GPU-b"}),
        ("GPU-a.0", "", set()),
    ],
)
def test_which_containers_stand_against_it(ours: str, theirs: str, against: set[str]) -> None:
    assert set(gpu_leases.users(ours, [_container("x", theirs)])) == against


def test_containers_are_named_with_their_owners() -> None:
    found = [_container("one", "GPU-a.0"), _container("two", "GPU-b.0", **{"air.owner": "h:1:2"})]
    shown = gpu_leases.users("GPU-a.0,GPU-b.0", found)
    assert shown == {"GPU-a": "container one of nobody", "GPU-b": "container two of h:1:2"}
    assert GpuLease().label == ""


async def test_a_container_gets_no_gpu_while_no_engine_answers() -> None:
    pool = GpuPool(plan("auto"))
    for take in (pool.take, pool.try_take):
        with pytest.raises(MissingError, match="no Docker engine answers"):
            await take(1, containers=True)
    assert not any(holders(gpu) for gpu in pool.gpus)
    (await pool.take(len(pool.gpus))).release()
