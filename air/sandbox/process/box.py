"""The process box: a box that consists of ordinary processes instead of a container, for machines without
Docker.

A process box runs the same guest (air's program that runs commands) as a container. Its isolation depends on
the mode in which it gets Linux namespaces; `docs/boxes.md` compares the modes. In mode `root`, for which air
runs as root, the user ids inside the box are host user ids that own nothing on the host. In mode `user`, for
other users, `BoxSpec.second_user` has no effect. In mode `plain`, there are no namespaces, `BoxSpec.network`
is not enforced, and the only limits that are enforced are the time to live, the memory of each process, and
the size of each file. In all modes, the guest also holds the locks of the box's GPUs, so the GPUs become free
only when the guest has ended.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

from air.aio import wait_shielded
from air.errors import (
    BoxCommandError,
    BoxDiedError,
    BoxStartError,
    ConfigError,
    InfrastructureError,
)
from air.sandbox.contract import ownership
from air.sandbox.contract.box import SECOND_UID_ENV, WORKSPACE, BoxSpec, Isolation, Snapshot
from air.sandbox.guest import launcher
from air.sandbox.guest.frames import frame
from air.sandbox.guest.running_commands import STOP_SECONDS
from air.sandbox.guest.users import INSIDE_UID
from air.sandbox.network import egress_proxy
from air.sandbox.pool.gpu_leases import GpuLease
from air.sandbox.process import namespaces as modes
from air.sandbox.process.copy_snapshots import CopiedSnapshot
from air.sandbox.wire.connection import Connection, compiled, interpreter
from air.sandbox.wire.guest_box import MOST_FILES, SECOND_UID, START_SECONDS, GuestBox, base_env

MIB = 1 << 20
END_SECONDS = 2 * STOP_SECONDS + 5.0  # the guest may try to kill all processes twice
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ProcessBox(GuestBox):
    """A box without a container: a folder on the host, and a subprocess of this process that runs the guest
    (air's program that runs the box's commands)."""

    isolation: Isolation = "process"

    def __init__(self, spec: BoxSpec, gpus: GpuLease | None = None) -> None:
        super().__init__(spec)
        self._gpus = gpus or GpuLease()
        self.mode: modes.Mode = "plain"
        self._root: Path | None = None
        self._process: asyncio.subprocess.Process | None = None

    @classmethod
    async def open(
        cls, spec: BoxSpec, *, run: str = "", gpus: GpuLease | None = None
    ) -> ProcessBox:
        """Starts a process box (a box without a container), and returns it when it is ready.

        `run` is ignored, because a process has no labels. The caller must release the lease `gpus` after
        closing the box. Raises ConfigError if a scratch folder, or the value of `AIR_PROCESS_BOX` or
        `AIR_PROCESS_SHOW`, cannot be used. Raises BoxStartError if the box did not start.
        """
        box = cls(spec, gpus)
        try:
            await box._start()
        except BaseException as error:  # cancellation too: nothing is left running
            await box.close()
            if isinstance(error, (OSError, TimeoutError, InfrastructureError)):
                raise BoxStartError(f"a process box did not start: {error}") from error
            raise
        return box

    async def _start(self) -> None:
        self.mode = (await wait_shielded(asyncio.to_thread(modes.detect))).mode
        root = self._make_root()
        frames = self._prepare(root)
        sent = compiled() if self.mode == "plain" else modes.program()
        start = asyncio.create_subprocess_exec(
            # If this process dies, the pipe closes. So a busy machine has time to send the program.
            *interpreter(sys.executable, sent, patience=START_SECONDS),
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
            self._process = await wait_shielded(spawning)
            raise
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._connection = Connection(
            self._process.stdout, self._process.stdin, stderr=self._process.stderr, name=self.id
        )
        self._process.stdin.write(sent + b"".join(map(frame, frames)))
        self.shell = (await self._connection.ready(seconds=START_SECONDS))["shell"]
        if self._proxied:
            await self.forward(egress_proxy.PORT, egress_proxy.Proxy(self.spec.network).serve)

    @property
    def _proxied(self) -> bool:
        """Whether the commands of the box reach the network through the egress proxy. False if the box has no
        allowed hosts. Also false in a box without namespaces (mode `plain`), whose commands use the host's
        network directly."""
        return bool(self.spec.network) and self.mode != "plain"

    def _make_root(self) -> Path:
        root = Path(tempfile.gettempdir(), ownership.folder_prefix() + self.id.removeprefix("air-"))
        root.mkdir(mode=0o700)
        self._root = root  # only now: `_close` must not remove a folder that existed before
        return root

    def _prepare(self, root: Path) -> list[dict[str, Any]]:
        """Prepares the box's folders. Returns the headers of the first messages (frames) to send to the
        subprocess. With namespaces, the first describes the box for the launcher, which puts the box into
        namespaces. The last, or only, header is the configuration of the guest."""
        layouts = []
        if self.mode == "plain":
            self._make_folders(root)
        else:
            self._folders, visible = modes.places(self._folders)
            devices = modes.gpu_devices(self._gpus.uuids)
            laid = modes.layout(self.spec, self.mode, self._folders, visible, str(root), devices)
            layouts = [laid]
        self.workspace = self._folders[WORKSPACE]
        return [*layouts, self._config()]

    def _make_folders(self, root: Path) -> None:
        for folder in self._folders:
            (root / folder[1:]).mkdir(parents=True)
            self._folders[folder] = f"{root}{folder}"
        if self._second_user:
            root.chmod(0o711)  # so that the second user reaches the workspace, which it may read
            (root / "tmp").chmod(0o1777)
            for folder in self.spec.scratch:
                (root / folder[1:]).chmod(0o700)

    @property
    def has_own_disk(self) -> bool:
        """Whether the folders of the box have size limits of their own. Without namespaces (mode `plain`),
        they are ordinary folders on the host's disk, which all boxes and their commands share."""
        return self.mode != "plain"

    @property
    def host_workspace(self) -> Path:
        """The path of the workspace on the host, as long as the box lives.

        With namespaces, this path is a link to a folder. Programs that do not follow such a link need
        `seen_from_host` instead. Never follow links inside of the workspace: the agent may have made them.
        """
        if self.mode == "plain":
            return Path(self.workspace)
        assert self._process is not None
        return Path(f"/proc/{self._process.pid}/fd/{launcher.WORKSPACE_FD}")

    @property
    def seen_from_host(self) -> str:
        return f"{self.host_workspace}/"

    @property
    def _second_user(self) -> bool:
        return self.spec.second_user and os.geteuid() == 0 and self.mode != "user"

    @property
    def _commands_user(self) -> int | None:
        """The user id of commands inside the box. None if the box has only one user: then the guest runs as
        this user, too."""
        if self.mode != "root":
            return None
        return 0 if self._second_user else INSIDE_UID

    def _config(self) -> dict[str, Any]:
        limits, plain = self.spec.limits, self.mode == "plain"
        rlimits = [
            (resource.RLIMIT_DATA, limits.memory_mb * MIB),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_NOFILE, MOST_FILES),
        ]
        if plain:
            rlimits.append((resource.RLIMIT_FSIZE, limits.disk_mb * MIB))
        return {
            "roots": list(self._folders.items()),
            "remove": str(self._root) if plain else None,
            "locks": self._gpus.fds,
            "env": self._env(),
            "rlimits": rlimits,
            "user": self._commands_user,
        }

    def _env(self) -> dict[str, str]:
        """Returns the environment variables of commands. They do not include those of this process, which may
        contain secrets."""
        env = {
            "PATH": f"{Path(sys.executable).parent}:{_SYSTEM_PATH}",
            "HOME": self._folders[WORKSPACE],
            "TMPDIR": self._folders["/tmp"],
        }
        if "LD_LIBRARY_PATH" in os.environ:  # some Python interpreters do not start without it
            env["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        if self._second_user:
            env[SECOND_UID_ENV] = str(SECOND_UID)
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(self._gpus.uuids)}  # empty: CUDA sees no GPU
        proxy = egress_proxy.environment() if self._proxied else {}
        return env | proxy | base_env(self.spec) | gpus

    async def snapshot(self) -> Snapshot:
        """Ends all processes of the box, copies the workspace, ends the box, and returns the copy; see
        `Box.snapshot`."""
        with self._ends_after_snapshot():
            await self._guest.request({"op": "freeze"})
            return await CopiedSnapshot.of(self.host_workspace)

    async def copy(self) -> Snapshot:
        self._check_awake()
        await self.freeze()
        try:
            return await CopiedSnapshot.of(self.host_workspace)
        except BoxDiedError as error:
            if not self.alive:
                raise
            raise BoxCommandError(str(error)) from error  # for instance an unreadable folder
        finally:
            await wait_shielded(self.thaw())

    async def restore(self, snapshot: Snapshot) -> None:
        if not isinstance(snapshot, CopiedSnapshot):
            raise ConfigError("a process box starts only from a snapshot of a process box")
        await snapshot.fill(self.host_workspace)

    async def _close(self) -> None:
        if self._process is not None:
            if self._connection is None:  # the process still waits for the guest's program
                self._process.kill()
            else:
                await self._connection.close()
            try:
                await asyncio.wait_for(self._process.wait(), END_SECONDS)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._root is not None:
            await wait_shielded(asyncio.to_thread(ownership.remove_folder, self._root))


def namespaces() -> str:
    """Returns one line of text for the user: in which mode process boxes (boxes without a container) get
    Linux namespaces on this machine (`root`, `user`, or `plain`: none), and the reason for it."""
    detection = modes.detect()
    return f"{detection.mode}: {detection.reason}"
