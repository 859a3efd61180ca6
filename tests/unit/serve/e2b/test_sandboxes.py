"""What stays of E2B's sandboxes if a step of them fails, or if a client kills one in the middle of a step: no
box, no snapshot, and no sandbox without a timeout. Process boxes stand in for containers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from starlette.applications import Starlette

from air.aio import ClientLeft
from air.errors import BoxCommandError, BoxDiedError, InfrastructureError
from air.sandbox.contract.box import Box, BoxLimits, BoxSpec, Snapshot
from air.sandbox.process.box import ProcessBox
from air.sandbox.process.copy_snapshots import CopiedSnapshot
from air.serve.e2b.control import Control
from air.serve.e2b.errors import ApiError, SandboxGone
from air.serve.e2b.helper_program import Program
from air.serve.e2b.sandbox import Sandbox, SandboxSettings
from air.serve.e2b.sandboxes import KeptSnapshot, Sandboxes
from air.serve.e2b.templates import Templates
from air.serve.http.app import Server
from air.serve.http.boxes import Boxes
from air.serve.http.log import Log
from air.serve.http.metrics import Metrics
from air.serve.http.settings import ServeConfig
from tests.until import until

SETTINGS = SandboxSettings("any")


class Processes(Templates):
    """Every template is a process box."""

    async def spec(self, template: str) -> BoxSpec:
        return BoxSpec(provider="process")


class Lender:
    """Lends boxes of one class, and counts those that are not closed. With `failure`, it raises this error in
    place of the second box."""

    def __init__(self, kind: type[ProcessBox], failure: Exception | None = None) -> None:
        self.kind, self.failure = kind, failure
        self.requests = self.lent = 0

    @asynccontextmanager
    async def lend(self, spec: BoxSpec, *, within: float) -> AsyncIterator[Box]:
        self.requests += 1
        if self.failure is not None and self.requests == 2:
            raise self.failure
        self.lent += 1
        try:
            async with await self.kind.open(spec) as box:
                yield box
        finally:
            self.lent -= 1


def _sandboxes(lender: Lender, config: ServeConfig | None = None) -> Sandboxes:
    server = Server(config or ServeConfig(), Metrics(), Log(), cast(Boxes, lender))
    return Sandboxes(server, Processes(BoxLimits()))


async def _created(
    kind: type[ProcessBox] = ProcessBox, failure: Exception | None = None
) -> tuple[Lender, Sandboxes, Sandbox]:
    """Returns a sandbox, the sandboxes of its server, and the lender of their boxes. `kind` and `failure` are
    those of the lender."""
    lender = Lender(kind, failure)
    sandboxes = _sandboxes(lender)
    return lender, sandboxes, await sandboxes.create(SETTINGS, 3600)


async def test_a_sandbox_whose_pause_fails_still_ends_at_its_timeout() -> None:
    lender, sandboxes, sandbox = await _created()
    box = sandbox.running_box
    assert isinstance(box, ProcessBox)
    command = asyncio.create_task(box.exec("touch began; sleep 600", timeout=600))
    await until((box.host_workspace / "began").exists)  # while it runs, the box does not freeze
    sandbox.ends_at = time.time()
    with pytest.raises(BoxCommandError):
        await sandboxes.pause(sandbox, memory=True)
    await until(lambda: not sandboxes.all() and not lender.lent)
    with pytest.raises(BoxDiedError):
        await command


class Unfreezable(ProcessBox):
    async def freeze(self) -> None:
        raise OSError("no such control group")


async def test_a_sandbox_that_cannot_be_paused_at_its_timeout_is_ended() -> None:
    lender = Lender(Unfreezable)
    sandboxes = _sandboxes(lender)
    await sandboxes.create(SandboxSettings("any", pause_at_end=True), 0)
    await until(lambda: not sandboxes.all() and not lender.lent)


class LongFreezing(ProcessBox):
    """A box that is frozen when `frozen` is done. Only the waiting task holds this future."""

    frozen: weakref.ReferenceType[asyncio.Future[None]] | None = None

    async def freeze(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self.frozen = weakref.ref(future)
        await future


async def test_a_sandbox_is_paused_at_its_timeout_although_only_the_event_loop_knows_the_task() -> (
    None
):
    sandboxes = _sandboxes(Lender(LongFreezing))
    sandbox = await sandboxes.create(SandboxSettings("any", pause_at_end=True), 0)
    box = sandbox.running_box
    assert isinstance(box, LongFreezing)
    await until(lambda: box.frozen)
    gc.collect()
    assert box.frozen is not None
    future = box.frozen()
    assert future is not None
    future.set_result(None)
    await until(lambda: not sandbox.lock.locked())
    assert sandboxes.paused() == (1, 0)
    await sandboxes.close()


class Interrupting(CopiedSnapshot):
    """A snapshot that calls `then` as soon as a box has its files."""

    then: Callable[[], Awaitable[None]]

    async def fill(self, workspace: Path) -> None:
        await super().fill(workspace)
        await self.then()


async def test_a_sandbox_that_is_killed_while_it_is_resumed_leaves_no_box(tmp_path: Path) -> None:
    lender, sandboxes, sandbox = await _created()
    await sandboxes.pause(sandbox, memory=False)
    assert sandbox.frozen_files is not None
    await sandbox.frozen_files.close()
    sandbox.frozen_files = files = await Interrupting.of(tmp_path)
    assert isinstance(files, Interrupting)
    files.then = lambda: sandboxes.kill(sandbox)
    with pytest.raises(SandboxGone):
        await sandboxes.resume(sandbox)
    assert lender.lent == 0


class Lasting(CopiedSnapshot):
    """A snapshot that cannot be deleted."""

    async def close(self) -> None:
        await super().close()
        raise InfrastructureError("the disk is read-only")


@pytest.fixture
def everyones(tmp_path: Path) -> Path:
    """A folder that commands in a box can use as their workspace."""
    tmp_path.chmod(0o777)
    return tmp_path


async def test_a_sandbox_is_resumed_although_its_stored_files_cannot_be_deleted(
    everyones: Path,
) -> None:
    lender, sandboxes, sandbox = await _created()
    await sandboxes.pause(sandbox, memory=False)
    assert sandbox.frozen_files is not None
    await sandbox.frozen_files.close()
    sandbox.frozen_files = await Lasting.of(everyones)
    assert await sandboxes.connect(sandbox, 3600)
    assert (sandbox.state, lender.lent) == ("running", 1)
    assert (await sandbox.running_box.exec("true", timeout=60)).code == 0
    await sandboxes.close()
    assert lender.lent == 0


class KeptFiles(Snapshot):
    """A snapshot that counts those that are open. With `failure`, it cannot be closed."""

    id = "files"
    open = 0

    def __init__(self, failure: Exception | None = None) -> None:
        self._failure = failure
        KeptFiles.open += 1

    async def close(self) -> None:
        if self._failure is not None:
            raise self._failure
        KeptFiles.open -= 1


class SlowlyCopied(ProcessBox):
    """A box that calls `then` when its snapshot is stored."""

    then: Callable[[], Awaitable[None]]

    async def snapshot(self) -> Snapshot:
        await self.then()
        return KeptFiles()


async def test_a_sandbox_that_is_killed_while_it_is_paused_leaves_no_snapshot() -> None:
    lender, sandboxes, sandbox = await _created(SlowlyCopied)
    box = sandbox.running_box
    assert isinstance(box, SlowlyCopied)
    box.then = lambda: sandboxes.kill(sandbox)
    with pytest.raises(SandboxGone):
        await sandboxes.pause(sandbox, memory=False)
    assert (KeptFiles.open, lender.lent) == (0, 0)


class Stubborn:
    """A program that cannot be ended."""

    async def close(self) -> None:
        raise RuntimeError("it does not end")


async def test_the_box_of_a_sandbox_goes_back_although_a_program_of_it_does_not_end() -> None:
    lender, sandboxes, sandbox = await _created()
    sandbox.programs["files"] = cast(Program, Stubborn())
    with pytest.raises(RuntimeError):
        await sandboxes.kill(sandbox)
    assert lender.lent == 0


async def test_a_sandbox_is_paused_although_a_program_of_it_does_not_end() -> None:
    lender, sandboxes, sandbox = await _created()
    await sandbox.running_box.write("file", b"1")
    sandbox.programs["files"] = cast(Program, Stubborn())
    with pytest.raises(RuntimeError):
        await sandboxes.pause(sandbox, memory=False)
    assert (sandbox.state, lender.lent) == ("paused", 0)
    assert await sandboxes.resume(sandbox)
    assert await sandbox.running_box.read("file") == b"1"
    await sandboxes.close()
    assert lender.lent == 0


async def test_a_fork_that_fails_in_any_way_takes_no_snapshot_from_the_others() -> None:
    lender, sandboxes, sandbox = await _created(failure=OSError("no more processes"))
    await sandbox.running_box.write("file", b"1")
    failed, fork = await sandboxes.fork(sandbox, 2, 3600)
    assert isinstance(failed, ApiError)
    assert isinstance(fork, Sandbox)
    assert await fork.running_box.read("file") == b"1"
    await sandboxes.close()
    assert lender.lent == 0


async def test_requests_at_once_do_not_exceed_the_limit_on_snapshots() -> None:
    sandboxes = _sandboxes(Lender(ProcessBox), ServeConfig(max_snapshots=2))
    first, second = [await sandboxes.create(SETTINGS, 3600) for _ in range(2)]
    await sandboxes.snapshot(first)
    works = (sandboxes.snapshot(second), sandboxes.pause(first, memory=False))
    results = await asyncio.gather(*works, return_exceptions=True)
    assert [one.status for one in results if isinstance(one, ApiError)] == [429]
    await sandboxes.close()


async def test_forks_need_room_for_the_snapshot_that_they_start_from() -> None:
    sandboxes = _sandboxes(Lender(ProcessBox), ServeConfig(max_snapshots=1))
    sandbox = await sandboxes.create(SETTINGS, 3600)
    first, second = await asyncio.gather(
        sandboxes.fork(sandbox, 1, 3600), sandboxes.fork(sandbox, 1, 3600), return_exceptions=True
    )
    assert isinstance(first, list)
    assert isinstance(first[0], Sandbox)
    assert isinstance(second, ApiError)
    assert second.status == 429
    await sandboxes.snapshot(sandbox)  # the forks have given their place back
    with pytest.raises(ApiError, match="--max-snapshots"):
        await sandboxes.fork(sandbox, 1, 3600)
    await sandboxes.close()


class Storing(ProcessBox):
    """A box whose workspace is stored only when `go` is set."""

    began, go = asyncio.Event(), asyncio.Event()

    async def snapshot(self) -> Snapshot:
        self.began.set()
        await self.go.wait()
        return await super().snapshot()


async def test_a_sandbox_whose_files_are_being_stored_is_not_one_that_keeps_its_processes() -> None:
    _, sandboxes, sandbox = await _created(Storing)
    pause = asyncio.create_task(sandboxes.pause(sandbox, memory=False))
    await Storing.began.wait()
    assert sandboxes.paused() == (0, 1)
    Storing.go.set()
    await pause
    assert sandboxes.paused() == (0, 1)
    await sandboxes.close()


async def _pages(
    client: httpx.AsyncClient, path: str, between: Callable[[], Awaitable[None]], **query: str
) -> list[dict[str, Any]]:
    """Reads a list with one entry per page, and returns the entries. Calls `between` after each page."""
    params: dict[str, str] | None = {}
    entries: list[dict[str, Any]] = []
    while params is not None:
        answer = await client.get(path, params={**params, **query, "limit": "1"})
        assert answer.status_code == 200, answer.text
        entries += answer.json()
        token = answer.headers.get("x-next-token")
        params = {"nextToken": token} if token else None
        await between()
    return entries


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_sandboxes_that_end_between_two_pages_do_not_end_the_list(order: str) -> None:
    sandboxes = _sandboxes(Lender(ProcessBox))
    created = [await sandboxes.create(SETTINGS, 3600) for _ in range(4)]
    if order == "desc":
        created.reverse()
    left = list(created)

    async def kill_the_last_listed() -> None:
        await sandboxes.kill(left.pop(0))

    control = Control(sandboxes, Processes(BoxLimits()), "")
    transport = httpx.ASGITransport(Starlette(routes=control.routes()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        entries = await _pages(client, "/v2/sandboxes", kill_the_last_listed, order=order)
        bad = await client.get("/v2/sandboxes", params={"nextToken": "!"})
    assert [entry["sandboxID"] for entry in entries] == [one.id for one in created]
    assert bad.status_code == 400
    await sandboxes.close()


async def test_snapshots_that_are_deleted_between_two_pages_do_not_end_the_list() -> None:
    sandboxes = _sandboxes(Lender(ProcessBox))
    source = await sandboxes.create(SETTINGS, 3600)
    kept = [(await sandboxes.snapshot(source)).id for _ in range(3)]
    left = list(kept)

    async def delete_the_last_listed() -> None:
        await sandboxes.delete_snapshot(left.pop())

    control = Control(sandboxes, Processes(BoxLimits()), "")
    transport = httpx.ASGITransport(Starlette(routes=control.routes()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        entries = await _pages(client, "/snapshots", delete_the_last_listed)
    assert [entry["snapshotID"] for entry in entries] == kept[::-1]
    await sandboxes.close()


async def test_all_snapshots_are_deleted_although_one_cannot_be() -> None:
    sandboxes = _sandboxes(Lender(ProcessBox))
    source: Any = Sandbox(SETTINGS, BoxSpec(provider="process"))
    for name, failure in (("a", BoxDiedError("it stays")), ("b", None)):
        sandboxes.snapshots[name] = KeptSnapshot(name, "", source, KeptFiles(failure))
    before = KeptFiles.open
    await sandboxes.close()
    assert KeptFiles.open == before - 1


async def test_a_box_that_ends_by_itself_goes_back_without_a_request() -> None:
    lender, sandboxes, sandbox = await _created()
    await sandboxes.pause(sandbox, memory=False)
    assert await sandboxes.resume(sandbox)
    for each in (sandbox, await sandboxes.create(SETTINGS, 3600)):
        box = each.running_box
        assert isinstance(box, ProcessBox)
        assert box._process is not None
        box._process.kill()
    await until(lambda: lender.lent == 0)
    assert sandboxes.all() == []


class LeavingRequest:
    """A request to E2B's control plane whose client leaves when `leave` is set."""

    def __init__(self, sandboxes: Sandboxes, path: str, body: bytes) -> None:
        control = Control(sandboxes, Processes(BoxLimits()), "")
        self._app = Starlette(routes=control.routes())
        self._scope = {
            **{"type": "http", "method": "POST", "path": path, "raw_path": path.encode()},
            **{"headers": [(b"host", b"localhost")], "query_string": b"", "http_version": "1.1"},
        }
        self._body: bytes | None = body
        self.leave = asyncio.Event()

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if not self.leave.is_set():
            await self.leave.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        pass

    async def end(self) -> None:
        """Sends the request, and waits until the server has ended it."""
        with contextlib.suppress(ClientLeft):
            await self._app(self._scope, self._receive, self._send)


class LateLender(Lender):
    """Lends a box when `go` is set. The client of `visit` leaves in the moment in which it gets its box."""

    visit: LeavingRequest | None = None

    def __init__(self) -> None:
        super().__init__(ProcessBox)
        self.go = asyncio.Event()

    @asynccontextmanager
    async def lend(self, spec: BoxSpec, *, within: float) -> AsyncIterator[Box]:
        self.requests += 1
        await self.go.wait()
        async with super().lend(spec, within=within) as box:
            if self.visit is not None:
                self.visit.leave.set()
            yield box


async def test_a_client_that_leaves_while_it_waits_for_a_box_leaves_no_sandbox() -> None:
    lender = LateLender()
    sandboxes = _sandboxes(lender)
    visit = LeavingRequest(sandboxes, "/sandboxes", b'{"templateID": "any", "timeout": 3600}')
    running = asyncio.create_task(visit.end())
    await until(lambda: lender.requests == 1)
    visit.leave.set()
    for _ in range(20):
        await asyncio.sleep(0)
    lender.go.set()
    await running
    assert sandboxes.all() == []
    await until(lambda: lender.lent == 0)


@pytest.mark.parametrize("path", ["/sandboxes", "/sandboxes/{id}/fork"])
async def test_a_client_that_leaves_as_it_gets_its_box_leaves_no_sandbox(path: str) -> None:
    lender = LateLender()
    lender.go.set()
    sandboxes = _sandboxes(lender)
    source = await sandboxes.create(SETTINGS, 3600)
    body = b'{"timeout": 3600}' if "fork" in path else b'{"templateID": "any", "timeout": 3600}'
    lender.visit = visit = LeavingRequest(sandboxes, path.format(id=source.id), body)
    await visit.end()
    assert sandboxes.all() == [source]
    await sandboxes.close()
    assert lender.lent == 0
