"""Starts helpers: containers that do what boxes must not do themselves, such as mounting.

A helper runs a program of `air.sandbox.guest` as root in the base image, and never an agent's files. It ends
when this process ends, because the stream to it closes.
"""

from __future__ import annotations

from typing import Any

from air.errors import AirError, BoxDiedError, BoxStartError
from air.sandbox.docker import engine
from air.sandbox.docker.container_spec import MIB, labels
from air.sandbox.docker.container_stream import Attached, abandon
from air.sandbox.docker.engine_errors import TransientStartError
from air.sandbox.wire.connection import Connection, interpreter, opening, program

BASE_IMAGE = "air-base"
"""The image that helpers run in; `air setup` builds it."""
_MEMORY = 256 * MIB


async def start(
    name: str, run: str, modules: tuple[str, ...], *, ready: float, life: float, **host: Any
) -> tuple[Attached, Connection]:
    """Starts a helper container, waits until it is ready, and returns it and the connection to its program.

    `modules` are the modules of `air.sandbox.guest` that make up the program. The helper must be ready within
    `ready` seconds, and a cleanup may remove it after `life` seconds. `host` are arguments of the Docker
    SDK's `create_host_config`. If the start fails or is cancelled, no container remains. Raises
    TransientStartError if the reason may be temporary, otherwise BoxStartError.
    """
    attached = Attached(name)
    try:
        arguments = await engine.in_thread(lambda: _arguments(name, run, modules, life, host))
        connection = await attached.start(arguments, opening({}, modules))
        await connection.ready(seconds=ready)
    except BaseException as error:  # cancellation too: leave no container
        await abandon(attached)
        if not isinstance(error, (AirError, *engine.FOREIGN)):
            raise
        raise _failure(error)(
            f"helper {name} did not start: {error or 'it does not answer'}"
        ) from error
    return attached, connection


def _failure(error: Exception) -> type[BoxStartError]:
    """Returns the class of the error to raise if the start of a helper failed with `error`."""
    if isinstance(error, (TimeoutError, BoxDiedError)):
        return TransientStartError
    cause = (
        engine.translated(error, image=BASE_IMAGE) if isinstance(error, engine.FOREIGN) else error
    )
    return type(cause) if isinstance(cause, TransientStartError) else BoxStartError


def _arguments(
    name: str, run: str, modules: tuple[str, ...], life: float, host: dict[str, Any]
) -> dict[str, Any]:
    config = engine.client().create_host_config(
        auto_remove=True,
        network_mode="none",
        cap_drop=["ALL"],
        read_only=True,
        mem_limit=_MEMORY,
        memswap_limit=_MEMORY,
        log_config=engine.no_log(),
        **host,
    )
    return {
        "image": BASE_IMAGE,
        "name": name,
        "user": "0:0",
        "entrypoint": interpreter("python3", program(modules), source=True),
        "command": [],
        "stdin_open": True,
        "stop_signal": "SIGKILL",
        "labels": labels(run, life),
        "healthcheck": {"test": ["NONE"]},
        "host_config": config,
        "use_config_proxy": False,
    }
