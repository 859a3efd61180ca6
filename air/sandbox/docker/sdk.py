"""A client of the Docker SDK for one piece of work, and its failures as one line.

The `docker` SDK is imported on first use.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from air.errors import BoxStartError, MissingError

if TYPE_CHECKING:
    from docker import DockerClient

Say = Callable[[str], None]
"""Prints one line about what is being done."""
_PING_SECONDS = 10


@contextmanager
def engine(timeout: float = _PING_SECONDS) -> Iterator[DockerClient]:
    """A client of the engine that `DOCKER_HOST` names, closed at the end.

    Args:
        timeout: seconds that the engine may stay silent during one request.

    Raises:
        MissingError: no engine answers.
        BoxStartError: a request inside the block failed.
    """
    import docker
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        knock()
        client = docker.from_env(timeout=timeout)
    except (OSError, DockerException) as error:
        remedy = "run `air setup`"
        raise MissingError(f"no Docker engine answers: {reason(error)}", remedy=remedy) from error
    try:
        yield client
    except (DockerException, RequestException) as error:
        raise BoxStartError(f"Docker: {reason(error)}") from error
    finally:
        client.close()


def knock() -> None:
    """Connects once to the engine's local socket, since the SDK leaks its own where that fails."""
    host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if host.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as knock:
            knock.settimeout(_PING_SECONDS)
            knock.connect(host.removeprefix("unix://"))


def reason(error: BaseException) -> str:
    """An error of the SDK, or of the way to the engine, as one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    text = " ".join(str(getattr(error, "explanation", None) or error).split())
    return text[:300] or type(error).__name__


def blame(tail: list[str], error: str) -> str:
    """One line from the end of a build's or package manager's output, with a remedy if known."""
    text = " ".join(error.split())
    said = [line for line in tail if re.match(r"(E:|Err|W: Failed|.*[Ee]rror|.*No space)", line)]
    line = f"{text} ({said[-1][:300]})" if said else text
    whole = "\n".join([*tail, error])
    if "o space left" in whole or "enough free space" in whole:
        return f"{line} — the disk is full: free some (`docker system df` shows what Docker holds)"
    if re.search("resolv|Could not connect|ertificate|Failed getting release|t download", whole):
        return (
            f"{line} — the package server cannot be reached: set http_proxy/https_proxy, or name a "
            "CA bundle in AIR_CA_BUNDLE"
        )
    return line
