"""Supports the commands `vf-validate` and `vf-debug` of the library `verifiers`, which test a task without a
model: makes a box (air's interface to a place for commands) from a runtime that `verifiers` itself started.

These commands start a runtime (a place where commands run) and call `AirTask`, which copies the task's files
into it. The command's flags determine the runtime's image, user and network, so it may differ from air's own
boxes. Graders still run in boxes of air.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import posixpath
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import verifiers.v1 as vf
from verifiers.v1.errors import SandboxError
from verifiers.v1.runtimes import ProgramResult, Runtime

from air.env.config import AirTasksetConfig, ResearchEnvConfig
from air.env.research_episode import ResearchEpisode
from air.env.runtimes import archive
from air.errors import BoxDiedError, BoxFileError, ConfigError, UsageError, boundary
from air.rewards.delta import DeltaReward
from air.sandbox.contract.box import MAX_OUTPUT, Box, BoxSpec, Command, ExecResult, Snapshot
from air.sandbox.contract.kinds import OF_RUNTIME
from air.sandbox.pool.box_pool import Pool
from air.sandbox.wire import file_transfer
from air.sandbox.wire.guest_box import base_env
from air.sandbox.wire.port_relay import Handler
from air.tasks import check
from air.tasks.grading import Grader
from air.tasks.spec import TaskSpec
from air.trajectories import Recorder
from air.worlds.research.world import ResearchWorld

COMMANDS = ("validate", "debug")
"""The names that the commands `vf-validate` and `vf-debug` of `verifiers` give to the agent in their records
(traces), although no agent plays. `AirTask` recognises these commands by the names."""
LOG = logging.getLogger("verifiers.v1.air")
"""The logger of this module. Its name is below that of `verifiers`' logger, so that `verifiers`' commands
print its messages."""
_COPY_SECONDS = 120.0
_SIZE = '[ -f "$1" ] && [ ! -L "$1" ] && wc -c <"$1"'
_UNPACK = 'mkdir -p "$2" && tar -xf "$1" -C "$2" --no-same-owner; code=$?; rm -f "$1"; exit $code'


class VerifiersBox(Box):
    """A box (air's interface to a place for commands) whose commands run in a runtime of `verifiers`.
    `verifiers` starts and ends the runtime."""

    def __init__(self, runtime: Runtime, spec: BoxSpec, workspace: str) -> None:
        self.id, self.spec, self.workspace = runtime.name, spec, workspace
        self.isolation = "process" if spec.provider == "process" else "container"
        self._runtime = runtime

    @classmethod
    async def over(cls, runtime: Runtime, spec: BoxSpec) -> VerifiersBox:
        """Returns a box whose commands run in `runtime`, which must be running. The runtime's working
        directory becomes the box's workspace. Raises BoxDiedError if the runtime cannot run commands."""
        result = await runtime.run(["pwd"], {})
        if result.exit_code or not result.stdout.startswith("/"):
            raise BoxDiedError(f"{runtime.name} runs no commands: {result.stderr.strip()[:300]}")
        return cls(runtime, spec, result.stdout.strip())

    async def exec(
        self,
        command: Command,
        *,
        timeout: float,  # noqa: ASYNC109 — enforced inside the runtime, where commands outlive callers
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        max_bytes: int = MAX_OUTPUT,
        then_reset: bool = False,
    ) -> ExecResult:
        """Runs a command in the runtime, as `Box.exec` describes. Of standard output and of standard error,
        at most the first `max_bytes` bytes each are returned. Raises ConfigError if `stdin` is not empty,
        because `verifiers`' runtimes give commands no input. `then_reset` has no effect, because this box
        cannot be reset."""
        if stdin:
            raise ConfigError("a runtime of verifiers' own gives its commands no standard input")
        for path, data in (files or {}).items():
            await self.write(path, data)
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        if cwd is not None:
            argv = ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", cwd, *argv]
        began = time.monotonic()
        result = await self._run(
            ["timeout", "-s", "KILL", f"{timeout:f}", *argv], dict(env or {}), timeout
        )
        seconds = time.monotonic() - began
        out, err = result.stdout.encode(), result.stderr.encode()
        return ExecResult(
            code=result.exit_code,
            stdout=out[:max_bytes],
            stderr=err[:max_bytes],
            timed_out=result.exit_code in (-9, 137) and seconds >= timeout,
            truncated=max(len(out), len(err)) > max_bytes,
            seconds=seconds,
        )

    async def _run(self, argv: list[str], env: dict[str, str], seconds: float) -> ProgramResult:
        with boundary(BoxDiedError, self.id, SandboxError, OSError, TimeoutError):
            return await asyncio.wait_for(
                self._runtime.run(argv, base_env(self.spec) | env), seconds + 30.0
            )

    async def read(
        self, path: str, *, max_bytes: int = 16_000_000, user: str | None = None
    ) -> bytes:
        if user is not None:
            raise self._lacks("has one user")
        size = await self._run(["sh", "-c", _SIZE, "sh", path], {}, _COPY_SECONDS)
        if size.exit_code:
            raise BoxFileError(f"{path!r} is absent or not a regular file")
        if int(size.stdout) > max_bytes:
            raise BoxFileError(f"{path!r} is larger than {max_bytes} bytes")
        with boundary(BoxFileError, repr(path), SandboxError, OSError):
            data: bytes = await self._runtime.read(path)
        return data

    async def write(
        self, path: str, data: bytes, *, mode: int = 0o644, user: str | None = None
    ) -> None:
        if user is not None:
            raise self._lacks("has one user")
        with boundary(BoxFileError, repr(path), SandboxError, OSError):
            await self._runtime.write(posixpath.join(self.workspace, path), data)
        await self._done(["chmod", f"{mode:o}", path], path)

    async def put(self, source: Path, dest: str = ".", *, user: str | None = None) -> None:
        if user is not None:
            raise self._lacks("has one user")
        packed = await asyncio.to_thread(_packed, source)
        name = posixpath.join(self.workspace, ".air-put.tar")
        with boundary(BoxFileError, repr(dest), SandboxError, OSError):
            await self._runtime.write(name, packed)
        await self._done(["sh", "-c", _UNPACK, "sh", name, dest], dest)

    async def get(
        self, path: str, dest: Path, *, max_bytes: int = 64_000_000, user: str | None = None
    ) -> None:
        if user is not None:
            raise self._lacks("has one user")
        name = ".air-get.tar"
        await self._done(["tar", "-cf", name, "-C", path, "."], path)
        packed = await self.read(name, max_bytes=max_bytes + archive.MOST_OVERHEAD)
        await self._done(["rm", "-f", name], name)
        entries = archive.unpacked(packed, max_bytes=max_bytes)
        await asyncio.to_thread(file_transfer.lay, entries, dest, posixpath.basename(path))

    async def _done(self, argv: list[str], path: str) -> None:
        result = await self._run(argv, {}, _COPY_SECONDS)
        if result.exit_code:
            raise BoxFileError(f"{path!r}: {result.stderr.strip()[:300]}")

    async def forward(self, port: int, target: Handler | tuple[str, int]) -> int:
        """Always raises ConfigError, because a runtime of `verifiers` cannot relay connections from a port
        inside it to this process."""
        raise ConfigError("a runtime of verifiers' own has no ports that the host answers")

    async def snapshot(self) -> Snapshot:
        """Always raises ConfigError, because the runtimes of `verifiers` cannot make snapshots."""
        raise ConfigError("a runtime of verifiers' own has no snapshots")

    async def restore(self, snapshot: Snapshot) -> None:
        """Always raises ConfigError, because the runtimes of `verifiers` cannot make snapshots."""
        raise ConfigError("a runtime of verifiers' own has no snapshots")

    async def close(self) -> None:
        """Does nothing, because `verifiers` itself ends the runtime."""


def _packed(source: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for entry in file_transfer.below(source):
            member = tarfile.TarInfo(entry.path or ".")
            member.type = tarfile.DIRTYPE if entry.folder else tarfile.REGTYPE
            member.mode = 0o755 if entry.folder else entry.mode
            if entry.folder:
                tar.addfile(member)
                continue
            with file_transfer.opened(entry.source) as file:
                member.size = os.fstat(file.fileno()).st_size
                tar.addfile(member, file)
    return buffer.getvalue()


@dataclass(kw_only=True)
class UnplayedEpisode(ResearchEpisode):
    """An episode of a research task that no agent plays, for `verifiers`' commands `vf-validate` and
    `vf-debug`. Copies the task's files into a runtime that `verifiers` started, and grades what is there.
    `open_episode` makes it."""

    graders: Pool
    """The pool of boxes in which graders run. It is open only while `finish` or `check` runs."""

    async def finish(self) -> None:
        async with self.graders:
            await super().finish()

    async def check(self) -> bool:
        """Runs two reference solutions of the task and logs their scores. They are the first and the last of
        the recorded solutions: the baseline and the best. Returns whether both reach their recorded scores,
        and the best is better than the baseline. Raises MissingError if no solution is recorded."""
        world = self.world
        recorded = check.read_solvers(world.task)
        rows = []
        async with self.graders:
            for solver in dict.fromkeys((recorded[0], recorded[-1])):
                await world.box.exec("find . -mindepth 1 -delete", timeout=_COPY_SECONDS)
                row = await check.play_solver(world.task, solver, world.box, world.grader)
                rows.append(row)
                scores = f"{world.task.metric} val={row.val} test={row.test}"
                LOG.info(
                    "%s: %s: %s %s", row.task, row.solver, scores, row.problem or "as recorded"
                )
        if problem := check.out_of_order(world.task, rows):
            LOG.warning("%s: %s", world.task.id, problem)
        return not problem and not any(row.problem for row in rows)


async def open_episode(spec: TaskSpec, runtime: Runtime) -> UnplayedEpisode:
    """Returns a new episode of the task `spec` in the running runtime `runtime`. The task's files are not
    copied yet; `reset` does that.

    Raises UsageError if tasks cannot use this type of runtime, or if the task needs GPUs.
    """
    kind = runtime.type
    if kind not in OF_RUNTIME:
        raise UsageError(
            f"a task cannot be laid out in a {kind} runtime",
            where="runtime.type",
            remedy=f"--runtime.type docker --runtime.image {spec.image}, or subprocess",
        )
    if spec.gpus or spec.grader.gpus:
        raise UsageError(
            f"task {spec.id} needs {spec.needs()}, which verifiers' own runtimes do not lease",
            remedy=f"play its solvers with `air tasks check {spec.id}`",
        )
    image = getattr(runtime.config, "image", spec.image)
    if image != spec.image:
        LOG.warning("%s is played in image %s; its own is %s", spec.id, image, spec.image)
    provider = OF_RUNTIME[kind].provider
    box = await VerifiersBox.over(runtime, spec.box_spec(provider))
    config = ResearchEnvConfig(
        taskset=AirTasksetConfig(tasks=[spec.id]),
        agent=vf.AgentConfig.model_validate({"runtime": {"type": kind}}),
    )
    graders = Pool(1, nested=True)
    world = ResearchWorld(
        task=spec, box=box, grader=Grader(graders, provider), pay=DeltaReward(spec.reward_scale())
    )
    return UnplayedEpisode(
        id=runtime.name, world=world, recorder=Recorder(None, ""), config=config, graders=graders
    )
