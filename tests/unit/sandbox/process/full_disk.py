"""Takes files out of a box on a machine whose disk is full: a small file system in memory, which only this
program sees, holds the temporary files. Only root may mount it.

    python -m tests.unit.sandbox.process.full_disk PROVIDER copy|get

prints the type and the text of the error. Then it frees the disk, tries again, and prints the names of the
files that it has now.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from air.errors import AirError
from air.sandbox import open_box
from air.sandbox.contract.box import Box, BoxSpec

MOUNT = 'mount -t tmpfs -o size=16m tmpfs "$TMPDIR" && exec "$0" "$@"'


def played_on_a_full_disk(provider: str, operation: str, folder: Path) -> list[str]:
    """The lines that this program prints. `folder` becomes the folder of temporary files."""
    program = [sys.executable, "-m", "tests.unit.sandbox.process.full_disk", provider, operation]
    argv = ["unshare", "--mount", "sh", "-c", MOUNT, *program]
    env = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.run(
        argv, env=env, stdout=subprocess.PIPE, check=True, text=True, timeout=120
    ).stdout.splitlines()


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            return


async def _copied(box: Box) -> str:
    async with await box.copy() as snapshot, await open_box(box.spec) as other:
        await other.restore(snapshot)
        return (await other.exec("ls", timeout=60)).text.strip()


async def _got(box: Box) -> str:
    folder = Path(tempfile.gettempdir(), "out")
    await box.get("big", folder)
    return " ".join(os.listdir(folder))  # noqa: PTH208 — no Path in a coroutine


async def main(provider: str, operation: str) -> None:
    work = {"copy": _copied, "get": _got}[operation]
    spec = BoxSpec(provider="docker" if provider == "docker" else "process")
    async with await open_box(spec) as box:
        await box.write("big", os.urandom(3 << 20))
        filler = Path(tempfile.gettempdir(), "filler")
        _fill(filler)
        try:
            print(await work(box))
        except (AirError, OSError) as error:
            print(f"{type(error).__name__}: {error}")
        os.unlink(filler)  # noqa: PTH108
        print(await work(box))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
