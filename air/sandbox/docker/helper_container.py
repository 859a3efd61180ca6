"""Starts helper containers, which do what boxes must not be allowed to do, such as mounting file systems.
Snapshots and copies of Python need them.

A helper container runs a program of `air.sandbox.guest` as root in the base image, and never runs files of an
agent. It ends when this process ends, because the stream between the two closes.
"""

from __future__ import annotations

from typing import Any

from air.errors import AirError, BoxDiedError, BoxStartError
from air.sandbox.contract import ownership
from air.sandbox.docker import engine
from air.sandbox.docker.container_spec import MIB, common_arguments
from air.sandbox.docker.container_stream import AttachedContainer, close_failed_start
from air.sandbox.docker.engine_errors import TransientStartError
from air.sandbox.wire.connection import Connection, interpreter, opening, program

BASE_IMAGE = "air-base"
"""The image of helper containers (containers of air in which no agent acts). `air setup` builds this
image."""
_MEMORY = 256 * MIB


async def start(
    name: str, run: str, modules: tuple[str, ...], *, ready: float, life: float, **host: Any
) -> tuple[AttachedContainer, Connection]:
    """Starts a helper container (a container of air in which no agent acts), waits until its program is
    ready, and returns the container and the connection to the program.

    `name` is the container's name. `run` is the id of the run of air, for the container's labels. `modules`
    are the names of the modules of `air.sandbox.guest` that form the program; the program starts with the
    function `main` of the last module. The program must be ready within `ready` seconds. After `life` seconds
    plus `ownership.WARM_SECONDS`, `air box gc` may remove the container. `host` are further arguments of the
    Docker SDK's `create_host_config`. If the start fails or is cancelled, no container remains. Raises
    TransientStartError if the reason may be temporary, otherwise BoxStartError.
    """
    attached = AttachedContainer(name)
    try:
        entrypoint = interpreter("python3", program(modules), source=True)
        helper = {
            "image": BASE_IMAGE,
            "user": "0:0",
            "entrypoint": entrypoint,
            "network_disabled": True,  # it needs none, and so starts sooner
        }
        shared = await engine.in_thread(lambda: common_arguments(name, run, life, _MEMORY, **host))
        shared["labels"][ownership.HELPER_LABEL] = modules[-1]
        connection = await attached.start(shared | helper, opening({}, modules))
        await connection.ready(seconds=ready)
    except BaseException as error:  # cancellation too: leave no container
        await close_failed_start(attached)
        if not isinstance(error, (AirError, *engine.FOREIGN)):
            raise
        raise _failure(error)(
            f"helper {name} did not start: {error or 'it does not answer'}"
        ) from error
    return attached, connection


def _failure(error: Exception) -> type[BoxStartError]:
    """Returns the class of the error to raise if a helper container (one in which no agent acts) did not
    start because of `error`."""
    if isinstance(error, (TimeoutError, BoxDiedError)):
        return TransientStartError
    if isinstance(error, engine.FOREIGN):
        error = engine.translated(error, image=BASE_IMAGE)
    return type(error) if isinstance(error, TransientStartError) else BoxStartError
