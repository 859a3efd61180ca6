"""Gives a box a copy of the base image's Python if the box's own image has no Python, or one older than 3.8.
The guest (air's program in the box) needs Python.

The copy lies in a read-only volume of the container engine. A helper container makes it once for each version
of the base image. The copy has its own loader and libraries, and needs no environment variable, because
commands would inherit such a variable. The first box of an image without Python fails to start; from its
error, air learns that the image has no Python. Then this box, and all later boxes of the image, start with
the copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
import weakref
from typing import Any

from docker.types import Mount

from air.errors import InfrastructureError, MissingError
from air.sandbox.docker import engine, helper_container
from air.sandbox.docker.container_spec import GuestPython
from air.sandbox.docker.engine_errors import lacks_python
from air.sandbox.guest import copy_python
from air.sandbox.wire.connection import program

PROGRAM = ("frames", "copy_python")
LABEL = "air.python"
"""The label of volumes that contain a copy of Python. Its value is the id of the base image."""
_COPY_SECONDS = 600.0
_LOG = logging.getLogger(__name__)
_WITHOUT_PYTHON: set[str] = set()
"""The ids of images without usable Python, as this process has learned from boxes that did not start."""
_READY: set[tuple[str, str]] = set()
"""The volumes whose copy of Python is known to be complete, as pairs: the value of `DOCKER_HOST`, and a
digest of the base image and the copying program."""
_LOCKS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
    weakref.WeakKeyDictionary()
)


async def interpreter_of(image: str, run: str) -> GuestPython | None:
    """Returns the copy of Python to mount into a box of `image`, if an earlier failed start has shown that
    the image lacks a usable Python. Otherwise returns None; the box then uses the image's own Python.

    `run` is the id of the run of air, for container labels. Raises the errors of `mounted`, which makes the
    copy.
    """
    if not _WITHOUT_PYTHON or await _digest(image) not in _WITHOUT_PYTHON:
        return None
    return await mounted(run)


async def mounted(run: str) -> GuestPython:
    """Returns the copy of the base image's Python: the command that starts it, and the mounts that a
    container needs for it. Makes the copy first if it does not exist.

    `run` is the id of the run of air, for the labels of the helper container that makes the copy. Raises
    MissingError if the base image is not built, BoxStartError if the copy cannot be made.
    """
    base = await engine.image_id(helper_container.BASE_IMAGE)
    digest = hashlib.sha256(base.encode() + program(PROGRAM)).hexdigest()
    volume, key = f"air-python-{digest[:12]}", (os.environ.get("DOCKER_HOST", ""), digest)
    async with _LOCKS.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        if key not in _READY:
            await _copy(volume, base, run)
            await engine.in_thread(lambda: _remove_others(volume))
            _READY.add(key)
    return GuestPython(tuple(copy_python.command()), (_mount(volume, base, read_only=True),))


async def learn_from_failed_start(image: str, python: GuestPython | None, failure: str) -> bool:
    """Called after a failed start of a box of `image`. Returns whether the caller should start the box again,
    with a copy of Python or, if it had a copy already, with a new one.

    `python` is the copy that was mounted into the box, or None. `failure` is the error text of the start. If
    this text shows that the image lacks Python, the function remembers this, so that later boxes of the image
    get a copy at once.
    """
    if python is not None:  # the volume may have been removed since it was filled
        _READY.clear()
        return f"{copy_python.HOME}/" in failure
    why, digest = lacks_python(failure), await _digest(image)
    if why is None or not digest:
        return False
    if digest not in _WITHOUT_PYTHON:
        _WITHOUT_PYTHON.add(digest)
        _LOG.info("image %s has no Python 3.8 or later (%s): its boxes get one mounted", image, why)
    return True


async def _copy(volume: str, base: str, run: str) -> None:
    """Creates the volume called `volume`, and copies the base image's Python into it with a helper container.
    `base` is the id of the base image, for the volume's label. `run` is the id of the run of air, for the
    labels of the helper container."""
    name = f"air-python-{secrets.token_hex(4)}"
    mount = _mount(volume, base, read_only=False)
    try:  # not created by the mount: Podman may drop a mount's labels
        await engine.in_thread(lambda: engine.client().create_volume(volume, labels={LABEL: base}))
    except engine.FOREIGN as error:
        raise engine.translated(error, image=helper_container.BASE_IMAGE) from error
    container, _ = await helper_container.start(
        name, run, PROGRAM, ready=_COPY_SECONDS, life=_COPY_SECONDS, mounts=[mount]
    )
    await container.close()


def _remove_others(volume: str) -> None:
    """Removes all volumes with copies of Python, except `volume` and those that boxes use. Blocks."""
    client = engine.client()
    with contextlib.suppress(*engine.FOREIGN):  # the copy for the next base image removes the rest
        volumes = client.volumes(filters={"label": LABEL})["Volumes"] or []
        for other in {row["Name"] for row in volumes} - {volume}:
            with contextlib.suppress(*engine.FOREIGN):
                client.remove_volume(other)


def _mount(volume: str, base: str, *, read_only: bool) -> Mount:
    options: dict[str, Any] = {"no_copy": True, "labels": {LABEL: base}}
    return Mount(copy_python.HOME, volume, type="volume", read_only=read_only, **options)


async def _digest(image: str) -> str:
    """Returns the id that the container engine derives from the content of the container image called
    `image`. Returns "" if there is no such image or the engine cannot be asked. By this id, air remembers
    which images lack Python."""
    try:
        return await engine.image_id(image)
    except (MissingError, InfrastructureError):
        return ""
