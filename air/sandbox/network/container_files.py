"""Lets the container engine start a box without setting up its network, which makes the start faster.

For a container without a network, Docker makes a network namespace, which has nothing but a loopback
interface, and the files `/etc/hosts` and `/etc/resolv.conf`. In Docker 20.10, this takes half of the CPU time
that the engine needs for a box. If Docker is told to leave it out, runc makes an equal namespace in almost no
time, and air mounts files of its own there, read-only. Each box has its own: on a file that boxes share, one
could see the locks of another. The files are removed when the box has started; the mounts keep them.

Not done:
- on Podman, and with other runtimes than runc, which may not start the loopback interface;
- if the engine is on another machine, or uses SELinux or other user ids: then a box could not read the files;
- in open boxes, whose commands may write these files.

A box can see in its table of mounts where air's cache is.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from air import paths
from air.errors import MissingError
from air.sandbox.contract.box import BoxSpec
from air.sandbox.docker import oci_runtime, podman

if TYPE_CHECKING:
    from docker.types import Mount

FILES = {
    "/etc/hosts": "127.0.0.1\tlocalhost\n::1\tip6-localhost ip6-loopback\n",
    "/etc/resolv.conf": (
        "# There is no network. Without this line, programs would ask a name server at 127.0.0.1.\n"
        "nameserver 192.0.2.1\n"
    ),
}
"""The files of a box whose network the engine does not set up. The name server's address is one that no
machine may have, so programs learn at once that there is no network."""
_FOLDER = "network"
"""The name of the folder in air's cache that contains a folder with these files for each box that starts."""
_LEFT_SECONDS = 3600
"""The age from which on such a folder was left behind by a process that was killed."""
_UNABLE: set[str] = set()
"""The container engines (values of `DOCKER_HOST`) that cannot mount air's files, as this process has learned
from failed starts of boxes."""


@asynccontextmanager
async def mounts(spec: BoxSpec, box: str) -> AsyncIterator[list[Mount]]:
    """Context manager around the start of the box with the id `box`: the mounts that the box needs so that
    the engine need not set up its network. The list is empty if the engine must set it up. Raises air's
    errors if the engine does not answer."""
    from air.sandbox.docker import engine

    host = os.environ.get("DOCKER_HOST", "")
    here = not host or host.startswith("unix://")
    if spec.open or not here or host in _UNABLE or oci_runtime.name() not in ("", "runc"):
        yield []
        return
    if not (folder := await engine.in_thread(lambda: _write(box) if _is_able(host) else None)):
        yield []
        return
    try:
        yield _mounts(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # what is left is removed by a later process


def learn_from_failed_start(failure: str) -> bool:
    """Learns from `failure`, the error text of a box's failed start, whether the engine cannot mount air's
    files, for example because its socket leads to another machine.

    If so, remembers this and returns true: the caller should start the box again, with the mounts that
    `mounts` then returns. Returns false if the start failed for another reason, or if this was already known.
    """
    host = os.environ.get("DOCKER_HOST", "")
    named = f"/{_FOLDER}/" in failure or any(target in failure for target in FILES)
    if host in _UNABLE or not named:
        return False
    _UNABLE.add(host)
    return True


@cache
def _is_able(_host: str) -> bool:
    """Whether the container engine is a Docker that runs runc by default, and that shows a file of this
    machine to a container as it is. Blocks."""
    from air.sandbox.docker import engine

    with engine.translating("describing itself"):
        client = engine.client()
        info = client.info()
        options = " ".join(info.get("SecurityOptions") or [])
        as_they_are = "selinux" not in options and "userns" not in options
        return not podman.answers(client) and info.get("DefaultRuntime") == "runc" and as_they_are


def _write(box: str) -> Path | None:
    """Writes the files of a box. Returns their folder, or None if they cannot be written. Removes what killed
    processes left."""
    try:
        home = paths.cache().absolute() / _FOLDER
        _remove_left(home)
        folder = home / box
        folder.mkdir(parents=True)
        for target in FILES:
            path = folder / Path(target).name
            path.write_text(FILES[target], encoding="utf-8")
            path.chmod(0o644)  # whatever the umask is
    except (MissingError, OSError):
        return None
    return folder


@cache
def _remove_left(home: Path) -> None:
    for folder in home.iterdir() if home.is_dir() else ():
        if time.time() - folder.stat().st_mtime > _LEFT_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)  # another process may remove it, too


def _mounts(folder: Path) -> list[Mount]:
    from docker.types import Mount

    return [
        Mount(target, str(folder / Path(target).name), type="bind", read_only=True)
        for target in FILES
    ]
