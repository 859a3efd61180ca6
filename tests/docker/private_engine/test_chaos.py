"""Harnesses that are killed, engines that are restarted, killed and full, boxes that are attacked.

All against a private engine (`engine.py`). `AIR_FULL=1` runs 2,000 leases in a row, not 30 or 50, 16 busy
boxes, not 6, and attacks a box twice.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from air.cli.main import main
from air.errors import BoxDiedError, BoxFileError, BoxStartError
from air.sandbox import open_box
from air.sandbox.contract.box import Box, BoxLimits, BoxSpec
from air.sandbox.docker.engine_errors import EngineAwayError, TransientStartError
from air.sandbox.pool.box_pool import Pool
from tests.docker.private_engine.engine import Engine
from tests.docker.private_engine.supervisor import until

pytestmark = pytest.mark.docker
ROOT = Path(__file__).parents[3]
FULL = os.environ.get("AIR_FULL") == "1"
LEASES = {"docker": 2000 if FULL else 30, "process": 2000 if FULL else 50}
"""Of a kind of box, in a row: something that one in two leases leaves behind is seen in 30. Load alone adds
less than that: the pool's 6 boxes each use one connection to the engine at a time, which then stays open."""
BUSY = 16 if FULL else 6
ROUNDS = 2 if FULL else 1
END_SECONDS = 5.0
"""Within which nothing of a killed harness may run any more."""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def harness(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts harnesses that use the private engine, and returns each when it has begun."""
    (tmp_path / "locks").mkdir()
    monkeypatch.setenv("AIR_LOCK_DIR", str(tmp_path / "locks"))
    started: list[subprocess.Popen[str]] = []

    def start(*words: object) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "tests.docker.private_engine.harness", *map(str, words)]
        process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def _nothing_is_left(engine: Engine) -> None:
    """Nothing runs in time, no lock is held, and nothing exists after the next command."""
    until(lambda: not engine.processes(), "an end of all boxes", seconds=END_SECONDS)
    for lock in Path(os.environ["AIR_LOCK_DIR"]).iterdir():  # of GPUs, and of places for boxes
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert main(["box", "gc"]) == 0
    assert not engine.containers()
    assert not engine.volumes()


# The harness is killed


def test_sigkill_with_busy_boxes(engine: Engine, harness: Start) -> None:
    process = harness("busy", BUSY)
    until(lambda: len(engine.processes()) >= BUSY * 4, "the processes of all boxes")
    process.kill()
    _nothing_is_left(engine)


def test_sigkill_between_create_and_start(engine: Engine, harness: Start) -> None:
    process = harness("created", 4)
    process.kill()
    process.wait()
    assert [found["State"] for found in engine.containers()] == ["created"] * 4
    _nothing_is_left(engine)


def test_sigkill_while_the_engine_is_in_the_middle_of_starts(
    engine: Engine, harness: Start
) -> None:
    process = harness("churn", 8)
    until(lambda: any(c["State"] == "created" for c in engine.containers()), "a start")
    engine.suspend()
    process.kill()
    process.wait()
    engine.resume()
    _collect_late_starts(engine)
    _nothing_is_left(engine)


def _collect_late_starts(engine: Engine) -> None:
    """The engine still creates what was asked for before the kill, perhaps while `gc` looks."""
    until(
        lambda: main(["box", "gc"]) == 0 and not engine.containers(), "all that was asked for gone"
    )


def test_sigkill_at_any_moment(engine: Engine, harness: Start) -> None:
    dice = random.Random(3)
    for _ in range(4):
        process = harness("churn", 8)
        time.sleep(dice.uniform(0.0, 2.5))
        process.kill()
        process.wait()
        _collect_late_starts(engine)
        _nothing_is_left(engine)


# The engine is restarted, killed, full


@pytest.fixture
def sockets(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Collects the sockets that the SDK leaves open where it cannot connect, held by logged errors."""
    yield
    caplog.get_records("call").clear()
    gc.collect()


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("sockets")
@pytest.mark.parametrize("how", [Engine.stop, Engine.kill], ids=["restarted", "killed"])
async def test_an_engine_that_goes_away_under_load(
    engine: Engine, how: Callable[[Engine], None]
) -> None:
    """Episodes fail as ours, never as results; the next ones run, in the same process."""
    played, errors, inside, going = [0] * 4, list[tuple[type, str]](), set[int](), True

    async def episodes(index: int) -> None:
        while going:
            try:
                async with pool.lease(BoxSpec()) as box:
                    inside.add(index)
                    for turn in range(20):
                        async with box.attributing():  # it never was the command
                            result = await box.exec(f"sleep 0.05; echo {index} {turn}", timeout=60)
                        assert (result.code, result.text) == (0, f"{index} {turn}\n")
                played[index] += 1
            except (BoxDiedError, BoxStartError) as error:
                errors.append((type(error), str(error)))
            finally:
                inside.discard(index)

    async def soon(holds: Callable[[], bool]) -> None:
        await asyncio.to_thread(until, holds, f"as many episodes: {played}, {errors}")

    async with Pool(6, warm=1, run="away") as pool, asyncio.TaskGroup() as group:
        for index in range(len(played)):
            group.create_task(episodes(index))
        try:
            await soon(lambda: min(played) >= 1 and len(inside) >= 3)
            await asyncio.to_thread(how, engine)
            await soon(lambda: any(kind is BoxDiedError for kind, _ in errors))
            await asyncio.to_thread(engine.start)
            played[:] = [0] * 4
            await soon(lambda: min(played) >= 2)
        finally:
            going = False
    assert not any("\n" in text for _, text in errors)
    assert pool.stats.live == 0
    assert not engine.containers()
    assert not engine.programs()


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("sockets")
async def test_a_lease_waits_for_an_engine_that_is_restarted(engine: Engine) -> None:
    async with Pool(2, run="waits") as pool:
        async with pool.lease(BoxSpec()):
            pass
        await asyncio.to_thread(engine.stop)
        waiting = asyncio.create_task(pool.take(BoxSpec()))
        assert not (await asyncio.wait([waiting], timeout=5))[0], "given up as any failed start is"
        await asyncio.to_thread(engine.start)
        box = await asyncio.wait_for(waiting, 120)
        assert (await box.exec("echo ok", timeout=60)).text == "ok\n"


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("sockets")
async def test_a_start_that_an_engine_takes_with_it_is_a_failed_start(engine: Engine) -> None:
    """Though its container cannot be removed either: that is not what the caller must learn."""
    async with await open_box(BoxSpec()):  # the first connection to an engine is another matter
        starting = [asyncio.create_task(open_box(BoxSpec())) for _ in range(6)]
        await asyncio.to_thread(until, lambda: len(engine.containers()) > 2, "two starts")
        await asyncio.to_thread(engine.kill)
        ends = await asyncio.gather(*starting, return_exceptions=True)
        await asyncio.to_thread(engine.start)
    failed = [end for end in ends if not isinstance(end, Box)]
    assert failed
    assert {type(error) for error in failed} <= {TransientStartError, EngineAwayError}
    for box in ends:
        if isinstance(box, Box):
            await box.close()
    assert not engine.containers()


def test_what_an_engine_that_was_killed_left_is_collected(engine: Engine, harness: Start) -> None:
    processes = [harness("busy", 3), harness("created", 3)]
    engine.kill()
    before = len(engine.log())
    for process in processes:
        process.kill()
        process.wait()
    engine.start()
    assert "using the force" not in engine.log()[before:]  # it did not wait for a guest's own end
    until(lambda: not engine.programs(), "an end of all boxes", seconds=END_SECONDS)
    assert main(["box", "gc"]) == 0
    assert not engine.containers()
    assert not engine.volumes()


async def test_a_full_data_root_is_one_clear_line_and_passes(engine: Engine) -> None:
    fill = engine.data / "fill"
    async with Pool(2, run="full") as pool, pool.lease(BoxSpec()) as before:
        try:
            free = os.statvfs(engine.data)
            with fill.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
            with pytest.raises(BoxStartError, match="no space left on device") as caught:
                await pool.take(BoxSpec())
            assert "\n" not in str(caught.value)
            assert (await before.exec("echo >x; echo alive", timeout=60)).text == "alive\n"
        finally:
            fill.unlink()
        async with pool.lease(BoxSpec()) as after:
            assert (await after.exec("echo ok", timeout=60)).text == "ok\n"
    assert not engine.containers()
    assert not engine.volumes()


# The box is exhausted, and attacked

SMALL = BoxSpec(limits=BoxLimits(memory_mb=64, disk_mb=16, pids=64))


async def _answers(box: Box) -> None:
    await box.write("/tmp/alive", b"alive")
    assert (await box.exec("cat /tmp/alive", timeout=60)).text == "alive"


async def _beside(box: Box, busy: asyncio.Task[None]) -> None:
    """Commands in `box` succeed for as long as `busy` goes on."""
    while not busy.done():
        await _answers(box)
        await asyncio.sleep(0.05)


async def test_out_of_memory_ends_a_command_and_nothing_else(engine: Engine) -> None:
    eat = "x = []\nwhile True: x.append(bytes(range(256)) * 4096)"
    many = " & ".join(["python3 -c 'x = b\"x\" * 40_000_000; import time; time.sleep(60)'"] * 8)

    async def exhaust(box: Box) -> None:
        for _ in range(ROUNDS + 1):
            result = await box.exec(["python3", "-c", eat], timeout=60)
            assert result.code == 137
            assert not result.timed_out
            await _answers(box)
            await box.exec(f"{many} & wait -n", timeout=2)
            await _answers(box)

    async with Pool(4, run="memory") as pool:
        boxes = await asyncio.gather(*(pool.take(SMALL) for _ in range(4)))
        async with asyncio.timeout(300), asyncio.TaskGroup() as group:
            for eater, neighbour in (boxes[:2], boxes[2:]):
                group.create_task(_beside(neighbour, group.create_task(exhaust(eater))))


async def test_a_full_workspace_fails_writes_and_nothing_else(engine: Engine) -> None:
    async def exhaust(box: Box) -> None:
        await box.write("kept", b"kept")
        result = await box.exec("cat /dev/zero > fill", timeout=60)
        assert result.code == 1
        assert b"No space left on device" in result.stderr
        with pytest.raises(BoxFileError, match="No space left on device"):
            await box.write("more", b"x" * 100_000)
        with pytest.raises(BoxFileError, match="No space left on device"):
            await box.write("kept", b"x" * 100_000)
        assert await box.read("kept") == b"kept"
        await _answers(box)
        assert (await box.exec("rm fill", timeout=60)).ok
        await box.write("more", b"x" * 100_000)

    async with Pool(2, run="disk") as pool:
        full, neighbour = await asyncio.gather(*(pool.take(SMALL) for _ in range(2)))
        async with asyncio.timeout(300):
            await _beside(neighbour, asyncio.create_task(exhaust(full)))


ATTACKS = (
    "for i in $(seq 300); do kill -KILL 1; kill -STOP 1; kill -KILL -1; done 2>/dev/null; sleep 60",
    "python3 -c 'import ctypes as c; l = c.CDLL(None)\nwhile True: l.ptrace(16, 1, 0, 0)'",
    "while :; do echo x > /proc/1/mem; echo x > /proc/1/fd/0; echo x > /proc/1/fd/1; done 2>/dev/null",
    "while :; do cat /proc/1/fd/0 /proc/1/environ /proc/1/maps; done 2>/dev/null",
    "exec 0<&- 1>&- 2>&-; setsid sleep 600 & sleep 600",
    "(setsid nohup sh -c 'while :; do :; done' &) ; yes",
    "b() { b | b & }; b; sleep 60",
    "while :; do (setsid env -i sleep 600 &); done 2>/dev/null",
    "cat /dev/zero > fill; while :; do echo x >> fill; done 2>/dev/null",
    "python3 -c 'x = []\nwhile True: x.append(bytes(4096) * 256)'",
)


async def test_a_guest_that_is_attacked_with_everything_at_once(engine: Engine) -> None:
    """A command beside it may find no process left, which is a result; no answer is ever wrong."""

    async def attack(box: Box) -> None:
        for _ in range(ROUNDS):
            running = (box.exec(script, timeout=3, max_bytes=4000) for script in ATTACKS)
            await asyncio.gather(*running)

    async with Pool(2, run="attacked") as pool:
        box, neighbour = await asyncio.gather(*(pool.take(SMALL) for _ in range(2)))
        async with asyncio.timeout(300), asyncio.TaskGroup() as group:
            attacks = group.create_task(attack(box))
            group.create_task(_beside(neighbour, attacks))
            turn = 0
            while not attacks.done():
                turn += 1
                result = await box.exec(f"echo {turn}", timeout=60)
                said = (result.code, result.stdout, result.stderr)
                assert result.code or said == (0, b"%d\n" % turn, b""), said
                await asyncio.sleep(0.02)
        await box.exec("rm -rf fill; kill -9 -1", timeout=60)
        await _answers(box)
        listed = await box.exec("ls -d /proc/[0-9]* | wc -l", timeout=60)
        assert int(listed.stdout) <= 5  # the guest, and this command
    assert not engine.processes()


# Many leases


@pytest.mark.parametrize("provider", ["docker", "process"])
def test_many_leases_in_a_row_leave_nothing_behind(
    engine: Engine, harness: Start, provider: str
) -> None:
    process = harness("leases", LEASES[provider], provider)
    assert process.stdout is not None
    samples = [json.loads(line) for line in process.stdout]
    assert process.wait(60) == 0
    assert samples[-1]["leases"] == LEASES[provider]
    # A box that is being closed or made ready holds a few of each for a moment; a leak is one of every lease.
    first, last = samples[:3], samples[-3:]
    leak = last[0]["leases"] - first[-1]["leases"]
    for what in ("threads", "tasks", "children", "descriptors"):
        growth = min(s[what] for s in last) - max(s[what] for s in first)
        assert growth < leak / 3, (what, samples)
    growth = min(s["megabytes"] for s in last) - max(s["megabytes"] for s in first)
    assert growth < 5, samples
    assert not engine.containers()
    assert not engine.volumes()
    assert not engine.processes()
