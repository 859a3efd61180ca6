"""`DockerBox`, a box that is a container of Docker or Podman.

The container's first process is the guest (air's program in every box), which reads requests from a stream.
When the process that started the box dies, the stream closes, the guest ends, and the container engine
removes the container. In a grader's box (`BoxSpec.second_user`), the workspace belongs to root. The second
user, who runs an agent's code there, can read the workspace, but cannot enter the scratch folders.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from air.aio import wait_shielded
from air.errors import BoxCommandError, BoxDiedError, BoxStartError, ConfigError
from air.sandbox.contract.box import MOST_CHANGES, BoxSpec, Command, Isolation, Snapshot
from air.sandbox.contract.entries import Change
from air.sandbox.contract.running_command import CommandInfo, RunningCommand
from air.sandbox.docker import (
    archived_snapshots,
    engine,
    engine_support,
    oci_runtime,
    portable_python,
    snapshot_service,
)
from air.sandbox.docker.container_spec import (
    MIB,
    GuestPython,
    commands_user,
    container,
    inodes,
    rlimits,
    with_open_box_defaults,
)
from air.sandbox.docker.container_stream import AttachedContainer, close_failed_start
from air.sandbox.docker.engine_errors import TransientStartError
from air.sandbox.images import usage
from air.sandbox.network import container_files, egress_proxy
from air.sandbox.pool.gpu_leases import GpuLease
from air.sandbox.reuse.settings import reuse
from air.sandbox.wire.connection import opening
from air.sandbox.wire.guest_box import BOUNDS, START_SECONDS, GuestBox, base_env
from air.sandbox.writable_layer.changes import changes
from air.sandbox.writable_layer.size_watch import SizeWatch

_MOST_RESTARTS = 3
"""Maximum number of times that air starts a box again after a failed start. It tries again, with other
settings, only if the failure showed that the container engine lacks a capability or cannot mount files of
this machine, or that the image lacks Python."""
_LACKS = re.compile(r"the box has no (user|group) '[^']*'")
"""Matches an error message of the guest: the image lacks the user or group that should run the box's
commands. Such a start is not tried again, because it would fail for the same reason."""


class DockerBox(GuestBox):
    """A box that is a container of Docker or Podman. `open_box` and the box pool start it."""

    isolation: Isolation = "container"

    def __init__(self, spec: BoxSpec, run: str, gpus: GpuLease | None = None) -> None:
        super().__init__(spec)
        self._gpus = gpus or GpuLease()
        self._run = run
        self._attached = AttachedContainer(self.id)
        self._image: Mapping[str, Any] = {}
        self._made: Sequence[str] = ()
        self._real_home = ""
        self._watch: SizeWatch | None = None
        self._snapshot_helper: snapshot_service.SnapshotHelper | None = None

    @classmethod
    async def open(cls, spec: BoxSpec, *, run: str = "", gpus: GpuLease | None = None) -> DockerBox:
        """Starts a box and returns it. If the start fails or is cancelled, no container remains.

        `run` is the id of the run of air, for the container's labels (empty: the run of this process). The
        caller releases the lease `gpus` after closing the box.

        Raises:
            ConfigError: a folder of `BoxSpec.scratch`, or the value of `AIR_OCI_RUNTIME`, cannot be used.
            MissingError: no container engine answers, or the image is not built.
            EngineAwayError: the container engine has answered before, but does not answer now.
            TransientStartError: the start failed for another reason that may be temporary.
            BoxStartError: the start failed, and another attempt would fail too.
        """
        await oci_runtime.check()
        image = await engine.image_of_box(spec.image)
        usage.note_use(image["Id"])
        spec = with_open_box_defaults(spec, image["Config"])
        for _ in range(_MOST_RESTARTS):
            python = await _python(spec, run)
            try:
                return await cls._begin(spec, run, gpus, python, image)
            except BoxStartError as error:
                text = str(error)
                if engine_support.learn_from_failed_start(text):
                    continue
                if container_files.learn_from_failed_start(text):
                    continue
                if not await portable_python.learn_from_failed_start(spec.image, python, text):
                    raise
        return await cls._begin(spec, run, gpus, await _python(spec, run), image)

    @classmethod
    async def _begin(
        cls,
        spec: BoxSpec,
        run: str,
        gpus: GpuLease | None,
        python: GuestPython | None,
        image: Mapping[str, Any],
    ) -> DockerBox:
        box = cls(spec, run, gpus)
        box._image = image["Config"]
        box.image_digest = image["Id"]  # the tag may mean another image by now
        box.image_user = image["Config"].get("User") or "0"
        try:
            await box._start(python)
            await engine_support.warn_once(box._attached.container)
        except BaseException as error:  # cancellation too: leave no container
            await close_failed_start(box)
            if isinstance(error, engine.FOREIGN) and not isinstance(error, TimeoutError):
                raise engine.translated(error, image=spec.image) from error
            if isinstance(error, (TimeoutError, BoxDiedError)):
                text = str(error) or f"its guest was not ready within {START_SECONDS:.0f} s"
                if lacks := _LACKS.search(text):
                    raise BoxStartError(f"image `{spec.image}`: {lacks[0]}") from error
                raise TransientStartError(f"a box did not start: {text}") from error
            raise
        return box

    async def _start(self, python: GuestPython | None) -> None:
        config = {
            "roots": list(self._folders.items()),
            "remove": None,
            "bounds": BOUNDS,
            "rlimits": rlimits(self.spec),
            "user": None if self.spec.open else commands_user(self.spec),
            "open": self.spec.open.user if self.spec.open else None,
            "keep": self.keeps,
            "env": (egress_proxy.environment() if self.spec.network else {}) | base_env(self.spec),
        }
        config |= reuse(self.spec, self._folders)
        async with container_files.mounts(self.spec, self.id) as files:
            arguments = container(self.spec, self.id, self._run, self._gpus, python, files)
            arguments["image"] = self.image_digest
            self._connection = await self._attached.start(arguments, opening(config))
            ready = await self._connection.ready(seconds=START_SECONDS)
        self.shell = ready["shell"]
        self._made, self._real_home = ready.get("made", []), ready.get("workspace", "")
        if self.keeps:
            disk_mb = self.spec.limits.disk_mb
            container_id, lose = self._attached.container, self._connection.lose
            self._watch = SizeWatch(container_id, disk_mb, inodes(disk_mb), lose)
        if self.spec.network:
            await self.forward(egress_proxy.PORT, egress_proxy.Proxy(self.spec.network).serve)

    def _request(
        self,
        command: Command,
        timeout: float | None,
        cwd: str | None,
        env: Mapping[str, str] | None,
    ) -> dict[str, Any]:
        if self._watch:
            self._watch.command_starts()
        return super()._request(command, timeout, cwd, env)

    async def reset(self) -> str:
        if not self.spec.reusable:
            return await super().reset()
        if self._coming_reset:
            header, _ = await self._guest.answer(self._reset_answers)
            self._expect_no_reset()
        else:
            header, _ = await self._guest.request({"op": "reset"})
        return str(header["reason"])

    @property
    def has_own_disk(self) -> bool:
        """Whether the folders of the box have size limits of their own. Those of a box that keeps its image's
        files lie on the container engine's disk."""
        return not self.keeps

    async def outside_cause(self) -> str:
        return await super().outside_cause() or await self._attached.outside_cause()

    async def snapshot(self) -> Snapshot:
        """Ends this box and returns its frozen workspace. No file is copied; see `Box.snapshot`."""
        self._check_mounted()
        with self._ends_after_snapshot():
            await self._guest.request({"op": "freeze"})
            helper = await snapshot_service.hold(self._run)
            try:
                return await helper.take(await self._location())
            except BaseException:  # cancellation too: nobody else releases the helper
                await helper.release()
                raise

    async def copy(self) -> Snapshot:
        """Returns a snapshot: an archive of the workspace. While it is made, all other processes in the box
        are frozen; see `Box.copy`."""
        self._check_mounted()
        self._check_awake()
        await self.freeze()
        try:
            async with self._tar(archived_snapshots.PACK, stdin=False) as packing:
                most = 2 * self.spec.limits.disk_mb * MIB
                return await archived_snapshots.ArchivedSnapshot.of(packing, most)
        finally:
            await wait_shielded(self.thaw())

    @asynccontextmanager
    async def _tar(self, command: list[str], *, stdin: bool) -> AsyncIterator[RunningCommand]:
        """Async context manager: starts `command`, the argument list of a `tar` program, in the workspace,
        and yields a handle to it. Kills the command if the block raises an exception. If `stdin` is true, the
        handle can write to the command's standard input."""
        info = CommandInfo(0, command, self.workspace, {}, "", stdin, False)
        request = self._request(command, archived_snapshots.SECONDS, self.workspace, {})
        request |= {"user": "0"} if self.spec.open else {}
        tar = await self._started.start(request, info, None)
        try:
            yield tar
        except BaseException:  # cancellation too: nobody reads the command's output any more
            with suppress(BoxCommandError, BoxDiedError):  # the command may have ended
                await tar.signal(9)
            raise

    async def restore(self, snapshot: Snapshot) -> None:
        """Replaces the empty workspace by a copy of the workspace in `snapshot`; see `Box.restore`. Mounts
        the copy, or unpacks it if the snapshot is an archive."""
        self._check_mounted()
        if isinstance(snapshot, archived_snapshots.ArchivedSnapshot):
            async with self._tar(archived_snapshots.UNPACK, stdin=True) as unpacking:
                await snapshot.unpack(unpacking)
            return
        if not isinstance(snapshot, snapshot_service.ContainerSnapshot):
            raise ConfigError("a container starts only from a snapshot of a container")
        self._snapshot_helper = snapshot.helper.hold_again()
        disk_mb = self.spec.limits.disk_mb
        await self._snapshot_helper.fork(await self._location(), snapshot, disk_mb=disk_mb)
        await self._guest.request({"op": "reroot"})

    def _check_mounted(self) -> None:
        if self.keeps:
            raise ConfigError(
                f"box {self.id} keeps the files of its image, so it has no snapshots",
                remedy="leave out `keep` of `BoxSpec.open`, or read the changed files",
            )

    @property
    def keeps(self) -> bool:
        """Whether the box's workspace begins with the files that the image has there; see `OpenBox.keep`."""
        return bool(self.spec.open and self.spec.open.keep)

    async def changed(
        self, folder: str | None = None, *, most: int = MOST_CHANGES
    ) -> Sequence[Change]:
        if not self.keeps:
            return await super().changed(folder, most=most)
        self._guest.check()
        if self._watch:
            await self._watch.check()
        place = self._real_home if folder is None else folder
        return await changes(self._attached.container, self._image, place, self._made, most)

    async def _location(self) -> snapshot_service.BoxLocation:
        pid = await self._attached.pid()
        return snapshot_service.BoxLocation(self.id, self._attached.container, pid, self.workspace)

    async def _close(self) -> None:
        if self._watch:
            await self._watch.close()
        try:
            await self._attached.close()
        finally:
            if self._snapshot_helper is not None:
                await self._snapshot_helper.drop_and_release(self.id)


async def _python(spec: BoxSpec, run: str) -> GuestPython | None:
    """Returns the Python interpreter that must be mounted into a box to run the guest. Returns None if the
    guest can run on the image's own Python.

    A box that keeps its image's files always gets a mounted Python, because root in such a box could change
    the image's Python. `run` is the id of the run of air, for container labels. Raises the errors of
    `portable_python.mounted`.
    """
    if spec.open and spec.open.keep:
        return await portable_python.mounted(run)
    return await portable_python.interpreter_of(spec.image, run)
