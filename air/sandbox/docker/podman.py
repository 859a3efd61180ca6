"""What Podman's Docker-compatible socket has to be told otherwise, and what it does not hold.

Rootless Podman runs boxes where nobody may run Docker: `podman system service` under one's own user,
and `DOCKER_HOST` with its socket. Everything else is as with Docker; that Podman 4.3 does this was
tested. Three things it does not hold (`conformance.KNOWN_GAPS` has them by check):

- A limit of memory, CPU or processes holds only where its user has these controllers of cgroup v2
  delegated. Where they do not hold, that is said once; see `held`.
- A folder of a box may hold any number of files, since a tmpfs takes no `nr_inodes` from it.
- Its seccomp profile lets anybody make a user namespace. That gains no privilege outside of it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docker import APIClient

_READ_ONLY = "ro,nosuid,nodev,noexec,size=4k,notmpcopyup"


@cache
def answers(engine: APIClient) -> bool:
    """Whether it is Podman that answers on this connection. Blocks."""
    parts = engine.version().get("Components") or []
    return any("podman" in str(part.get("Name")).lower() for part in parts)


def adapted(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `create_container` for Podman, from those for Docker."""
    host, user = arguments["host_config"], str(arguments.get("user", "")).partition(":")[0]
    tmpfs = {folder: _options(options, user) for folder, options in host.get("Tmpfs", {}).items()}
    if host.get("ReadonlyRootfs"):  # it would make these writable, and unbounded
        tmpfs = dict.fromkeys(("/run", "/var/tmp"), _READ_ONLY) | tmpfs
    return arguments | {"host_config": host | {"Tmpfs": tmpfs}}


def _options(docker: str, user: str) -> str:
    """Options of a tmpfs, empty as Docker's are. Its owner cannot be named, but can be the user of
    the container (`U`)."""
    given = dict(option.partition("=")[::2] for option in docker.split(","))
    if given.pop("uid", user) == user:
        given["U"] = ""
    for unknown in ("gid", "nr_inodes"):
        given.pop(unknown, None)
    given["notmpcopyup"] = ""
    return ",".join(f"{key}={value}" if value else key for key, value in given.items())
