"""Connects to the container engine (Docker or Podman), and translates its failures into air's errors.

All requests to the container engine go through `client()`. They block, so asynchronous code makes them in
`in_thread`, which runs them in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import docker
import requests
import urllib3
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from air.aio import to_the_end
from air.errors import AirError, BoxDiedError
from air.sandbox.contract import ownership
from air.sandbox.docker.engine_errors import engine_missing, no_engine, start_error

REMOVE_SECONDS = 30.0
_ANSWER_SECONDS = 60
_CONNECT_SECONDS = 10
_THREADS = 16
_CLIENT = (DockerException, requests.RequestException, urllib3.exceptions.HTTPError)
FOREIGN = (*_CLIENT, OSError)
"""The types of the exceptions that a request to the container engine, or a stream from it, can raise.
`translated` turns such an exception into one of air's errors."""
T = TypeVar("T")


def client() -> docker.APIClient:
    """Returns this process's connection to the container engine (Docker or Podman).

    The environment variable `DOCKER_HOST` names the container engine. The first call connects; later calls
    return the same connection. A request over the connection can still fail.

    Raises:
        MissingError: the first call found no container engine.
        BoxStartError: connecting failed for another reason.
    """
    with _LOCK:
        try:
            return _client(os.getpid(), os.environ.get("DOCKER_HOST", ""))
        except FOREIGN as error:
            if engine_missing(str(error)):
                raise no_engine(str(error)) from error
            raise translated(error, doing="connecting to it") from error


@cache
def _client(_pid: int, _host: str) -> docker.APIClient:
    _knock()
    settings = docker.utils.kwargs_from_env()
    timeout, size = _ANSWER_SECONDS, _THREADS
    return docker.APIClient(version="auto", timeout=timeout, max_pool_size=size, **settings)


_LOCK = threading.Lock()


def _knock() -> None:
    """Raises OSError if the local socket of the container engine accepts no connection.

    This test comes first because the Docker SDK leaks a socket if it cannot connect.
    """
    host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if host.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as knock:
            knock.settimeout(_CONNECT_SECONDS)
            knock.connect(host.removeprefix("unix://"))


@contextlib.contextmanager
def translating(doing: str = "") -> Iterator[None]:
    """Context manager: turns exceptions of the Docker SDK in the `with` block into air's errors.

    An OSError passes unchanged, because it comes from a file or socket that the `with` block uses itself.

    Args:
        doing: what the `with` block does, for the error message.
    """
    try:
        yield
    except _CLIENT as error:
        raise translated(error, doing=doing) from error


def translated(error: Exception, *, image: str = "", doing: str = "") -> AirError:
    """Translates an exception of the Docker SDK into one of air's errors and returns it; raises nothing.

    Args:
        image: the image whose box did not start because of the exception; empty for other requests.
        doing: what was being done, if no box was being started; becomes part of the message.
    """
    status = error.status_code if isinstance(error, APIError) else None
    return start_error(status, reason(error), image, doing=doing)


def reason(error: BaseException) -> str:
    """Returns the message of an exception of the Docker SDK as one line."""
    text = " ".join(str(getattr(error, "explanation", None) or error).split())
    return text[:300] or type(error).__name__


@cache
def _threads(_pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="air-docker")


async def in_thread(work: Callable[[], T]) -> T:
    """Runs `work`, which makes requests to the container engine, in a thread, and returns its result.

    `work` runs to its end even if the caller is cancelled.
    """
    loop = asyncio.get_running_loop()
    return await to_the_end(loop.run_in_executor(_threads(os.getpid()), work))


async def image_id(image: str) -> str:
    """Returns the id (digest) of the image that now has the name `image` in the container engine.

    Raises:
        MissingError: no container engine answers, or the image is not built.
        TransientStartError: the container engine failed for a reason that may be temporary.
    """
    try:  # not in `in_thread`, whose threads may be busy with starts and removals
        return str((await asyncio.to_thread(lambda: client().inspect_image(image)))["Id"])
    except FOREIGN as error:
        raise translated(error, image=image) from error


def image(name: str) -> dict[str, Any] | None:
    """Returns the container engine's description of an image, or None if it has no such image. Blocks.

    Raises:
        MissingError: no container engine answers.
        BoxStartError: the container engine failed.
    """
    with translating(f"looking for image {name}"):
        try:
            description: dict[str, Any] = client().inspect_image(name)
        except ImageNotFound:
            return None
    return description


async def inspected(container: str) -> dict[str, Any]:
    """Returns the container engine's description of a live container.

    Raises:
        BoxDiedError: the container is gone, or the container engine failed.
    """
    try:
        return dict(await in_thread(lambda: client().inspect_container(container)))
    except FOREIGN as error:
        raise BoxDiedError(
            f"container {container[:12]}: its engine failed: {reason(error)}"
        ) from error


def no_log() -> docker.types.LogConfig:
    """Returns a log setting that stops the container engine from storing a copy of a container's output."""
    return docker.types.LogConfig(type="none")


def boxes(*labels: str) -> list[dict[str, Any]]:
    """Returns the container engine's descriptions of all containers that air has started, running or not.

    Containers without a name are left out, because they no longer exist. A container engine that was killed
    may still list them.

    Args:
        labels: the labels that a container must carry; by default those that every box has.

    Raises:
        MissingError: no container engine answers.
        BoxStartError: the container engine failed.
    """
    wanted = list(labels) or [ownership.OWNER_LABEL, ownership.EXPIRES_LABEL]
    with translating("listing boxes"):
        containers = client().containers(all=True, filters={"label": wanted})
    return [container for container in containers if container["Names"]]


def remove(name: str) -> None:
    """Kills and removes a container, and returns when it is gone. Blocks.

    Does nothing if there is no such container. Raises the Docker SDK's error if the container still exists
    after `REMOVE_SECONDS`.
    """
    engine, give_up = client(), time.monotonic() + REMOVE_SECONDS
    while True:
        try:
            engine.remove_container(name, force=True, v=True)
            return
        except NotFound:
            return
        except APIError:  # usually the engine already removes the container, whose guest has ended
            if time.monotonic() > give_up:
                raise
        time.sleep(0.02)


def remove_left_behind(*labels: str) -> list[str]:
    """Removes air's containers that have expired, or whose owner (the process that started them) is dead.

    Returns the names of the removed containers.

    Args:
        labels: the labels that a container must carry; by default those that every box has.

    Raises:
        MissingError: no container engine answers.
        BoxStartError: the container engine failed.
    """
    removed = []
    for container in boxes(*labels):
        if ownership.is_left_behind(container["Labels"], now=time.time()):
            name = container["Names"][0].lstrip("/")
            with translating(f"removing {name}"):
                remove(container["Id"])
            removed.append(name)
    return removed
