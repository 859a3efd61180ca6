"""The pool, over real process boxes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from air import sandbox
from air.errors import BoxStartError, ConfigError
from air.sandbox.contract import ownership
from air.sandbox.contract.box import BoxSpec, Snapshot
from air.sandbox.ops import listing
from air.sandbox.pool.box_pool import CLOSES_AT_ONCE, MOST_SPECS, Pool
from air.sandbox.process.box import ProcessBox
from tests.until import until

SPEC = BoxSpec(provider="process")
OTHER = BoxSpec(provider="process", env={"OTHER": "1"})


def _left() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"{ownership.folder_prefix()}*"))


async def _settled(pool: Pool, live: int) -> None:
    await until(lambda: pool.stats.live == live == pool.stats.started - pool.stats.closed)


async def test_never_more_than_the_bound_and_each_box_once() -> None:
    seen, most = [], 0
    async with Pool(3, warm=2) as pool:

        async def one(index: int) -> None:
            nonlocal most
            async with pool.lease(OTHER if index % 3 == 0 else SPEC) as box:
                seen.append(box.id)
                most = max(most, pool.stats.live)
                assert (await box.exec("ls -A; echo $OTHER > mine", timeout=60)).text == ""
                await asyncio.sleep(0.02)

        await asyncio.gather(*(one(i) for i in range(12)))
    assert len(set(seen)) == 12
    assert most <= 3
    assert (pool.stats.live, pool.stats.failed) == (0, 0)
    assert pool.stats.started == pool.stats.closed >= 12
    assert not _left()


class _Foreign(Snapshot):
    """A snapshot of another provider, which no box restores."""

    id = "foreign"

    async def close(self) -> None:
        pass


async def test_a_lease_gives_the_box_back_whatever_ends_it() -> None:
    async def hold(entered: asyncio.Event) -> None:
        async with pool.lease(SPEC):
            entered.set()
            await asyncio.Event().wait()

    async with Pool(1) as pool:
        with pytest.raises(ConfigError):
            async with pool.lease(SPEC, snapshot=_Foreign()):
                raise AssertionError("a box without its workspace")
        with pytest.raises(ZeroDivisionError):
            async with pool.lease(SPEC):
                raise ZeroDivisionError
        holder = asyncio.create_task(hold(entered := asyncio.Event()))
        await entered.wait()
        holder.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holder
        await _settled(pool, 0)
        async with pool.lease(SPEC) as box:
            assert (await box.exec("true", timeout=60)).ok
    assert not _left()


class Unresettable(ProcessBox):
    """A box whose reset has a fault of its own."""

    async def reset(self) -> str:
        raise KeyError("reason")


async def test_a_box_whose_reset_has_a_fault_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sandbox.PROVIDERS, "process", (__name__, "Unresettable"))
    async with Pool(1) as pool:
        box = await pool.take(SPEC)
        assert isinstance(box, Unresettable)
        pool.give_back_for_reuse(box)
        await _settled(pool, 0)
        async with pool.lease(SPEC) as other:
            assert other.id != box.id
    assert not _left()


class Counted(ProcessBox):
    """A box whose removal waits until the test lets it go on."""

    closing = most = 0
    go_on: asyncio.Event

    async def _close(self) -> None:
        Counted.closing += 1
        Counted.most = max(Counted.most, Counted.closing)
        await Counted.go_on.wait()
        await super()._close()
        Counted.closing -= 1


async def test_a_burst_of_removals_is_bounded_and_ends_all_processes_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sandbox.PROVIDERS, "process", (__name__, "Counted"))
    Counted.go_on = asyncio.Event()
    many = 2 * CLOSES_AT_ONCE + 1
    async with Pool(many) as pool:
        boxes = [await pool.take(SPEC) for _ in range(many)]
        commands = [await box.start("sleep 600") for box in boxes]
        try:
            for box in boxes:
                pool.give_back(box)
            assert Counted.closing == 0  # the caller goes on before anything is removed
            await until(lambda: Counted.closing > 0)
            assert Counted.closing == CLOSES_AT_ONCE
            waiting = [command.wait() for command in commands[CLOSES_AT_ONCE:]]
            async with asyncio.timeout(120):
                results = await asyncio.gather(*waiting)
            assert {result.code for result in results} == {137}
            assert Counted.closing == CLOSES_AT_ONCE
        finally:
            Counted.go_on.set()
        await _settled(pool, 0)
    assert (Counted.closing, Counted.most) == (0, CLOSES_AT_ONCE)
    assert not _left()


async def test_spares_are_ready_and_refilled() -> None:
    async with Pool(4, warm=2) as pool:
        pool.prepare(SPEC)
        await _settled(pool, 2)
        spares = [live.name for live in listing.folders()]
        async with pool.lease(SPEC) as box:
            assert box.id in spares
            await _settled(pool, 3)
        await _settled(pool, 2)
        assert pool.stats.queue_seconds == box.queue_seconds
    assert not _left()


async def test_spares_start_when_callers_have_had_time_for_their_first_commands() -> None:
    async with Pool(4, warm=1) as pool:
        pool.prepare(SPEC)
        await _settled(pool, 1)
        async with pool.lease(SPEC):
            assert pool.stats.live == 1
            await _settled(pool, 2)


async def test_a_spare_makes_room_for_another_spec() -> None:
    async with Pool(2, warm=2) as pool:
        pool.prepare(SPEC)
        await _settled(pool, 2)
        async with asyncio.timeout(60):
            async with pool.lease(OTHER) as one, pool.lease(OTHER) as two:
                assert (await one.exec("echo $OTHER", timeout=60)).text == "1\n"
                assert one.id != two.id


async def test_spares_of_specs_that_were_not_requested_for_long_end() -> None:
    others = [BoxSpec(provider="process", env={"OTHER": str(n)}) for n in range(MOST_SPECS + 8)]

    def ready() -> list[BoxSpec]:
        return [subpool.spec for subpool in pool._subpools.values() if subpool.ready]

    async with Pool(2, warm=1) as pool:
        pool.prepare(SPEC)
        await until(lambda: ready() == [SPEC])
        async with pool.lease(OTHER) as box:
            for spec in others:
                pool.prepare(spec)
            await until(lambda: ready() == [others[-1]])
            assert len(pool._subpools) == MOST_SPECS + 1  # and the one that is in use
            assert (await box.exec("echo ok", timeout=60)).text == "ok\n"
    assert not _left()


async def test_a_dead_spare_is_not_handed_out() -> None:
    async with Pool(2, warm=1) as pool:
        pool.prepare(SPEC)
        await _settled(pool, 1)
        for pid in _guests():
            os.kill(pid, signal.SIGKILL)
        await until(lambda: not any(box.alive for s in pool._subpools.values() for box in s.ready))
        async with pool.lease(SPEC) as box:
            assert (await box.exec("echo ok", timeout=60)).text == "ok\n"
    assert not _left()


def _guests() -> list[int]:
    shown = subprocess.check_output(["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())])
    return [int(row.split()[0]) for row in shown.decode().splitlines() if " -I -S -E " in row]


async def test_queue_is_first_come_first_served_and_measured() -> None:
    order: list[int] = []
    async with Pool(1) as pool:

        async def one(index: int) -> float:
            async with pool.lease(SPEC) as box:
                order.append(index)
                await asyncio.sleep(0.1)
            return box.queue_seconds

        waits = await asyncio.gather(*(one(i) for i in range(4)))
    assert order == [0, 1, 2, 3]
    assert waits == sorted(waits)
    assert waits[3] > 0.3
    assert pool.stats.queue_seconds == pytest.approx(sum(waits))


async def test_errors_and_cancellations_leave_nothing() -> None:
    dice = random.Random(5)
    async with Pool(3, warm=1) as pool:

        async def one(index: int) -> None:
            async with pool.lease(SPEC) as box:
                if index % 3 == 0:
                    raise KeyError(index)
                await box.exec("sleep 5", timeout=60)

        tasks = [asyncio.create_task(one(i)) for i in range(12)]
        while pending := [task for task in tasks if not task.done()]:
            await asyncio.sleep(0.05)
            dice.choice(pending).cancel()
        kinds = {task.cancelled() or type(task.exception()) for task in tasks}
        assert kinds <= {True, KeyError}
        async with asyncio.timeout(60), pool.lease(SPEC) as box:
            assert (await box.exec("echo fine", timeout=60)).text == "fine\n"
    assert pool.stats.live == 0
    assert not _left()


async def test_leaving_the_pool_takes_lent_boxes_and_waiters_with_it() -> None:
    async with Pool(1) as pool:
        box = await pool.take(SPEC)
        waiting = asyncio.create_task(pool.take(SPEC))
        await asyncio.sleep(0.05)
    with pytest.raises(BoxStartError, match="closed"):
        await waiting
    assert not box.alive
    pool.give_back(box)
    assert pool.stats.live == 0
    assert not _left()
    with pytest.raises(RuntimeError):
        await pool.take(SPEC)


async def test_a_cancelled_pool_leaves_nothing() -> None:
    async def work() -> None:
        async with Pool(4, warm=3) as pool, pool.lease(SPEC) as box:
            await box.exec("sleep 60", timeout=60)

    for delay in (0.05, 0.15, 0.4):
        task = asyncio.create_task(work())
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert not _left()


def test_bad_bounds() -> None:
    for arguments in ((0, 0), (1, -1)):
        with pytest.raises(ValueError, match="max_boxes"):
            Pool(*arguments)


NO_ENGINE = """
import asyncio, sys
from air.errors import MissingError
from air.sandbox.contract.box import BoxSpec
from air.sandbox.pool.box_pool import Pool
from tests.until import until

async def main():
    async with Pool(2, warm=1) as pool:
        for _ in range(2):
            try:
                async with pool.lease(BoxSpec()):
                    sys.exit("a box without an engine")
            except MissingError as error:
                print(error)
    assert pool.stats.live == 0, pool.stats

asyncio.run(main())
"""


def test_without_an_engine_one_line_says_so(tmp_path: Path) -> None:
    host = f"unix://{tmp_path}/none.sock"
    env = os.environ | {"DOCKER_HOST": host}
    lines = subprocess.run(
        [sys.executable, "-c", NO_ENGINE],
        env=env, capture_output=True, text=True, timeout=60, check=True,
    ).stdout.splitlines()  # fmt: skip
    said = f"DOCKER_HOST={host}: no Docker engine answers: its socket is not there — "
    said += "start the engine there, or correct or unset DOCKER_HOST"
    assert lines == [said, said]


async def test_a_user_without_a_home_folder_has_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_CACHE", "~no-such-user/cache")
    spec = BoxSpec(provider="process")
    async with Pool(1) as pool, pool.lease(spec) as box:
        assert (await box.exec("echo up", timeout=60)).text == "up\n"
        assert [live.name for live in listing.folders() if live.name == box.id] == [box.id]
