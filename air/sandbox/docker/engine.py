"""Connects to the container engine (Docker or Podman), and translates its failures into air's errors.

Requests block, so asynchronous code makes them through `in_thread`.
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

from air.aio import wait_shielded
from air.errors import AirError, BoxDiedError
from air.sandbox.contract import ownership
from air.sandbox.docker.engine_errors import (
    engine_missing,
    no_engine,
    refuse_encrypted,
    start_error,
)

REMOVE_SECONDS = 30.0
_ANSWER_SECONDS = 300
"""Maximum number of seconds for a request to the container engine. It is this long because an engine that
stores a large image may let other requests wait for over a minute."""
_CONNECT_SECONDS = 10
_THREADS = 16
_CLIENT = (DockerException, requests.RequestException, urllib3.exceptions.HTTPError)
FOREIGN = (*_CLIENT, OSError)
"""The exceptions of foreign libraries that a request to the container engine, or reading a stream from it,
can raise. `translated` turns them into air's errors."""
T = TypeVar("T")


def client() -> docker.APIClient:
    """Returns this process's connection to the container engine at `DOCKER_HOST`. The first call connects.

    Raises MissingError if the first call finds no container engine, or if the connection to the engine is
    encrypted (TLS or ssh). Raises BoxStartError if connecting fails for another reason.
    """
    host = os.environ.get("DOCKER_HOST", "")
    secure = os.environ.get("DOCKER_TLS_VERIFY") or os.environ.get("DOCKER_CERT_PATH")
    refuse_encrypted(host, tls=bool(host and secure))
    with _LOCK:
        try:
            return _client(os.getpid(), host)
        except FOREIGN as error:
            if engine_missing(str(error)):
                raise no_engine(str(error), host) from error
            if "HTTPS server" in str(error):  # Docker's answer to plain HTTP on a port for TLS
                refuse_encrypted(host, tls=True)
            raise translated(error, doing="connecting to it") from error


class Client(docker.APIClient):  # type: ignore[misc]  # the SDK has no types
    """A connection to the container engine in which each request for a container's streams or for events has
    a time limit. Without this class, the Docker SDK would wait for ever if the engine stands still."""

    def request(self, method: str, url: str, **options: Any) -> Any:
        if url.endswith(("/attach", "/events")) and options.get("timeout") is None:
            options["timeout"] = self.timeout
        return super().request(method, url, **options)


@cache
def _client(_pid: int, _host: str) -> docker.APIClient:
    _check_socket()
    settings = docker.utils.kwargs_from_env()
    timeout, size = _ANSWER_SECONDS, _THREADS
    return Client(version="auto", timeout=timeout, max_pool_size=size, **settings)


_LOCK = threading.Lock()


def _check_socket() -> None:
    """Raises OSError if the container engine's socket refuses connections. Called before the Docker SDK
    connects, because the SDK leaves a socket open if its connection is refused."""
    host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if host.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_CONNECT_SECONDS)
            probe.connect(host.removeprefix("unix://"))


def away() -> bool:
    """Whether the container engine's socket refuses connections now. Blocks for a short time."""
    try:
        _check_socket()
    except OSError:
        return True
    return False


@contextlib.contextmanager
def translating(doing: str = "") -> Iterator[None]:
    """Context manager: turns exceptions of the Docker SDK into air's errors. An OSError is not changed.

    `doing` says in the error message what the `with` block was doing.
    """
    try:
        yield
    except _CLIENT as error:
        raise translated(error, doing=doing) from error


def translated(error: Exception, *, image: str = "", doing: str = "") -> AirError:
    """Converts an exception of the Docker SDK into air's error for it, and returns that error without raising
    it.

    If the request that failed was the start of a box, `image` is the name of the box's image. Otherwise,
    `doing` describes the request for the error message, for example `listing boxes`.
    """
    status = error.status_code if isinstance(error, APIError) else None
    return start_error(status, reason(error), image, doing=doing)


def reason(error: BaseException) -> str:
    """Returns the message of an exception of the Docker SDK as one line of at most 300 characters."""
    text = " ".join(str(getattr(error, "explanation", None) or error).split())
    return text[:300] or type(error).__name__


@cache
def _threads(_pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="air-docker")


async def in_thread(work: Callable[[], T]) -> T:
    """Runs the function `work`, which makes blocking requests to the container engine, in a thread, and
    returns its result. Errors of `work` are raised unchanged.

    If the caller is cancelled, `work` still runs to its end.
    """
    loop = asyncio.get_running_loop()
    return await wait_shielded(loop.run_in_executor(_threads(os.getpid()), work))


async def image_id(image: str) -> str:
    """Returns the id (digest) of the image to which the name `image` refers now in the container engine.

    Raises MissingError if no container engine answers or the image is not built. Raises TransientStartError
    if the failure may be temporary.
    """
    return str((await image_of_box(image))["Id"])


async def image_of_box(image: str) -> dict[str, Any]:
    """Returns the container engine's description of `image`, the image of a box that is to be started. Raises
    MissingError if no container engine answers or the image is not built, TransientStartError if the failure
    may be temporary."""
    try:  # not through `in_thread`, whose threads may be busy with starts and removals
        return dict(await asyncio.to_thread(lambda: client().inspect_image(image)))
    except FOREIGN as error:
        raise translated(error, image=image) from error


def image(name: str) -> dict[str, Any] | None:
    """Returns the container engine's description of an image, or None if the engine has no such image.
    Blocks.

    Raises MissingError if no container engine answers, BoxStartError if the request fails.
    """
    with translating(f"looking for image {name}"):
        try:
            description: dict[str, Any] = client().inspect_image(name)
        except ImageNotFound:
            return None
    return description


async def inspected(container: str) -> dict[str, Any]:
    """Returns the container engine's description of the container with the id or name `container`. Raises
    BoxDiedError if the request fails."""
    try:
        return dict(await in_thread(lambda: client().inspect_container(container)))
    except FOREIGN as error:
        raise BoxDiedError(
            f"container {container[:12]}: the Docker engine failed: {reason(error)}"
        ) from error


def containers_of_air(*labels: str) -> list[dict[str, Any]]:
    """Returns the container engine's descriptions of air's containers, running or not.

    `labels` are labels that a container must have, each as `name` or `name=value`; by default those that
    every container of air has. Containers without a name are left out: they no longer exist, but an engine
    that was killed may still list them. Raises MissingError if no container engine answers, BoxStartError if
    the request fails.
    """
    wanted = list(labels) or [ownership.OWNER_LABEL, ownership.EXPIRES_LABEL]
    with translating("listing boxes"):
        containers = client().containers(all=True, filters={"label": wanted})
    return [container for container in containers if container["Names"]]


def remove(name: str) -> None:
    """Kills and removes the container with the name or id `name`, and returns when it is gone. Does nothing
    if there is no such container. Blocks.

    If the container engine fails to remove the container, tries again for `REMOVE_SECONDS`, and then raises
    the Docker SDK's error.
    """
    engine, give_up = client(), time.monotonic() + REMOVE_SECONDS
    while True:
        try:
            engine.remove_container(name, force=True, v=True)
            return
        except NotFound:
            return
        except APIError:  # usually because the engine is already removing the container
            if time.monotonic() > give_up:
                raise
        time.sleep(0.02)


def remove_left_behind(*labels: str) -> list[str]:
    """Removes those of air's containers that have expired or whose owner process is dead. Returns the names
    of the removed containers.

    If `labels` are given, removes only containers that have all of them. Raises the errors of
    `containers_of_air`.
    """
    removed = []
    for container in containers_of_air(*labels):
        if ownership.is_left_behind(container["Labels"], now=time.time()):
            name = container["Names"][0].lstrip("/")
            with translating(f"removing {name}"):
                remove(container["Id"])
            removed.append(name)
    return removed
