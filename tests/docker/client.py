"""The Docker SDK's own client, for what only tests do: to list, build, save and run images."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import docker


@contextlib.contextmanager
def docker_client() -> Iterator[docker.DockerClient]:
    """A client of the engine that `DOCKER_HOST` names, closed at the end."""
    with contextlib.closing(docker.from_env(timeout=300)) as client:
        yield client
