"""What a harness leaves when it is killed: nothing that runs, and nothing after the next start."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from air.cli.main import main
from air.sandbox.contract import ownership
from air.sandbox.contract.box import BoxSpec
from air.sandbox.docker import container_spec, engine
from air.sandbox.ops import orphans
from air.sandbox.pool.box_pool import Pool
from tests.docker.client import boxes_of
from tests.processes import running
from tests.until import until

pytestmark = pytest.mark.docker

HARNESS = """
import asyncio, sys
from air.sandbox.contract.box import BoxSpec
from air.sandbox.pool.box_pool import Pool

BUSY = "(setsid bash -c \\"trap '' TERM; while true; do sleep 0.05; done\\" &); sleep 600"

async def main():
    async with Pool(4, warm=2, run=sys.argv[1]) as pool:
        boxes = [await pool.take(BoxSpec()) for _ in range(2)]
        tasks = [asyncio.create_task(box.exec(BUSY, timeout=600)) for box in boxes]
        while pool.stats.started < 4:
            await asyncio.sleep(0.05)
        await boxes[0].exec("true", timeout=60)
        print("ready", flush=True)
        await asyncio.gather(*tasks)

asyncio.run(main())
"""


def _harness(run: str) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    return running(sys.executable, "-c", HARNESS, run, stdout=asyncio.subprocess.PIPE)


async def test_sigkill_leaves_no_container() -> None:
    async with _harness("killed") as harness:
        assert harness.stdout is not None
        assert await asyncio.wait_for(harness.stdout.readline(), 60) == b"ready\n"
        assert len(boxes_of("killed")) == 4
        harness.send_signal(signal.SIGKILL)
    await until(lambda: not boxes_of("killed"), every=0.1)


@pytest.mark.parametrize("delay", [0.5, 0.65, 0.8, 1.0])
async def test_sigkill_during_the_start_leaves_nothing_after_the_next_start(delay: float) -> None:
    async with _harness("early") as harness:
        await asyncio.sleep(delay)
        harness.send_signal(signal.SIGKILL)
    await asyncio.sleep(1.5)
    await until(lambda: not [c for c in boxes_of("early") if c["State"] == "running"], every=0.1)
    for _ in range(60):  # a busy engine may yet create what it was asked for before
        async with Pool(1):
            if not boxes_of("early"):
                return
        await asyncio.sleep(1)
    raise AssertionError(boxes_of("early"))


@pytest.fixture
def dead_owner() -> str:
    host, _, start = ownership.owner().rsplit(":", 2)
    pid = subprocess.check_output([sys.executable, "-c", "import os; print(os.getpid())"])
    return f"{host}:{int(pid)}:{start}"


@pytest.fixture
def created() -> Iterator[Any]:
    """Makes containers that never start; what a test leaves is removed."""
    names: list[str] = []

    def create(name: str, **labels: str | None) -> str:
        arguments = container_spec.container(BoxSpec(), name, "created")
        arguments["labels"] |= labels
        arguments["labels"] = {k: v for k, v in arguments["labels"].items() if v is not None}
        names.append(name)
        return str(engine.client().create_container(**arguments)["Id"])

    yield create
    for name in names:
        engine.remove(name)


def _exists(name: str) -> bool:
    found = engine.client().containers(all=True, filters={"name": f"^/{name}$"})
    return bool(found)


@pytest.mark.usefixtures("engine")  # others collect what is past its time, too
def test_what_never_started_is_collected_and_nothing_else(created: Any, dead_owner: str) -> None:
    created("air-test-dead", **{ownership.OWNER_LABEL: dead_owner})
    created("air-test-expired", **{ownership.EXPIRES_LABEL: "1"})
    created("air-test-alive")
    created("air-test-elsewhere", **{ownership.OWNER_LABEL: "elsewhere/0/0:1:1"})
    created("air-test-foreign", **{ownership.OWNER_LABEL: None, ownership.EXPIRES_LABEL: "1"})
    removed = orphans.collect()
    assert {"air-test-dead", "air-test-expired"} <= set(removed)
    for name, stays in {
        "air-test-dead": False,
        "air-test-expired": False,
        "air-test-alive": True,
        "air-test-elsewhere": True,
        "air-test-foreign": True,
    }.items():
        assert _exists(name) == stays, name


def test_air_box(created: Any, dead_owner: str, capsys: pytest.CaptureFixture[str]) -> None:
    created("air-test-listed", **{ownership.OWNER_LABEL: dead_owner})
    assert main(["box", "ls"]) == 0
    row = next(r for r in capsys.readouterr().out.splitlines() if r.startswith("air-test-listed"))
    assert row.split()[1:4] == ["docker", "created", "created"]
    assert row.endswith("(dead)")
    assert main(["box", "gc"]) == 0
    assert "air-test-listed\n" in capsys.readouterr().out
    assert not _exists("air-test-listed")


@pytest.mark.usefixtures("capabilities_known")
def test_a_box_whose_harness_never_speaks_ends_by_itself() -> None:
    """As after a SIGKILL between the engine's start of a box and our first word to it."""
    client = engine.client()
    made = client.create_container(**container_spec.container(BoxSpec(), "air-box-silent", "test"))[
        "Id"
    ]
    try:
        client.start(made)  # never attached: its stdin is open and stays silent
        deadline = time.monotonic() + 120
        while any(found["Id"] == made for found in client.containers()):
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        engine.remove(made)
