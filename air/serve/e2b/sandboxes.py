"""Defines `Sandboxes`, which creates, finds, pauses and ends the E2B sandboxes of one server, and stores
snapshots (copies of their files)."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from air.aio import wait_shielded
from air.errors import AirError, BoxDiedError, InfrastructureError, MissingError
from air.sandbox.contract.box import Box, BoxSpec, Snapshot
from air.sandbox.wire.guest_box import GuestBox
from air.serve.e2b.errors import ApiError, SandboxGone
from air.serve.e2b.sandbox import Sandbox, SandboxSettings
from air.serve.e2b.templates import Templates
from air.serve.http.app import Server
from air.serve.http.boxes import NoBoxInTime

CREATE_SECONDS = 50.0
"""Seconds that the creation of a sandbox waits for a free box (container). E2B's clients wait at most 60
seconds."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class KeptSnapshot:
    """A copy of a sandbox's files that a client has stored on the server. New sandboxes can be created from
    it."""

    id: str
    name: str
    source: Sandbox
    files: Snapshot
    created_at: float = field(default_factory=time.time)

    @property
    def body(self) -> dict[str, Any]:
        """The snapshot as the JSON object that clients get: its id and its names."""
        return {"snapshotID": self.id, "names": [self.name] if self.name else []}


class Sandboxes:
    """The E2B sandboxes of one server, and the snapshots (copies of their files) that clients have stored."""

    def __init__(self, server: Server, templates: Templates) -> None:
        self._server, self._templates = server, templates
        self._sandboxes: dict[str, Sandbox] = {}
        self._leases: dict[Box, AsyncExitStack] = {}
        self._ends: set[asyncio.Task[None]] = set()
        self._begun_snapshots = 0
        """The number of snapshots that are not in `snapshots` but count towards the limit: those that are
        being stored, and temporary ones from which sandboxes are being copied (`fork`)."""
        self.snapshots: dict[str, KeptSnapshot] = {}

    def all(self) -> list[Sandbox]:
        """Returns all sandboxes that have not ended, in the order of their creation."""
        self._drop_dead()
        return list(self._sandboxes.values())

    def find(self, sandbox_id: str) -> Sandbox:
        """Returns the sandbox with this id. Raises ApiError if there is none."""
        self._drop_dead()
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None:
            raise ApiError(404, f"sandbox {sandbox_id!r} not found")
        return sandbox

    async def create(self, settings: SandboxSettings, seconds: int) -> Sandbox:
        """Creates a sandbox from `settings.template`, an image or a snapshot, with a timeout of `seconds`.
        Raises ApiError if the template does not exist, or the sandbox's box (container) does not start."""
        kept = self.snapshots.get(settings.template)
        spec = kept.source.spec if kept else await self._templates.spec(settings.template)
        return await self._create(Sandbox(settings, spec), seconds, kept.files if kept else None)

    async def _create(self, sandbox: Sandbox, seconds: int, files: Snapshot | None) -> Sandbox:
        sandbox.box = await self._box(sandbox.spec, files)
        sandbox.started_at = time.time()
        self._sandboxes[sandbox.id] = sandbox
        self._watch(sandbox)
        self.set_end(sandbox, seconds)
        return sandbox

    async def _box(self, spec: BoxSpec, files: Snapshot | None = None) -> Box:
        """Takes a box (container) from the pool, and fills its workspace with the files of the snapshot
        `files` (None: leaves it empty). Raises ApiError if the box does not start."""
        stack = AsyncExitStack()
        try:
            box = await stack.enter_async_context(
                self._server.boxes.lend(spec, within=CREATE_SECONDS)
            )
            if files is not None:
                await box.restore(files)
        except BaseException as error:  # cancellation too: the box must go back
            await wait_shielded(stack.aclose())
            if isinstance(error, NoBoxInTime):
                raise ApiError(429, str(error)) from error
            if isinstance(error, MissingError):
                raise ApiError(404, str(error)) from error
            if isinstance(error, InfrastructureError):  # for instance, the container engine is away
                raise ApiError(503, f"the sandbox did not start: {error}") from error
            if isinstance(error, AirError):
                raise ApiError(500, f"the sandbox did not start: {error}") from error
            raise
        self._leases[box] = stack
        return box

    def set_end(self, sandbox: Sandbox, seconds: float) -> None:
        """Sets a sandbox's timeout to `seconds` from now. At the timeout, the sandbox is paused or ended, as
        the client chose when it created the sandbox."""
        sandbox.set_end(seconds, lambda: self._spawn(self._at_end(sandbox)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work`, which pauses or ends a sandbox, in a new asyncio task. `close` waits for it. The
        set `_ends` also keeps the task alive: the event loop itself holds its tasks only weakly."""
        task = asyncio.create_task(work)
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    async def _at_end(self, sandbox: Sandbox) -> None:
        try:
            if sandbox.settings.pause_at_end:
                await self.pause(sandbox, memory=sandbox.settings.keep_processes)
            else:
                await self.kill(sandbox)
        except Exception as error:  # of any kind: nobody else would end the sandbox
            paused = sandbox.state == "paused"
            if paused and isinstance(error, ApiError):  # by a request that came first
                return
            _LOG.warning("sandbox %s did not end in order: %s", sandbox.id, error)
            if not paused:
                await self.kill(sandbox)

    async def kill(self, sandbox: Sandbox) -> None:
        """Ends a sandbox and all its processes, and deletes its files. The sandbox's box (container) is given
        back to the pool, which removes or resets it in the background."""
        self._sandboxes.pop(sandbox.id, None)
        await wait_shielded(self._end(sandbox))

    async def _end(self, sandbox: Sandbox) -> None:
        sandbox.stop_timer()
        sandbox.dead = True
        files, sandbox.frozen_files = sandbox.frozen_files, None
        try:
            await self._give_back(sandbox)
        finally:
            if files is not None:
                await files.close()

    async def _give_back(self, sandbox: Sandbox) -> None:
        """Kills air's helper programs in a sandbox's box (container), and returns the box to the pool."""
        box, sandbox.box = sandbox.box, None
        try:
            await sandbox.stop_programs()
        finally:
            if box is not None:
                await self._leases.pop(box).aclose()

    def _watch(self, sandbox: Sandbox) -> None:
        """Arranges that a sandbox is removed as soon as its present box (container) ends by itself, so that
        others get the box's place."""
        box = sandbox.box

        async def watch() -> None:
            if isinstance(box, GuestBox):
                await box.wait_until_lost()
                self._drop_dead()

        sandbox.spawn(watch())

    def _drop_dead(self) -> None:
        """Removes the sandboxes whose boxes (containers) have ended, for instance because a process used too
        much memory."""
        for sandbox in list(self._sandboxes.values()):
            if sandbox.box is not None and not getattr(sandbox.box, "alive", True):
                del self._sandboxes[sandbox.id]
                self._spawn(self._end(sandbox))

    async def pause(self, sandbox: Sandbox, *, memory: bool) -> None:
        """Pauses a sandbox. With `memory`, its processes are frozen; otherwise, only the files in its
        workspace are stored, and its box (container) is returned to the pool.

        Raises ApiError if the sandbox is paused already, or if the limit on paused sandboxes or snapshots is
        reached, and SandboxGone if the sandbox was killed meanwhile. After any other error, the sandbox
        continues to run, with its timeout, except in two cases: if its files had been stored before the
        error, it is paused; if storing them failed, its box may have ended.
        """
        async with sandbox.lock:
            if sandbox.state == "paused":
                raise ApiError(409, f"sandbox {sandbox.id} is already paused")
            self._check_room(memory)
            async with sandbox.use() as box:
                sandbox.state, sandbox.paused_with_processes = "paused", memory
                sandbox.stop_timer()
                try:
                    if memory:
                        await box.freeze()
                    else:
                        files = await box.snapshot()
                        if sandbox.dead:
                            await files.close()
                            raise SandboxGone(sandbox.id)
                        sandbox.frozen_files = files
                        await self._give_back(sandbox)
                except BaseException:  # cancellation too: it would stay paused, but not frozen
                    if sandbox.frozen_files is None:
                        sandbox.state = "running"
                        if not sandbox.dead:
                            self.set_end(sandbox, sandbox.seconds_left)
                    raise

    def paused(self) -> tuple[int, int]:
        """Returns two counts: the sandboxes that are paused with their processes, and those that are paused
        with only their files. A sandbox whose files are still being stored counts among the latter."""
        paused = [each for each in self._sandboxes.values() if each.state == "paused"]
        with_processes = sum(each.paused_with_processes for each in paused)
        return with_processes, len(paused) - with_processes

    def _check_room(self, memory: bool) -> None:
        """Raises ApiError if the server can hold no further paused sandbox. With `memory`, checks the limit
        on sandboxes that are paused with their processes; otherwise, the limit on snapshots (stored
        files)."""
        config, (frozen, files) = self._server.config, self.paused()
        if memory and frozen >= config.most_paused:
            raise ApiError(
                429,
                f"{frozen} sandboxes are paused already, and each holds a box: kill one of them, or start "
                "the server with a larger --max-paused",
            )
        kept = files + len(self.snapshots) + self._begun_snapshots
        if not memory and kept >= config.max_snapshots:
            raise ApiError(
                429,
                f"the server keeps {config.max_snapshots} snapshots already: delete one of them, or start "
                "the server with a larger --max-snapshots",
            )

    @contextmanager
    def _storing(self) -> Iterator[None]:
        """Context manager around code that copies a sandbox's files to a snapshot: during the block, this
        snapshot counts towards the server's limit on snapshots, so that concurrent requests cannot exceed the
        limit. Raises ApiError if the limit is reached already."""
        self._check_room(memory=False)
        self._begun_snapshots += 1
        try:
            yield
        finally:
            self._begun_snapshots -= 1

    async def resume(self, sandbox: Sandbox) -> bool:
        """Resumes a paused sandbox. Returns whether the sandbox was paused; if it was not, does nothing.
        Raises SandboxGone if the sandbox was killed meanwhile."""
        async with sandbox.lock:
            if sandbox.state == "running":
                return False
            if (files := sandbox.frozen_files) is not None:
                box = await self._box(sandbox.spec, files)
                if sandbox.dead:
                    await self._leases.pop(box).aclose()
                    raise SandboxGone(sandbox.id)
                sandbox.box, sandbox.frozen_files, sandbox.state = box, None, "running"
                self._watch(sandbox)
                try:
                    await files.close()
                except AirError as error:  # the sandbox runs: its client must not try again
                    _LOG.warning("a copy of sandbox %s stays on the disk: %s", sandbox.id, error)
            elif sandbox.box is not None:
                await sandbox.box.thaw()
            sandbox.state = "running"
            return True

    async def connect(self, sandbox: Sandbox, seconds: int) -> bool:
        """Resumes the sandbox if it is paused. Sets the timeout to `seconds` from now if the sandbox was
        paused, or if less time than that is left. Returns whether the sandbox was paused."""
        resumed = await self.resume(sandbox)
        if resumed or sandbox.seconds_left < seconds:
            self.set_end(sandbox, seconds)
        return resumed

    async def snapshot(self, sandbox: Sandbox, name: str = "") -> KeptSnapshot:
        """Stores a copy of a sandbox's workspace (its files) under a new id and the optional name `name`. New
        sandboxes can be created from it. The sandbox continues to run."""
        with self._storing():
            files = await self._files(sandbox)
        kept = KeptSnapshot("s" + secrets.token_hex(10), name, sandbox, files)
        self.snapshots[kept.id] = kept
        return kept

    async def _files(self, sandbox: Sandbox) -> Snapshot:
        """Copies the workspace (the files) of a running sandbox, and returns the copy. Until it is complete,
        no command can start in the sandbox, and the sandbox cannot be paused or resumed. Raises ApiError if
        the sandbox is paused or the copy cannot be stored, and SandboxGone if its box (container) has
        ended."""
        async with sandbox.lock, sandbox.copying:
            if sandbox.state == "paused":
                raise ApiError(409, f"sandbox {sandbox.id} is paused: connect to it first")
            box = sandbox.running_box
            try:
                return await box.copy()
            except BoxDiedError as error:
                if sandbox.dead or not getattr(box, "alive", True):
                    raise SandboxGone(sandbox.id) from error
                raise ApiError(500, str(error)) from error
            except InfrastructureError as error:  # such as a full disk of this machine
                raise ApiError(500, str(error)) from error

    async def fork(self, sandbox: Sandbox, count: int, seconds: int) -> list[Sandbox | ApiError]:
        """Creates `count` sandboxes with copies of a sandbox's files and a timeout of `seconds`. Returns a
        list with one entry for each: the new sandbox, or the error with which its creation failed. The files
        come from a temporary snapshot. Raises ApiError if the server's limit on snapshots is reached."""
        with self._storing():
            async with await self._files(sandbox) as files:
                return await self._forks(sandbox, count, seconds, files)

    async def _forks(
        self, sandbox: Sandbox, count: int, seconds: int, files: Snapshot
    ) -> list[Sandbox | ApiError]:
        async def one() -> Sandbox | ApiError:
            try:
                return await self._create(Sandbox(sandbox.settings, sandbox.spec), seconds, files)
            except ApiError as error:
                return error
            except Exception as error:  # of any kind: the other forks still need the snapshot
                _LOG.exception("a fork of sandbox %s failed", sandbox.id)
                return ApiError(500, f"the sandbox did not start: {error!r}")

        return await asyncio.gather(*(one() for _ in range(count)))

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Deletes a snapshot (a stored copy of a sandbox's files). Sandboxes that were created from it
        continue to run. Raises ApiError if there is no such snapshot."""
        kept = self.snapshots.pop(snapshot_id, None)
        if kept is None:
            raise ApiError(404, f"template {snapshot_id!r} not found")
        await kept.files.close()

    async def close(self) -> None:
        """Ends all sandboxes, and deletes all snapshots. If that fails for one of them, logs the error and
        continues with the others."""
        ends = [partial(self.kill, sandbox) for sandbox in self._sandboxes.values()]
        ends += [partial(self.delete_snapshot, snapshot_id) for snapshot_id in self.snapshots]
        for end in ends:
            try:
                await end()
            except AirError as error:
                _LOG.warning("a sandbox or a snapshot did not end in order: %s", error)
        if self._ends:
            await asyncio.wait(list(self._ends))
