"""What differs with Podman's Docker-compatible socket, and what Podman does not enforce.

Rootless Podman runs boxes for users who may not use Docker: `podman system service` under the user's own
account, and its socket as `DOCKER_HOST`. Everything else is as with Docker; tested with Podman 4.3. Three
things are not enforced (`conformance.KNOWN_GAPS` lists them by check):

- A limit of memory, CPU or processes needs the user to have these controllers of cgroup v2 delegated.
  Without them, one warning says so; see `limit_check`.
- A folder of a box may hold any number of files, since Podman's tmpfs takes no `nr_inodes`.
- Its seccomp profile lets any process make a user namespace. That gains no privilege outside of it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docker import APIClient

_READ_ONLY = "ro,nosuid,nodev,noexec,size=4k,notmpcopyup"


@cache
def answers(engine: APIClient) -> bool:
    """Whether the engine behind this connection is Podman. Blocks."""
    parts = engine.version().get("Components") or []
    return any("podman" in str(part.get("Name")).lower() for part in parts)


def adapted(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `create_container` for Podman, from those for Docker."""
    host, user = arguments["host_config"], str(arguments.get("user", "")).partition(":")[0]
    tmpfs = {folder: _options(options, user) for folder, options in host.get("Tmpfs", {}).items()}
    if host.get("ReadonlyRootfs"):  # Podman would make these writable and unbounded
        tmpfs = dict.fromkeys(("/run", "/var/tmp"), _READ_ONLY) | tmpfs
    return arguments | {"host_config": host | {"Tmpfs": tmpfs}}


def _options(docker: str, user: str) -> str:
    """Podman's options for a tmpfs that starts empty, as Docker's do. They cannot name its owner, only
    make it the user of the container (`U`)."""
    options = dict(option.partition("=")[::2] for option in docker.split(","))
    if options.pop("uid", user) == user:
        options["U"] = ""
    for unknown in ("gid", "nr_inodes"):
        options.pop(unknown, None)
    options["notmpcopyup"] = ""
    return ",".join(f"{key}={value}" if value else key for key, value in options.items())
