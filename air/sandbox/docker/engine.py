"""The Docker engine: the connection to it, its containers by our labels, its failures translated.

Blocking calls of its client are run by `in_thread`, in threads of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException, NotFound

from air.aio import to_the_end
from air.errors import AirError, BoxDiedError
from air.sandbox.contract import ownership
from air.sandbox.docker import sdk
from air.sandbox.docker.engine_errors import engine_missing, no_engine, start_error

REMOVE_SECONDS = 30.0
FOREIGN = (DockerException, requests.RequestException, OSError)
"""What the client raises; what it means is told by `translating` and `translated`."""
_THREADS = 16
T = TypeVar("T")


def no_log() -> docker.types.LogConfig:
    """The engine keeps no copy of a stream that carries frames."""
    return docker.types.LogConfig(type="none")


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


def boxes(*labels: str) -> list[dict[str, Any]]:
    """Every container that carries our labels, in whatever state: the engine's summaries.

    One without a name is left out: it is gone, and an engine that was killed meanwhile lists it still.

    Args:
        labels: the labels that it must carry, instead of those that every box has.

    Raises:
        MissingError: no engine answers.
        BoxStartError: the engine failed.
    """
    try:
        found: list[dict[str, Any]] = client().containers(
            all=True,
            filters={"label": list(labels) or [ownership.OWNER_LABEL, ownership.EXPIRES_LABEL]},
        )
    except FOREIGN as error:
        raise translated(error, "") from error
    return [box for box in found if box["Names"]]


def remove_left_behind(*labels: str) -> list[str]:
    """Removes containers of ours that are expired or whose owner is dead; returns their names.

    Args:
        labels: as `boxes`.

    Raises:
        MissingError: no engine answers.
        BoxStartError: the engine failed.
    """
    removed = []
    for found in boxes(*labels):
        if not ownership.is_left_behind(found["Labels"], now=time.time()):
            continue
        try:
            remove(found["Id"])
        except FOREIGN as error:
            raise translated(error, found["Image"]) from error
        removed.append(found["Names"][0].lstrip("/"))
    return removed


async def image_id(image: str) -> str:
    """The engine's digest of an image that is here, whatever its tag meant before.

    Raises:
        MissingError: no engine answers, or the image is not built.
        TransientStartError: the engine failed for a reason that may pass.
    """
    try:  # not behind the starts and removals that keep the engine's own threads busy
        return str((await asyncio.to_thread(lambda: client().inspect_image(image)))["Id"])
    except FOREIGN as error:
        raise translated(error, image) from error


def client() -> docker.APIClient:
    """The connection to the engine that `DOCKER_HOST` names; one for each process and engine.

    Raises:
        MissingError: none answers. Once one has, its failures are those of each request.
    """
    with _LOCK:
        try:
            return _client(os.getpid(), os.environ.get("DOCKER_HOST", ""))
        except FOREIGN as error:
            if engine_missing(str(error)):
                raise no_engine(str(error)) from error
            raise


@cache
def _client(_pid: int, _host: str) -> docker.APIClient:
    sdk.knock()
    settings = docker.utils.kwargs_from_env()
    return docker.APIClient(version="auto", timeout=60, max_pool_size=_THREADS, **settings)


_LOCK = threading.Lock()


@cache
def _threads(_pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="air-docker")


async def in_thread(work: Callable[[], T]) -> T:
    """Runs blocking work of the engine to its end, whatever happens to the caller."""
    loop = asyncio.get_running_loop()
    return await to_the_end(loop.run_in_executor(_threads(os.getpid()), work))


@contextlib.contextmanager
def translating(name: str) -> Iterator[None]:
    """Turns a failure of the engine about a live box into `BoxDiedError`."""
    try:
        yield
    except FOREIGN as error:
        raise BoxDiedError(f"box {name}: its engine failed: {error}") from error


def translated(error: Exception, image: str) -> AirError:
    """The error that says why a box of `image` did not start; empty where it is about none."""
    status = error.status_code if isinstance(error, APIError) else None
    text = str(error.explanation if isinstance(error, APIError) else error)
    return start_error(status, text, image)


def unusable() -> str | None:
    """Why Docker cannot be used here, as half a line; None where it can. Blocks up to 10 s."""
    settings = docker.utils.kwargs_from_env()
    try:
        with contextlib.closing(docker.APIClient(version="auto", timeout=10, **settings)) as engine:
            engine.ping()
    except FOREIGN as error:
        return engine_missing(str(error)) or " ".join(str(error).split())[:200]
    return None
