"""The process box: the same guest as a plain subprocess, for machines without Docker.

It separates runs; it does not isolate them. A command sees the host's files and network, and what
binds it is per process only: memory (data segment), size of one file, no core dumps. `cpus`,
`pids`, `shm_mb`, `network` and the size of the workspace as a whole are not enforced. What is held
as in a container: fresh commands, timeouts that kill whole trees, bounded output, file operations that
follow no link, and an end together with the harness.

Which GPUs are its own is only told to CUDA (`CUDA_VISIBLE_DEVICES`; empty where it has none). The
guest holds their locks too: where the harness is killed, they are free once the guest has ended.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

from air.errors import AirError, BoxStartError, ConfigError
from air.sandbox import cleanup
from air.sandbox.base import SECOND_UID_ENV, WORKSPACE, BoxSpec, Isolation, Snapshot
from air.sandbox.copied import CopiedSnapshot
from air.sandbox.guestbox import SECOND_UID, START_SECONDS, GuestBox, base_env, to_the_end
from air.sandbox.leases import GpuLease
from air.sandbox.protocol import Connection, interpreter, opening

MIB = 1 << 20
END_SECONDS = 10.0
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ProcessBox(GuestBox):
    """A box that is a folder and a subprocess."""

    isolation: Isolation = "process"

    def __init__(self, spec: BoxSpec, gpus: GpuLease | None = None) -> None:
        super().__init__(spec)
        self._gpus = gpus or GpuLease()
        self._root: Path | None = None
        self._process: asyncio.subprocess.Process | None = None

    @classmethod
    async def start(
        cls, spec: BoxSpec, *, run: str = "", gpus: GpuLease | None = None
    ) -> ProcessBox:
        """Starts a box; a process needs no label of its `run`.

        Raises:
            BoxStartError: no folder, no process, or no guest.
        """
        box = cls(spec, gpus)
        try:
            await box._start()
        except BaseException as error:  # cancellation too: nothing is left running
            await box.close()
            if isinstance(error, (OSError, TimeoutError, AirError)):
                raise BoxStartError(f"a process box did not start: {error}") from error
            raise
        return box

    async def _start(self) -> None:
        root = self._make_folders()
        start = asyncio.create_subprocess_exec(
            *interpreter(sys.executable),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={},
            cwd=root,
            start_new_session=True,
            pass_fds=self._gpus.fds,
            limit=MIB,
        )
        spawning = asyncio.ensure_future(start)
        try:
            self._process = await asyncio.shield(spawning)
        except asyncio.CancelledError:
            self._process = await to_the_end(spawning)
            raise
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._connection = Connection(
            self._process.stdout, self._process.stdin, stderr=self._process.stderr, name=self.id
        )
        self._process.stdin.write(opening(self._config()))
        await self._connection.ready(seconds=START_SECONDS)

    def _make_folders(self) -> Path:
        name = cleanup.folder_prefix() + self.id.removeprefix("air-")
        root = Path(tempfile.gettempdir(), name)
        root.mkdir(mode=0o700)
        self._root = root  # only now: what was there before is not ours to remove
        for folder in self._folders:
            (root / folder[1:]).mkdir(parents=True)
            self._folders[folder] = f"{root}{folder}"
        if self._second_user:
            root.chmod(0o711)  # the second user passes through to the workspace, and reads it
            (root / "tmp").chmod(0o1777)
            for folder in self.spec.scratch:
                (root / folder[1:]).chmod(0o700)
        self.workspace = self._folders[WORKSPACE]
        return root

    @property
    def _second_user(self) -> bool:
        return self.spec.second_user and os.geteuid() == 0

    def _config(self) -> dict[str, Any]:
        limits = self.spec.limits
        return {
            "roots": list(self._folders.items()),
            "remove": str(self._root),
            "locks": self._gpus.fds,
            "env": self._env(),
            "rlimits": [
                (resource.RLIMIT_DATA, limits.memory_mb * MIB),
                (resource.RLIMIT_FSIZE, limits.disk_mb * MIB),
                (resource.RLIMIT_CORE, 0),
            ],
        }

    def _env(self) -> dict[str, str]:
        """What commands find: nothing of the harness's own environment, which may hold secrets."""
        env = {
            "PATH": f"{Path(sys.executable).parent}:{_SYSTEM_PATH}",
            "HOME": self._folders[WORKSPACE],
            "TMPDIR": self._folders["/tmp"],
        }
        if "LD_LIBRARY_PATH" in os.environ:  # some interpreters do not start without it
            env["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        if self._second_user:
            env[SECOND_UID_ENV] = str(SECOND_UID)
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(self._gpus.uuids)}  # empty: CUDA sees none
        return env | base_env(self.spec) | gpus

    async def snapshot(self) -> Snapshot:
        """Freezes the workspace, which is copied; see `Box.snapshot`."""
        await self._guest.request({"op": "freeze"})
        snapshot = await CopiedSnapshot.of(Path(self.workspace))
        self._closing = asyncio.create_task(self._end())
        return snapshot

    async def restore(self, snapshot: Snapshot) -> None:
        """Copies a frozen workspace into this box's; see `Box.restore`."""
        if not isinstance(snapshot, CopiedSnapshot):
            raise ConfigError("a process box starts only from a snapshot of a process box")
        await snapshot.fill(Path(self.workspace))

    async def _close(self) -> None:
        if self._process is not None:
            if self._connection is None:  # it waits for its program
                self._process.kill()
            else:
                await self._connection.close()
            try:
                await asyncio.wait_for(self._process.wait(), END_SECONDS)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._root is not None:
            await to_the_end(asyncio.to_thread(cleanup.remove_folder, self._root))
