"""Defines `Host`: files, ports and processes of this machine that no agent may reach from its box
(container). The attacks of the integrity battery, which are scripted agents, try to reach them."""

from __future__ import annotations

import asyncio
import os
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from air import paths


@dataclass(frozen=True)
class Host:
    """Things on this machine, outside the box, that attacks (scripted agents) try to reach. Attacks are told
    their paths and addresses, because a real agent could guess them."""

    cache: Path
    """air's cache folder. It contains prepared data, labels, and the secret from which the splits of the data
    are computed."""
    records: Path
    """The folder for trajectories, the records of episodes."""
    secret: Path
    """A file that every user of the machine may read; its text is `word`."""
    word: str
    """A secret word, new for each battery (series of attacks). The servers on `port` and `socket` send it to
    every client that connects, so that an attack which reads it has reached the machine."""
    pid: int
    """The process id of the battery (air's runner of attacks), which is this process."""
    started: int
    """When the battery's process started, in clock ticks since the machine booted. The start time
    distinguishes the battery's process from the processes of a box."""
    port: int
    """A TCP port, open at every address of the machine, on which this process sends `word`."""
    socket: str
    """The name of an abstract Unix socket on which this process sends `word`."""

    @staticmethod
    @asynccontextmanager
    async def open(records: Path) -> AsyncIterator[Host]:
        """Async context manager: yields a new `Host`. Writes the file `secret`, and listens on `port` and
        `socket` while the block runs. `records` is the folder for trajectories, the records of episodes."""
        word = f"greeting-{uuid.uuid4().hex}"

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(f"{word}\n".encode())
            writer.close()

        with tempfile.TemporaryDirectory(prefix="air-host-") as folder:
            secret = Path(folder) / "secret"
            await asyncio.to_thread(_write, secret, word)
            name = f"air-{uuid.uuid4().hex}"
            tcp = await asyncio.start_server(greet, "0.0.0.0", 0)
            unix = await asyncio.start_unix_server(greet, f"\0{name}")
            async with tcp, unix:
                port = tcp.sockets[0].getsockname()[1]
                yield Host(paths.cache(), records, secret, word, os.getpid(), started(), port, name)


def started() -> int:
    """Returns when this process started, in clock ticks since the machine booted."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


def _write(file: Path, text: str) -> None:
    file.parent.chmod(0o755)
    file.write_text(text)
    file.chmod(0o644)
