"""Adapts requests that create containers, so that Podman accepts them. Podman serves Docker's API on a
socket. Tested with Podman 4.3.

Podman does not enforce some limits that Docker enforces (`air.sandbox.conformance.KNOWN_GAPS`). It does not
limit the number of files in a folder, and does not forbid user namespaces. It limits memory, CPU and
processes only if the user may use these controllers of cgroup v2 (they are delegated to the user).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docker import APIClient

_READ_ONLY = "ro,nosuid,nodev,noexec,size=4k,notmpcopyup"


@cache
def answers(engine: APIClient) -> bool:
    """Whether the container engine behind the connection `engine` is Podman. The first call asks the engine,
    which blocks; the result is cached."""
    return is_podman(engine.version())


def is_podman(version: Mapping[str, Any]) -> bool:
    """Whether a container engine is Podman. `version` is the engine's answer to the request `version`."""
    parts = version.get("Components") or []
    return any("podman" in str(part.get("Name")).lower() for part in parts)


def adapted(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns arguments of the Docker SDK's `create_container`, changed so that Podman accepts them."""
    host, user = arguments["host_config"], str(arguments.get("user", "")).partition(":")[0]
    folders = {name: text for name, text in host.get("Tmpfs", {}).items() if name != "/dev/shm"}
    tmpfs = {folder: _options(options, user) for folder, options in folders.items()}
    if host.get("ReadonlyRootfs"):  # Podman would make these folders writable, without a limit
        tmpfs = dict.fromkeys(("/run", "/var/tmp"), _READ_ONLY) | tmpfs
    arguments = {key: value for key, value in arguments.items() if key != "network_disabled"}
    added = [*(host.get("CapAdd") or []), *(["CHOWN"] if folders else [])]
    return arguments | {"host_config": host | {"Tmpfs": tmpfs, "CapAdd": added}}


def _options(docker: str, user: str) -> str:
    """Translates `docker`, the mount options of a tmpfs folder in Docker's form, into Podman's form, and
    returns them. `user` is the id of the container's user.

    Podman cannot set a folder's owner by user id. Its option `U` makes the container's user the owner. If
    another user must own the folder, the guest (air's program in the box) changes the owner when it starts.
    """
    options = dict(option.partition("=")[::2] for option in docker.split(","))
    if options.pop("uid", user) == user:
        options["U"] = ""
    for unknown in ("gid", "nr_inodes"):
        options.pop(unknown, None)
    options["notmpcopyup"] = ""
    return ",".join(f"{key}={value}" if value else key for key, value in options.items())
