"""Lets the container engine start a box without setting up its network, which makes the start faster.

For a container without a network, Docker makes a network namespace, which has nothing but a loopback
interface, and the files `/etc/hosts` and `/etc/resolv.conf`. In Docker 20.10, this takes half of the CPU time
that the engine needs for a box. If Docker is told to leave it out, runc makes an equal namespace in almost no
time, and air mounts files of its own there, read-only.

Not done:
- on Podman, and with other runtimes than runc, which may not start the loopback interface;
- if the engine is on another machine, or uses SELinux or other user ids: then a box could not read the files;
- in open boxes, whose commands may write these files.

A box can see in its table of mounts where air's cache is.
"""

from __future__ import annotations

import contextlib
import os
import stat
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
"""The name of the folder in air's cache that contains these files."""
_FOR_ALL = 0o644
_UNABLE: set[str] = set()
"""The container engines (values of `DOCKER_HOST`) that cannot mount air's files, as this process has learned
from failed starts of boxes."""


async def mounts(spec: BoxSpec) -> list[Mount]:
    """Returns the mounts of a box whose network the engine need not set up. Returns an empty list if the
    engine must set it up. Raises air's errors if the engine does not answer."""
    from air.sandbox.docker import engine

    host = os.environ.get("DOCKER_HOST", "")
    here = not host or host.startswith("unix://")
    if spec.open or not here or host in _UNABLE or oci_runtime.name() not in ("", "runc"):
        return []
    return await engine.in_thread(lambda: _mounts() if _is_able(host) else [])


def learn_from_failed_start(failure: str) -> bool:
    """Learns from `failure`, the error text of a box's failed start, whether the engine cannot mount air's
    files, for example because its socket leads to another machine.

    If so, remembers this and returns true: the caller should start the box again, with the mounts that
    `mounts` then returns. Returns false if the start failed for another reason, or if this was already known.
    """
    host = os.environ.get("DOCKER_HOST", "")
    sources = {f"/{_FOLDER}/{Path(target).name}" for target in FILES}
    if host in _UNABLE or not any(name in failure for name in sources | FILES.keys()):
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


def _mounts() -> list[Mount]:
    """Writes air's files if they are not there, and returns their mounts. Returns an empty list if they
    cannot be written."""
    from docker.types import Mount

    try:
        folder = paths.cache().absolute() / _FOLDER
        sources = {target: folder / Path(target).name for target in FILES}
        for target, source in sources.items():
            _write(source, FILES[target])
    except (MissingError, OSError):
        return []
    return [
        Mount(target, str(source), type="bind", read_only=True)
        for target, source in sources.items()
    ]


def _write(path: Path, text: str) -> None:
    """Makes sure that the file at `path` has the content `text` and that everybody may read it."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() == text.encode() and stat.S_IMODE(path.stat().st_mode) == _FOR_ALL:
            return
    paths.write_whole(path, text.encode())
    path.chmod(_FOR_ALL)  # whatever the umask is
