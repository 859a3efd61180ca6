"""What only tests ask an engine: the Docker SDK's own client, and the boxes of one run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import docker

from air.sandbox.contract import ownership
from air.sandbox.contract.box import BoxSpec
from air.sandbox.docker import engine
from air.sandbox.docker.box import DockerBox
from air.sandbox.docker.container_spec import GuestPython


@contextlib.contextmanager
def docker_client() -> Iterator[docker.DockerClient]:
    """A client of the engine that `DOCKER_HOST` names, closed at the end."""
    with contextlib.closing(docker.from_env(timeout=300)) as client:
        yield client


def boxes_of(run: str) -> list[dict[str, Any]]:
    """The engine's summaries of the boxes of `run`, keepers included."""
    return [
        box for box in engine.containers_of_air() if box["Labels"].get(ownership.RUN_LABEL) == run
    ]


async def box_with_python(spec: BoxSpec, run: str, python: GuestPython | None) -> DockerBox:
    """Starts a box whose guest runs in this Python, whatever was found out about the image's own."""
    image = await engine.image_of_box(spec.image)
    return await DockerBox._begin(spec, run, None, python, image)
