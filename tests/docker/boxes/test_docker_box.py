"""The Docker box: the conformance suite, what a failed or cancelled start leaves, and speed of use."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from air.errors import BoxDiedError, BoxEndedError, BoxStartError, ConfigError, MissingError
from air.sandbox import conformance, open_box
from air.sandbox.conformance import commands, gvisor, snapshots
from air.sandbox.contract import ownership
from air.sandbox.contract.box import BoxLimits, BoxSpec
from air.sandbox.docker import container_spec, engine, oci_runtime
from air.sandbox.docker.container_stream import KEPT_EVENTS, AttachedContainer, outside_cause
from air.sandbox.docker.engine_errors import TransientStartError
from air.sandbox.pool.box_pool import Pool
from air.sandbox.wire.connection import opening
from tests.docker.boxes.shared_boxes import SharedBoxes, shared_boxes
from tests.until import until

pytestmark = pytest.mark.docker
SPEC = BoxSpec()
KEPT = [c for c in conformance.CHECKS if c.name not in conformance.KNOWN_GAPS["docker"]]


def _ours(run: str) -> list[str]:
    return [
        c["Names"][0]
        for c in engine.containers_of_air()
        if c["Labels"].get(ownership.RUN_LABEL) == run
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def boxes() -> AsyncIterator[SharedBoxes]:
    async with shared_boxes() as boxes:
        yield boxes


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("check", KEPT, ids=lambda check: check.name)
async def test_conformance(check: conformance.Check, boxes: SharedBoxes) -> None:
    await asyncio.wait_for(boxes.run(check, SPEC), 600)


async def test_a_missing_image_is_one_line_with_the_remedy() -> None:
    with pytest.raises(MissingError, match="`air-no-such` is not built here — run `air setup`"):
        await open_box(SPEC.model_copy(update={"image": "air-no-such"}), run="missing")
    assert not _ours("missing")


async def test_a_start_that_fails_for_good_is_not_tried_again() -> None:
    spec = SPEC.model_copy(update={"limits": BoxLimits(cpus=10_000)})
    async with Pool(1, run="final") as pool:
        with pytest.raises(BoxStartError) as caught:
            await pool.take(spec)
    assert not isinstance(caught.value, TransientStartError)
    assert pool.stats.failed == 1
    assert not _ours("final")


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.1, 0.2, 0.35])
async def test_a_cancelled_start_leaves_nothing(delay: float) -> None:
    task = asyncio.create_task(open_box(SPEC, run=f"cancelled-{os.getpid()}"))
    await asyncio.sleep(delay)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        await task.result().close()
    assert not _ours(f"cancelled-{os.getpid()}")


async def test_a_container_that_is_taken_away_is_a_dead_box() -> None:
    async with await open_box(SPEC, run="taken") as box:
        running = asyncio.create_task(box.exec("sleep 60", timeout=60))
        await box.exec("true", timeout=60)
        await asyncio.to_thread(engine.client().kill, box.id)
        with pytest.raises(BoxDiedError, match=f"{box.id}.*a request to the container engine"):
            async with box.attributing():
                await running
        with pytest.raises(BoxDiedError, match=box.id):
            await box.read("x")
    assert not _ours("taken")


async def test_a_box_that_nothing_outside_of_it_ended_was_ended_by_its_commands() -> None:
    async with await open_box(SPEC, run="ended") as box:
        state = (await asyncio.to_thread(engine.client().inspect_container, box.id))["State"]
        os.kill(state["Pid"], signal.SIGKILL)  # as the kernel does it for want of memory
        with pytest.raises(BoxEndedError, match=box.id):
            async with box.attributing():
                await box.exec("true", timeout=60)
    assert not _ours("ended")


def event(action: str, container: str = "c1", **attributes: str) -> dict[str, Any]:
    return {"Action": action, "Actor": {"ID": container, "Attributes": attributes}}


@pytest.mark.parametrize(
    ("events", "cause"),
    [
        ([event("start"), event("oom"), event("die")], ""),
        ([event("start"), event("kill", signal="9"), event("die")], "signal 9"),
        ([event("start"), event("kill", "another", signal="9"), event("die")], ""),
        ([], "restarted"),
        ([event("die")], "restarted"),
        ([event("start", "another")], "restarted"),
        ([event("oom", "another")] * KEPT_EVENTS, ""),  # it may have forgotten the start only
        ([event("kill", "id", name="c1", signal="15")], "signal 15"),
    ],
)
def test_what_the_engines_events_prove(events: list[dict[str, Any]], cause: str) -> None:
    found = outside_cause(events, "c1", complete=True)
    assert cause in found
    assert bool(cause) == bool(found)


async def test_a_closed_stream_ends_the_container() -> None:
    box = await open_box(SPEC, run="closed")
    await box.exec("(setsid sleep 600 &)", timeout=60)
    await box._guest.close()
    await until(lambda: not _ours("closed"), every=0.1)
    await box.close()


@pytest.mark.usefixtures("capabilities_known")
async def test_commands_start_where_the_guest_itself_has_a_low_priority() -> None:
    name = f"air-niced-{os.getpid()}"
    arguments = container_spec.container(SPEC, name, "niced")
    arguments["entrypoint"] = ["nice", "-n", "10", *arguments["entrypoint"]]
    config = {"roots": [("/workspace", "/workspace")], "remove": None, "rlimits": [], "env": {}}
    attached = AttachedContainer(name)
    try:
        guest = await attached.start(arguments, opening(config))
        await guest.ready(seconds=60)
        request = {"op": "exec", "max_bytes": 100, "timeout": 60, "env": {}, "cwd": "/"}
        script = 'until [ "$(nice)" = 15 ]; do sleep 0.05; done; nice'
        header, body = await guest.request({**request, "script": script})
        assert (header["code"], body) == (0, b"15\n")
    finally:
        await attached.close()
    assert not _ours("niced")


async def test_a_command_may_be_nicer_by_itself_before_the_guest_sees_to_it() -> None:
    async with await open_box(SPEC) as box:
        nicest = [box.exec(["nice", "-n", "19", "true"], timeout=60) for _ in range(100)]
        assert {(done.code, done.stderr) for done in await asyncio.gather(*nicest)} == {(0, b"")}


async def test_the_pool_over_containers() -> None:
    async with Pool(4, warm=1, run="pooled") as pool:

        async def one(index: int) -> str:
            async with pool.lease(SPEC) as box:
                return (await box.exec(f"ls -A; touch x; echo {index}", timeout=60)).text

        assert await asyncio.gather(*(one(i) for i in range(8))) == [f"{i}\n" for i in range(8)]
    assert not _ours("pooled")
    assert pool.stats.live == 0


async def test_secrets_are_not_in_the_containers_description() -> None:
    spec = SPEC.model_copy(update={"env": {"TOKEN": "hunter2"}})
    async with await open_box(spec) as box:
        assert (await box.exec("echo $TOKEN", timeout=60)).text == "hunter2\n"
        assert "hunter2" not in str(
            await asyncio.to_thread(engine.client().inspect_container, box.id)
        )


async def test_a_runtime_that_the_engine_lacks_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(oci_runtime.SETTING, "air-no-such")
    with pytest.raises(ConfigError, match="AIR_OCI_RUNTIME: the container engine has no runtime"):
        await open_box(SPEC, run="no-such-runtime")
    assert _ours("no-such-runtime") == []


@pytest.mark.full  # where Docker is required, a test of `make test` may not be skipped
async def test_conformance_under_gvisor(monkeypatch: pytest.MonkeyPatch) -> None:
    info = await asyncio.to_thread(engine.client().info)
    if problem := oci_runtime.missing("runsc", info):
        pytest.skip(f"gVisor: {problem}")
    kept = [check for check in KEPT if check.name not in gvisor.GAPS]
    checks = [check for check in kept if check not in snapshots.CHECKS]  # these need `runc`
    await _play("runsc", checks, monkeypatch)


async def test_checks_can_be_played_under_a_runtime_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await _play(
        "runc", [check for check in KEPT if check.name == commands.CHECKS[0].name], monkeypatch
    )


async def _play(
    runtime: str, checks: list[conformance.Check], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plays conformance checks in boxes of an OCI runtime, and fails with the errors of all of them."""
    assert checks
    monkeypatch.setenv(oci_runtime.SETTING, runtime)
    async with await open_box(SPEC, run="runtime") as box:
        description = await engine.inspected(box.id)
        assert description["HostConfig"]["Runtime"] == runtime
    failures = {}
    for check in checks:
        try:
            await asyncio.wait_for(conformance.run(check, SPEC), 600)
        except Exception as error:  # each check has its own errors
            failures[check.name] = repr(error)
    assert failures == {}
