"""The guest under other Pythons than ours: really, under those that are on this machine, and by what
it uses of the language and the library."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

import pytest

from air.errors import BoxDiedError
from air.sandbox.docker.engine_errors import lacks_python
from air.sandbox.wire import connection
from air.sandbox.wire.connection import Connection, interpreter, opening

VERMIN = "import vermin; vermin.main()"
SOURCES = [connection.GUEST_FOLDER / f"{name}.py" for name in connection.GUEST]


def _pythons(*minors: int) -> list[str]:
    """One interpreter for each of these versions that is here: on PATH, or pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    found = []
    for minor in minors:
        own = sorted(map(str, pyenv.glob(f"versions/3.{minor}.*/bin/python3.{minor}")))
        on_path = shutil.which(f"python3.{minor}")
        candidates = (python for python in [*own, on_path] if python)
        works = (python for python in candidates if _version(python) == f"3.{minor}")
        found += islice(works, 1)  # starts no others: each worker that collects tests pays for them
    return found


def _version(python: str) -> str:
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    argv = [python, "-I", "-c", program]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


@asynccontextmanager
async def _guest(python: str, folder: Path) -> AsyncIterator[Connection]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *interpreter(python), stdin=pipe, stdout=pipe, stderr=pipe, cwd=folder
    )
    assert process.stdin
    assert process.stdout
    guest = Connection(process.stdout, process.stdin, stderr=process.stderr, name=python)
    roots = [("/workspace", str(folder))]
    try:
        config = {"roots": roots, "remove": None, "rlimits": [], "env": {}}
        process.stdin.write(opening(config))
        await guest.ready(seconds=60)
        yield guest
    finally:
        await guest.close()
        await asyncio.wait_for(process.wait(), 60)


async def _pieces(data: bytes, count: int) -> AsyncIterator[tuple[bytes, bool]]:
    """Yields `data` `count` times, each time with whether it is the last."""
    for number in range(count):
        yield data, number == count - 1


@pytest.mark.parametrize("python", _pythons(8, 9, 10, 11, 12, 13, 14) or [sys.executable])
async def test_the_guest_works_under_it(python: str, tmp_path: Path) -> None:
    async with _guest(python, tmp_path) as guest:
        request = {"op": "exec", "max_bytes": 100, "timeout": 60, "env": {}, "cwd": str(tmp_path)}
        header, body = await guest.request({**request, "argv": ["cat"]}, b"in")
        assert (header["code"], body) == (0, b"in")
        script = "setsid sleep 300 & echo $0; sleep 300"
        header, body = await guest.request({**request, "script": script, "timeout": 0.2})
        assert (header["timed_out"], body) == (True, b"bash\n")
        header, body = await guest.request({**request, "script": "printf %s " + "x" * 200_000})
        assert header["truncated"]
        await guest.upload({"path": "a/b", "mode": 0o755}, _pieces(b"1" * 100_000, 3))
        got = [part async for part in guest.stream({"op": "get", "path": "a", "max_bytes": 1 << 20,
                                                    "tree": True})]  # fmt: skip
        assert b"".join(data for _, data in got) == b"1" * 300_000


@pytest.mark.parametrize("python", _pythons(6, 7))
async def test_an_older_one_says_so(python: str, tmp_path: Path) -> None:
    with pytest.raises(BoxDiedError, match=r"Python 3\.[67]\.\d+ is older than 3\.8") as caught:
        async with _guest(python, tmp_path):
            pass
    assert lacks_python(str(caught.value))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_it_uses_nothing_newer_than_3_8(source: Path) -> None:
    argv = [sys.executable, "-c", VERMIN, "--no-tips", "-t=3.8-", str(source)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Minimum required versions: 3\.[0-8]\n", done.stdout), done.stdout
