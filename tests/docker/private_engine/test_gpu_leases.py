"""GPUs of containers: what the engine is told, and that a GPU is handed on only without containers.

The GPUs are declared, so nothing here needs one: containers are made, and not started.
"""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from air.cli.main import main
from air.errors import AirError, BoxStartError, MissingError
from air.sandbox.contract import ownership
from air.sandbox.contract.box import BoxSpec
from air.sandbox.docker import container_spec, engine
from air.sandbox.pool import file_locks, gpu_leases
from air.sandbox.pool.box_pool import Pool
from air.sandbox.pool.gpu_leases import GpuPool
from air.sandbox.pool.gpus import INVENTORY_ENV, Gpu
from tests.docker.client import boxes_of
from tests.until import until

# Containers say which GPUs they have, on the whole machine: one worker runs these tests.
pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("containers with GPUs")]
GPUS = [Gpu(0, "GPU-airtest-a"), Gpu(1, "GPU-airtest-b")]
RUN = "gpu-leases"
IMAGE = "air-test-rebuilt"


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks and an inventory of the test's own."""
    monkeypatch.setenv(file_locks.FOLDER_ENV, str(tmp_path / "locks"))
    monkeypatch.setenv(INVENTORY_ENV, ",".join(f"{gpu.index}={gpu.uuid}" for gpu in GPUS))


@pytest.fixture
def created() -> Iterator[Callable[..., str]]:
    """Makes containers that never start; what a test leaves is removed."""
    names: list[str] = []

    def create(name: str, gpu: str, **labels: str | None) -> str:
        arguments = container_spec.container(BoxSpec(), name, RUN)
        labels |= {ownership.GPU_LABEL: gpu}
        arguments["labels"] |= labels
        arguments["labels"] = {k: v for k, v in arguments["labels"].items() if v is not None}
        names.append(name)
        return str(engine.client().create_container(**arguments)["Id"])

    yield create
    for name in names:
        engine.remove(name)


@pytest.fixture
def dead_owner() -> str:
    host, _, start = ownership.owner().rsplit(":", 2)
    pid = subprocess.check_output([sys.executable, "-c", "import os; print(os.getpid())"])
    return f"{host}:{int(pid)}:{start}"


def exists(name: str) -> bool:
    return bool(engine.client().containers(all=True, filters={"name": f"^/{name}$"}))


async def test_the_engine_is_told_these_very_gpus() -> None:
    client = engine.client()
    gpus = await GpuPool(GPUS, slots_per_gpu=2).take(2)
    spec = BoxSpec(gpus=2)
    made = client.create_container(**container_spec.container(spec, "air-test-asked", RUN, gpus))
    try:
        found = client.inspect_container(made["Id"])
    finally:
        engine.remove(made["Id"])
    (request,) = found["HostConfig"]["DeviceRequests"]
    assert request["Driver"] == "nvidia"
    assert request["DeviceIDs"] == ["GPU-airtest-a", "GPU-airtest-b"]
    assert request["Count"] == 0
    assert request["Capabilities"] == [["gpu", "compute", "utility"]]
    labels = found["Config"]["Labels"]
    assert labels[ownership.GPU_LABEL] == "GPU-airtest-a.1,GPU-airtest-b.1"
    environment = found["Config"]["Env"]
    assert not [row for row in environment if row.startswith("NVIDIA_VISIBLE_DEVICES")]
    gpus.release()


async def test_a_box_without_gpus_gets_none_where_nvidias_runtime_is_the_default() -> None:
    arguments = container_spec.container(BoxSpec(), "air-test-plain", RUN)
    assert not arguments["host_config"].get("DeviceRequests")
    assert ownership.GPU_LABEL not in arguments["labels"]
    assert arguments["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"


async def test_a_start_that_fails_leaves_the_gpu_free_and_no_container() -> None:
    """No engine has these GPUs, and most have none to give at all."""
    async with Pool(1, run=RUN, gpus=GpuPool(GPUS)) as pool:
        with pytest.raises(AirError) as caught:
            await pool.take(BoxSpec(gpus=1))
        assert isinstance(caught.value, (MissingError, BoxStartError))
        runtimes = engine.client().info()["Runtimes"]
        if not any("nvidia" in name for name in runtimes):
            assert str(caught.value) == (
                "the Docker engine cannot give GPUs to containers — "
                "install the NVIDIA Container Toolkit and restart the Docker engine"
            )
        assert [gpu_leases.holders(gpu) for gpu in GPUS] == [{}, {}]
        assert not boxes_of(RUN)


async def test_a_live_owners_container_is_waited_for(created: Callable[..., str]) -> None:
    created("air-test-busy", "GPU-airtest-a.0")
    pool = GpuPool(GPUS)
    lease = await pool.take(1)
    assert lease.uuids == ("GPU-airtest-b",)
    waiting = asyncio.create_task(pool.take(1))
    for _ in range(50):
        await asyncio.sleep(0.02)
        assert not waiting.done()
    assert exists("air-test-busy")
    await asyncio.to_thread(engine.remove, "air-test-busy")
    async with asyncio.timeout(60):
        again = await waiting
    assert again.uuids == ("GPU-airtest-a",)
    for one in (lease, again):
        one.release()


async def test_sharers_do_not_wait_for_one_another(created: Callable[..., str]) -> None:
    created("air-test-shares", "GPU-airtest-a.2")
    gpus = await GpuPool(GPUS[:1], slots_per_gpu=2).take(1)
    assert gpus.label == "GPU-airtest-a.1"
    assert await GpuPool(GPUS[:1], slots_per_gpu=2).try_take(1) is None
    gpus.release()
    assert await GpuPool(GPUS[:1]).try_take(1) is None


async def test_a_container_of_nobody_known_is_waited_for(created: Callable[..., str]) -> None:
    foreign = {ownership.OWNER_LABEL: None, ownership.EXPIRES_LABEL: None}
    created("air-test-nobodys", "GPU-airtest-a", **foreign)
    elsewhere = {ownership.OWNER_LABEL: "elsewhere/0/0:1:1"}
    created("air-test-elsewhere", "GPU-airtest-b.0", **elsewhere)
    assert await GpuPool(GPUS[:1]).try_take(1) is None
    assert await GpuPool(GPUS[1:]).try_take(1) is None
    assert exists("air-test-nobodys")
    assert exists("air-test-elsewhere")
    assert [gpu_leases.holders(gpu) for gpu in GPUS] == [{}, {}]


async def test_a_dead_owners_container_is_removed_first(
    created: Callable[..., str], dead_owner: str
) -> None:
    created("air-test-left", "GPU-airtest-a.0", **{ownership.OWNER_LABEL: dead_owner})
    lease = await GpuPool(GPUS[:1]).try_take(1)
    assert lease is not None
    assert not exists("air-test-left")
    lease.release()


async def test_an_engine_that_fails_hands_nothing_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers, and refuses: whether a container uses the GPU cannot be known."""
    async with _refusing(tmp_path / "engine.sock"):
        script = (
            "import asyncio\n"
            "from air.errors import BoxStartError\n"
            "from air.sandbox.pool.gpu_leases import GpuPool, holders\n"
            "from air.sandbox.pool.gpus import plan\n"
            "pool = GpuPool(plan('auto'))\n"
            "try:\n"
            "    asyncio.run(pool.take(1))\n"
            "except BoxStartError as error:\n"
            "    print('refused', [holders(gpu) for gpu in pool.gpus])\n"
        )
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine.sock")
        done = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(done.communicate(), 120)
    assert out.decode() == "refused [{}, {}]\n"


class _refusing:
    """An HTTP server on a socket that answers every request with an error of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __aenter__(self) -> None:
        self._server = await asyncio.start_unix_server(self._answer, self._path)

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (await reader.readline()).strip():
            pass
        body = b'{"message": "out of order"}'
        head = f"HTTP/1.1 500 X\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        writer.close()


async def test_two_hundred_leases_leave_nothing_open() -> None:
    pool = GpuPool(GPUS)
    # The connections that these requests open stay open.
    await asyncio.gather(*(asyncio.to_thread(engine.containers_of_air) for _ in range(40)))
    before = _open()
    for count in range(200):
        (await pool.take(1 + count % 2)).release()
    assert _open() == before


def _open() -> tuple[int, int]:
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()


def test_air_gpus_shows_containers(
    created: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    created("air-test-shown", "GPU-airtest-a.1")
    created("air-test-more", "GPU-airtest-a.2")
    assert main(["gpus"]) == 0
    _, *rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 3
    shown = [row.split("  ")[-1] for row in rows]
    assert sorted(shown[:2]) == ["air-test-more (created)", "air-test-shown (created)"]
    assert rows[2].split()[1] == "GPU-airtest-b"
    assert shown[2].strip() == "-"


@pytest.fixture
def rebuild() -> Iterator[Callable[[str], None]]:
    """Builds the image anew, with a word of its own in it."""
    client, ids = engine.client(), set()

    def build(word: str) -> None:
        recipe = io.BytesIO(f"FROM air-base\nENV WORD={word}\n".encode())
        log: Any = client.build(fileobj=recipe, tag=IMAGE, decode=True, rm=True)
        assert not [row for row in log if "error" in row]
        ids.add(client.inspect_image(IMAGE)["Id"])

    yield build
    for found in ids:
        client.remove_image(found, force=True)


async def test_a_rebuilt_image_is_not_served_from_old_spares(
    rebuild: Callable[[str], None],
) -> None:
    spec = BoxSpec(image=IMAGE)
    await asyncio.to_thread(rebuild, "old")
    async with Pool(3, warm=1, run=RUN) as pool:
        async with pool.lease(spec) as box:
            assert (await box.exec("echo $WORD", timeout=60)).text == "old\n"
        await until(lambda: pool.stats.live == 1 and pool.stats.started == 2)
        await asyncio.to_thread(rebuild, "new")
        await asyncio.sleep(1.1)  # for so long a digest may be remembered
        async with pool.lease(spec) as box:
            assert (await box.exec("echo $WORD", timeout=60)).text == "new\n"
            await until(lambda: pool.stats.live == 2 and pool.stats.closed == 2)
        spare = await pool.take(spec)
        assert (await spare.exec("echo $WORD", timeout=60)).text == "new\n"


async def test_a_box_names_the_image_that_it_started_from(rebuild: Callable[[str], None]) -> None:
    spec = BoxSpec(image=IMAGE)
    await asyncio.to_thread(rebuild, "first")
    async with Pool(1, run=RUN) as pool:
        first = await pool.take(spec)
        queued = asyncio.create_task(pool.take(spec))
        await asyncio.sleep(0)  # its digest is known: it waits for a place now
        await asyncio.to_thread(rebuild, "second")
        pool.give_back(first)
        second = await queued
        found = await asyncio.to_thread(engine.client().inspect_container, second.id)
        assert second.image_digest == found["Image"] != first.image_digest


async def test_an_image_that_is_not_there_is_one_line() -> None:
    async with Pool(1, warm=1, run=RUN) as pool:
        for _ in range(2):
            with pytest.raises(MissingError, match="`air-no-such` is not built here — run"):
                await pool.take(BoxSpec(image="air-no-such"))
        assert pool.stats.failed == 2
        assert pool.stats.live == 0
