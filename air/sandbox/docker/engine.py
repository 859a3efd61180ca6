"""The Docker engine: the one connection to it, and the one place that translates its failures.

Everything goes through `client()`. Its calls block: `in_thread` runs them in threads of their own.
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
"""What a request to the engine, or a stream of it, raises; `translated` says what it means."""
T = TypeVar("T")


def client() -> docker.APIClient:
    """The connection to the engine that `DOCKER_HOST` names; one for each process and engine.

    Raises:
        MissingError: there is no engine. Once it has answered, its failures are those of each request.
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
    """Connects once to the engine's local socket, since the SDK leaks its own if that fails."""
    host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if host.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as knock:
            knock.settimeout(_CONNECT_SECONDS)
            knock.connect(host.removeprefix("unix://"))


@contextlib.contextmanager
def translating(doing: str = "") -> Iterator[None]:
    """Turns the client's failures inside the block into our errors; see `translated`.

    Errors of files and sockets that the block handles itself are left alone.

    Args:
        doing: what the block does, for the message.
    """
    try:
        yield
    except _CLIENT as error:
        raise translated(error, doing=doing) from error


def translated(error: Exception, *, image: str = "", doing: str = "") -> AirError:
    """Our error for a failure of the client.

    Args:
        image: the image whose box did not start because of it; empty for other requests.
        doing: what was being done, if no box was being started.

    Returns:
        As `engine_errors.start_error`.
    """
    status = error.status_code if isinstance(error, APIError) else None
    return start_error(status, reason(error), image, doing=doing)


def reason(error: BaseException) -> str:
    """A failure of the client as one line."""
    text = " ".join(str(getattr(error, "explanation", None) or error).split())
    return text[:300] or type(error).__name__


@cache
def _threads(_pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="air-docker")


async def in_thread(work: Callable[[], T]) -> T:
    """Runs blocking work of the engine to its end, whatever happens to the caller."""
    loop = asyncio.get_running_loop()
    return await to_the_end(loop.run_in_executor(_threads(os.getpid()), work))


async def image_id(image: str) -> str:
    """The engine's digest of an image that is here, whatever its tag meant before.

    Raises:
        MissingError: no engine answers, or the image is not built.
        TransientStartError: the engine failed for a reason that may pass.
    """
    try:  # not behind the starts and removals that keep the engine's own threads busy
        return str((await asyncio.to_thread(lambda: client().inspect_image(image)))["Id"])
    except FOREIGN as error:
        raise translated(error, image=image) from error


def image(name: str) -> dict[str, Any] | None:
    """The engine's description of an image; None if it has none of that name. Blocks.

    Raises:
        MissingError: no engine answers.
        BoxStartError: the engine failed.
    """
    with translating(f"looking for image {name}"):
        try:
            description: dict[str, Any] = client().inspect_image(name)
        except ImageNotFound:
            return None
    return description


async def inspected(container: str) -> dict[str, Any]:
    """The engine's description of a live container.

    Raises:
        BoxDiedError: the container is gone, or the engine failed.
    """
    try:
        return dict(await in_thread(lambda: client().inspect_container(container)))
    except FOREIGN as error:
        raise BoxDiedError(
            f"container {container[:12]}: its engine failed: {reason(error)}"
        ) from error


def no_log() -> docker.types.LogConfig:
    """The engine keeps no copy of a stream that carries frames."""
    return docker.types.LogConfig(type="none")


def boxes(*labels: str) -> list[dict[str, Any]]:
    """Every container that carries our labels, in whatever state: the engine's summaries.

    A container without a name is left out: it is gone, though an engine that was killed lists it.

    Args:
        labels: the labels that it must carry, instead of those that every box has.

    Raises:
        MissingError: no engine answers.
        BoxStartError: the engine failed.
    """
    wanted = list(labels) or [ownership.OWNER_LABEL, ownership.EXPIRES_LABEL]
    with translating("listing boxes"):
        containers = client().containers(all=True, filters={"label": wanted})
    return [container for container in containers if container["Names"]]


def remove(name: str) -> None:
    """Kills and removes a container, and returns when it is gone; one that is gone already is fine.

    Blocks. Raises the engine's error if it is still there after `REMOVE_SECONDS`.
    """
    engine, give_up = client(), time.monotonic() + REMOVE_SECONDS
    while True:
        try:
            engine.remove_container(name, force=True, v=True)
            return
        except NotFound:
            return
        except APIError:  # most often: it is being removed because its guest has ended
            if time.monotonic() > give_up:
                raise
        time.sleep(0.02)


def remove_left_behind(*labels: str) -> list[str]:
    """Removes our containers that are expired or whose owner is dead; returns their names.

    Args:
        labels: as `boxes`.

    Raises:
        MissingError: no engine answers.
        BoxStartError: the engine failed.
    """
    removed = []
    for container in boxes(*labels):
        if ownership.is_left_behind(container["Labels"], now=time.time()):
            name = container["Names"][0].lstrip("/")
            with translating(f"removing {name}"):
                remove(container["Id"])
            removed.append(name)
    return removed
