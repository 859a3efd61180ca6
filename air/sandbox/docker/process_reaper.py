"""What ends commands in a box without a guest: a shell in it that looks for processes and kills them.

The shell (`shell.HAND`) runs as the commands do, so they can kill it; then another one is started. It
never forks, so a box in which no process can be started any more can still be cleared, as long as the
shell was left alone. What is written into its output by others is ignored; a command that reads its
orders, and answers in its place, could outlive its own timeout, until the box ends.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass

from air.errors import BoxDiedError
from air.sandbox.docker import engine, posix_shell
from air.sandbox.docker.exec_stream import OUT, Stream, refused

ROUNDS, QUIET = 30, 6
ASK_SECONDS = 10.0
OPEN_SECONDS = 20.0
"""How long a new shell is tried for, where the processes of the box leave no room for one."""


@dataclass(frozen=True)
class Seen:
    """One process of a box."""

    state: str
    """The kernel's letter; `X` also for one that was gone before it was looked at."""
    parent: int
    group: int
    session: int
    whose: str
    """`own`: it has the mark of the command in question; `other`: of another one; or `none`."""

    @property
    def is_gone(self) -> bool:
        """Whether it has ended, and is none of the box's own."""
        return self.state in ("X", "Z") and self.session != 1


def tree(table: dict[int, Seen]) -> set[int]:
    """The live processes of a command: those with its mark, orphans without any, and what descends
    from them. The session of process 1 is the box's own; parent 0 is the engine, which starts things."""
    ended = {pid for pid, seen in table.items() if seen.is_gone}
    parents = {0, *table} - {1} - ended
    found = {
        pid
        for pid, seen in table.items()
        if seen.whose == "own"
        or (seen.parent not in parents and seen.whose == "none" and seen.session != 1)
    }
    size = 0
    while size != len(found):
        size = len(found)
        found |= {pid for pid, seen in table.items() if seen.parent in found}
    return {pid for pid in found if table[pid].state not in ("Z", "X")}


class Hand:
    """The shell that waits for orders; one order at a time.

    Args:
        box: the part of a command's mark that all commands of the box share.
        user: whom commands run as.
    """

    def __init__(self, box: str, user: str) -> None:
        self.shell = ""
        """`bash` where the image has it, else `sh`."""
        self.missing: list[str] = []
        """What of `shell.NEEDED` the image lacks."""
        self._box, self._user = box, user
        self._container = ""
        self._pid = 0
        self._stream: Stream | None = None
        self._closed = False
        self._heard = b""
        self._lock = asyncio.Lock()

    async def open(self, container: str) -> None:
        """Starts the shell.

        Raises:
            BoxDiedError: it cannot be started, or the box is gone.
        """
        self._container = container
        async with self._lock:
            await self._reopen()

    async def end(self, command: int) -> bool:
        """Kills all that descends from a command, until nothing new of it turns up. Where that does
        not come to an end, it kills every command of the box, and says so by True.

        Raises:
            BoxDiedError: the box is gone, or nothing can be done in it.
        """
        killed: set[int] = set()
        quiet = 0
        for _ in range(ROUNDS):
            table = await self._scan(command)
            fresh = tree(table) - killed
            quiet = 0 if fresh else quiet + 1
            # What forks and leaves is gone whenever it is looked at: look again, where something is.
            if quiet == QUIET or (quiet and not any(seen.is_gone for seen in table.values())):
                return False
            if groups := {seen.group for seen in table.values() if seen.whose == "own"} - {0}:
                await self._ask(f"groups {' '.join(map(str, groups))}")
            if fresh:
                await self._ask(f"kill {' '.join(map(str, fresh))}")
            killed |= fresh
        await self._ask("all")
        return True

    async def clear(self) -> None:
        """Kills every process but the box's first ones.

        Raises:
            BoxDiedError: the box is gone, or its processes do not end.
        """
        for _ in range(ROUNDS):
            await self._ask("all")
            table = await self._scan(0)
            if all(
                s.session == 1 or pid == self._pid or s.state in "ZX" for pid, s in table.items()
            ):
                return
        raise BoxDiedError("its processes do not end")

    async def own(self) -> int:
        """How many processes the box has for itself now: its first one's session, and this shell.

        Raises:
            BoxDiedError: the box is gone.
        """
        table = await self._scan(0)
        return 1 + sum(seen.session == 1 and seen.state != "X" for seen in table.values())

    async def answers(self) -> None:
        """Returns when the box has answered; raises BoxDiedError where it is gone."""
        await self._ask("hello")

    async def close(self) -> None:
        """Lets go of the shell, which ends, for good."""
        self._closed = True
        await self._drop()

    async def _drop(self) -> None:
        if self._stream is not None:
            stream, self._stream = self._stream, None
            await stream.close()

    async def _scan(self, command: int) -> dict[int, Seen]:
        table = {}
        for row in await self._ask(f"scan {self._box} {command}"):
            pid, state, parent, group, session, whose = row.split()
            table[int(pid)] = Seen(state, int(parent), int(group), int(session), whose)
        return table

    async def _ask(self, order: str) -> list[str]:
        """Gives an order; where the shell is dead or slow, gives it once more to a new one, which is
        told first to kill everything if the old one was slow."""
        async with self._lock:
            slow = False
            for attempt in range(2):
                if attempt:
                    await self._reopen()
                try:
                    async with asyncio.timeout(ASK_SECONDS):
                        if slow:
                            await self._told("all")
                        if (rows := await self._told(order)) is not None:
                            return rows
                except TimeoutError:
                    slow = True
                except asyncio.CancelledError:
                    await self._drop()  # the rest of its answer would be taken for the next one
                    raise
            raise BoxDiedError("what ends its commands does not answer")

    async def _told(self, order: str) -> list[str] | None:
        """The rows of an answer; None where the shell is dead."""
        if self._stream is None:
            return None
        tag, rows = secrets.token_hex(8), list[str]()
        try:
            await self._stream.write(f"{tag} {order}\n".encode())
        except OSError:
            return None
        while (row := await self._row()) != f"{tag} .":
            if row is None:
                return None
            if row.startswith(f"{tag} "):
                rows.append(row.removeprefix(f"{tag} "))
        return rows

    async def _row(self) -> str | None:
        while b"\n" not in self._heard:
            if self._stream is None:  # closed meanwhile
                return None
            kind, data = await self._stream.piece()
            if not data:
                return None
            self._heard += data if kind == OUT else b""
        row, _, self._heard = self._heard.partition(b"\n")
        return row.decode("ascii", "replace")

    async def _reopen(self) -> None:
        """Starts a new shell in place of the old one; raises BoxDiedError where that fails."""
        await self._drop()
        give_up = time.monotonic() + OPEN_SECONDS
        argv, said = ["sh", "-c", posix_shell.HAND], "nothing"
        while not self._closed:
            try:
                self._stream = await Stream.open(
                    self._container, argv, user=self._user, env={}, stdin=True
                )
            except engine.FOREIGN as error:
                if refused(error) is None:
                    raise BoxDiedError(f"it takes no command: {error}") from error
            else:
                said = await self._greeting()
                pid, _, rest = said.partition(" ")
                if pid.isdigit() and rest and not self._closed:
                    self._pid, (self.shell, *self.missing) = int(pid), rest.split()
                    return
                await self._drop()
            if time.monotonic() > give_up:
                raise BoxDiedError(f"it takes no command: {said}")
            await asyncio.sleep(0.1)
        raise BoxDiedError("it is closed")

    async def _greeting(self) -> str:
        self._heard = b""
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                return await self._row() or "nothing"
        except TimeoutError:
            return "nothing"
