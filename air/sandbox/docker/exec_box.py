"""The Docker box of an image without Python: every command goes through the engine's exec.

It keeps the contract of `Box` with what any image has, a plain `sh` and a few small programs
(`shell.NEEDED`). Compared with a box that has a guest it is slow, some 50 to 100 ms for a command
or a file where the guest takes 2 ms, and it holds less:

- Where the processes of the box leave room for no further one, files cannot be served either.
- A command can cut its own output short, or end it with a status of its choice.
- Each command's own shell bounds its open files and core dumps, where other boxes' guests do.
- A command or an environment that is not UTF-8 is refused, scripts excepted.

The first process is a `sh` of the user root without any capability, which runs nothing but its own
few lines: what runs in the box, as another user, can neither signal nor read it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import posixpath
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from air.aio import to_the_end
from air.errors import BoxDiedError, BoxFileError, BoxStartError, ConfigError
from air.sandbox.contract.box import (
    MAX_OUTPUT,
    WORKSPACE,
    Box,
    BoxSpec,
    BoxUsage,
    Command,
    ExecResult,
)
from air.sandbox.docker import box as docker
from air.sandbox.docker import engine as daemon
from air.sandbox.docker import engine_errors, limit_check, podman, posix_shell
from air.sandbox.docker.box import DockerBox
from air.sandbox.docker.exec_files import Files, pieces
from air.sandbox.docker.exec_stream import Program
from air.sandbox.docker.process_reaper import Hand
from air.sandbox.guest.processes import MARK
from air.sandbox.guest.spawn import ARGUMENT_BYTES
from air.sandbox.ops.command_log import recorded
from air.sandbox.pool.gpu_leases import GpuLease
from air.sandbox.wire.connection import frame
from air.sandbox.wire.guest_box import START_SECONDS, base_env
from air.sandbox.wire.port_relay import Handler

OWN_PROCESSES = 7
"""The most processes that a box has for itself, which come on top of its limit."""
LOOKS = 5
END_SECONDS = 5.0
_ARGUMENT_MAX = 131_071
_LOG = logging.getLogger(__name__)


class ExecBox(DockerBox):
    """A container in which a plain shell stands in for the guest."""

    def __init__(self, spec: BoxSpec, run: str, gpus: GpuLease | None = None) -> None:
        super().__init__(spec, run, gpus)
        self._user = "0:0" if spec.second_user else docker.USER
        self._mark = secrets.token_hex(8)
        self._hand = Hand(self._mark, self._user)
        self._commands = itertools.count(1)
        self._files = Files(self._folders, self._run_program)
        self._frozen = False

    async def _start(self) -> None:
        if self.spec.network:
            raise ConfigError(
                f"image `{self.spec.image}` has no Python 3.8 or later, without which a box reaches "
                "nothing",
                where="network",
                remedy="use an image with Python, or leave `network` empty",
            )
        arguments = docker.container(self.spec, self.id, self._run, self._gpus)
        arguments |= {"user": "0:0", "entrypoint": ["sh", "-c", posix_shell.INIT]}
        arguments["host_config"]["PidsLimit"] += OWN_PROCESSES
        first = frame({"op": "hello"}, b"\n")
        try:
            self._connection = await self._attached.start(arguments, first)
        except daemon.FOREIGN as error:
            if engine_errors.lacks_shell(str(error)):
                raise BoxStartError(
                    f"image `{self.spec.image}` has neither Python 3.8 or later nor `sh`, and a box "
                    "needs one of them"
                ) from error
            raise
        await self._connection.ready(seconds=START_SECONDS)
        if await daemon.in_thread(lambda: podman.answers(daemon.client())):
            await daemon.in_thread(self._give_folders)
        await self._hand.open(self._attached.container)
        if self._hand.missing:
            raise BoxStartError(
                f"image `{self.spec.image}` has no Python 3.8 or later, and without it a box needs "
                f"`{'`, `'.join(self._hand.missing)}`, which the image lacks too"
            )

    def _give_folders(self) -> None:
        """Makes the commands' user the owner of the writable folders, which Podman cannot be told
        when it makes them for a container of another user. Blocks."""
        engine, argv = daemon.client(), ["chown", self._user, *self._folders]
        options = {"user": "0:0", "privileged": True}
        ident = engine.exec_create(self._attached.container, argv, **options)["Id"]
        said = engine.exec_start(ident).decode("utf-8", "replace").strip()
        if engine.exec_inspect(ident)["ExitCode"]:
            raise BoxStartError(f"a box's folders could not be given to its user: {said}")

    def hand_out(self) -> None:
        """Starts the box's time to live."""
        self._lease(self.spec.limits.seconds)

    def _lease(self, seconds: float) -> None:
        self._guest.post({"op": "lease", "id": 0, "seconds": math.ceil(seconds)}, b"\n")

    @recorded
    async def exec(
        self,
        command: Command,
        *,
        timeout: float,  # noqa: ASYNC109 — counted from the moment at which the command begins
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        max_bytes: int = MAX_OUTPUT,
    ) -> ExecResult:
        """Runs one command; see `Box.exec`. A string goes through `sh` where there is no bash."""
        folder = self.path(posixpath.join(WORKSPACE, cwd or ""))
        variables = base_env(self.spec) | dict(env or {})
        try:
            argv = await self._argv(command)
            _sendable(*argv, folder, *variables, *variables.values())
        except (ValueError, BoxFileError) as error:
            return _unable(str(error))
        return await self._run_program(
            argv,
            folder=folder,
            timeout=timeout,
            env=variables,
            stdin=pieces(stdin),
            max_bytes=(max_bytes, max_bytes),
        )

    async def _argv(self, command: Command) -> list[str]:
        """The argument vector; a script too long for one argument becomes a file for a moment."""
        if not isinstance(command, str):
            if not command:
                raise ValueError("cannot run the command: it is empty")
            if any(len(os.fsencode(part)) > _ARGUMENT_MAX for part in command):
                raise ValueError(f"cannot run {command[0]!r}: Argument list too long")
            return list(command)
        script = os.fsencode(command)
        if len(script) < ARGUMENT_BYTES and _is_text(script):
            return [self._hand.shell, "-c", command]
        path = f"/tmp/.air-{secrets.token_hex(8)}"
        await self.write(path, script, mode=0o600)
        return ["sh", "-c", posix_shell.SCRIPT, "air", path, self._hand.shell]

    async def _run_program(
        self,
        argv: list[str],
        *,
        folder: str,
        timeout: float,  # noqa: ASYNC109 — see `exec`
        env: Mapping[str, str],
        stdin: Iterable[bytes],
        max_bytes: tuple[int, int],
    ) -> ExecResult:
        if self._frozen:
            raise BoxDiedError(f"box {self.id}: it is frozen")
        if not self.alive:
            raise await self._died("it is gone")
        ident = next(self._commands)
        starting = asyncio.ensure_future(
            Program.start(
                self._attached.container,
                argv,
                folder=folder,
                user=self._user,
                env={**env, MARK: f"{self._mark}-{ident}."},
                stdin=stdin,
                max_bytes=max_bytes,
            )
        )
        try:
            program = await asyncio.shield(starting)
        except asyncio.CancelledError:
            await to_the_end(self._abandon(await to_the_end(starting), ident))
            raise
        except BoxDiedError as error:
            raise await self._died(str(error)) from error
        try:
            return await self._played(program, ident, timeout)
        except asyncio.CancelledError:
            await to_the_end(self._abandon(program, ident))
            raise
        finally:
            await program.close()

    async def _played(self, program: Program, ident: int, seconds: float) -> ExecResult:
        """Waits for a program to its end, or to the end of its time, and says what became of it."""
        late = not await _within(program.begun, START_SECONDS)
        timed_out = late or not await _within(program.over, seconds)
        try:
            if timed_out:
                await self._end_command(ident)
                await _within(program.over, END_SECONDS)
            status = 137 if timed_out else program.status
            if status is None:  # its stream is over, and did not say so: is that the box's end?
                await self._hand.answers()
                status = await self._exit_code(program)
        except BoxDiedError as error:
            raise await self._died(str(error)) from error
        if late:
            return _unable(f"cannot start a command: it did not begin in {START_SECONDS:.0f} s")
        if not timed_out and not program.seconds:
            return _unable(f"cannot start a command: {program.refusal}")
        outputs = program.stdout.output, program.stderr.output
        return ExecResult(
            code=status,
            stdout=outputs[0].bytes(),
            stderr=outputs[1].bytes(),
            timed_out=timed_out,
            truncated=any(output.cut for output in outputs),
            seconds=program.seconds,
        )

    async def _exit_code(self, program: Program) -> int:
        """The engine's word on a program whose wrapper did not live to tell its end."""
        if program.stream is None:
            return 126
        ident = program.stream.exec
        with daemon.translating(self.id):
            found = await daemon.in_thread(lambda: daemon.client().exec_inspect(ident))
        return 137 if found["ExitCode"] is None else int(found["ExitCode"])

    async def _end_command(self, ident: int) -> None:
        """Ends a command and all that descends from it."""
        if await self._hand.end(ident) and self.spec.second_user:
            self._lease(self.spec.limits.seconds)  # what counted the time was killed with the rest

    async def _abandon(self, program: Program, ident: int) -> None:
        """Ends a command that nobody waits for any more."""
        try:
            await _within(program.begun, START_SECONDS)
            await self._end_command(ident)
        except BoxDiedError as error:
            _LOG.info("box %s ended before its cancelled command: %s", self.id, error)
        finally:
            await program.close()

    async def _died(self, why: str) -> BoxDiedError:
        """The error that says why the box is gone; what the box itself said goes before `why`."""
        for _ in range(50):
            if not self.alive:
                break
            await asyncio.sleep(0.02)
        self._guest.lose(why)
        return BoxDiedError(f"box {self.id}: {self._guest.reason}")

    async def forward(self, port: int, target: Handler | tuple[str, int]) -> int:
        """Refused: nothing in it could listen; see `Box.forward`."""
        return await Box.forward(self, port, target)

    async def stats(self) -> BoxUsage:
        """What the box uses now, as the engine counts it; see `Box.stats`."""
        with daemon.translating(self.id):
            told, own = await self._counted()
        memory, cpu = told.get("memory_stats", {}), told.get("cpu_stats")
        detail, tasks = memory.get("stats", {}), told.get("pids_stats", {}).get("current")
        dropped = detail.get("total_inactive_file", detail.get("inactive_file", 0))
        room = await self.exec(["df", "-Pk", WORKSPACE], timeout=START_SECONDS)
        total, used = map(int, room.stdout.split()[-5:-3]) if room.ok else (None, None)
        return BoxUsage(
            memory_bytes=memory["usage"] - dropped if "usage" in memory else None,
            memory_limit_bytes=memory.get("limit"),
            cpu_seconds=None if cpu is None else cpu["cpu_usage"]["total_usage"] / 1e9,
            processes=None if tasks is None else max(0, tasks - own),
            workspace_bytes=used if used is None else used << 10,
            workspace_limit_bytes=total if total is None else total << 10,
        )

    async def _counted(self) -> tuple[dict[str, Any], int]:
        """What the engine counts, and how many of these processes are the box's own: some of them come
        and go, so their number is to be the same before and after."""
        for _ in range(LOOKS):
            own = await self._hand.own()
            told = await daemon.in_thread(self._told)
            if own == await self._hand.own():
                break
        return told, own

    def _told(self) -> dict[str, Any]:
        """What the engine counts; nothing where the box has no control group of its own, since what is
        counted then is of others, too. Blocks."""
        engine, name = daemon.client(), self._attached.container
        if {"memory", "processes"} <= set(limit_check.unheld(engine.inspect_container(name))):
            return {}
        counted: dict[str, Any] = engine.stats(name, stream=False, one_shot=True)
        return counted

    # Files

    async def read(self, path: str, *, max_bytes: int = 16_000_000) -> bytes:
        """The bytes of a regular file; see `Box.read`."""
        return await self._files.read(path, max_bytes=max_bytes)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Writes a file; see `Box.write`."""
        await self._files.write(path, data, mode)

    async def put(self, source: Path, dest: str = ".") -> None:
        """Copies a file or a folder's contents in; see `Box.put`. A file goes into `dest` where
        that is a folder, and becomes `dest` where it is not."""
        await self._files.put(source, dest)

    async def get(self, path: str, dest: Path, *, max_bytes: int = 64_000_000) -> None:
        """Copies a file or a folder's contents out; see `Box.get`. Nothing is written if refused."""
        await self._files.get(path, dest, max_bytes=max_bytes)

    # Snapshots

    async def _freeze(self) -> None:
        self._frozen = True
        try:
            await self._hand.clear()
        except BoxDiedError as error:
            raise await self._died(str(error)) from error

    async def _reroot(self) -> None:
        """A path is looked up anew by every program."""

    async def _close(self) -> None:
        await self._hand.close()
        await super()._close()


async def _within(event: asyncio.Event, seconds: float) -> bool:
    """Whether an event comes within so many seconds."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


def _unable(why: str) -> ExecResult:
    return ExecResult(126, b"", f"air: {why}\n".encode("utf-8", "replace"))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _sendable(*parts: str) -> None:
    """Raises ValueError unless an engine takes every part as it is."""
    for part in parts:
        if "\0" in part:
            raise ValueError("cannot run the command: embedded null byte")
        try:
            part.encode()
        except UnicodeEncodeError:
            what = "cannot run the command: in an image without Python it must be UTF-8"
            raise ValueError(what) from None
