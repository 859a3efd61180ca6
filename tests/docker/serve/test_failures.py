"""Boxes that somebody else ends, and an image that goes away: the failure is the server's, and it says so."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from docker.errors import APIError

from air.sandbox.pool.image_ids import DIGEST_SECONDS
from tests.docker.client import boxes_of, docker_client
from tests.docker.serve.serving import Served, serving
from tests.until import until

pytestmark = pytest.mark.docker


@contextlib.contextmanager
def image_tag(name: str) -> Iterator[str]:
    """Another name of the image `air-base`."""
    with docker_client() as client:
        client.images.get("air-base").tag(name)
        try:
            yield name
        finally:
            if client.images.list(name):
                client.images.remove(name)


def kill(run: str, killed: set[str]) -> str:
    """Kills the one running box of `run` that is not in `killed`, and returns its container's id."""
    (box,) = running(run) - killed
    with docker_client() as client:
        client.containers.get(box).kill()
    return box


def running(run: str) -> set[str]:
    """The running containers of `run`."""
    return {box["Id"] for box in boxes_of(run) if box["State"] == "running"}


def failures(served: Served) -> int:
    """How many boxes have failed, by the server's log."""
    return sum(line["event"] == "box failed" for line in served.log())


async def test_a_box_that_is_killed_is_replaced_once() -> None:
    run = f"serve-kill-{os.getpid()}"
    flags = ("--warm", "0", "--max-boxes", "1")
    with image_tag(run) as image, serving(*flags, image=image, AIR_RUN=run) as served:
        async with httpx.AsyncClient(base_url=served.url, timeout=600) as client:

            async def played(code: str, kills: int, *, let_go: bool = False) -> dict[str, Any]:
                """The answer to a program whose box is killed so many times. If it is let go, the next box
                gets the file `/tmp/go`."""
                before, killed = failures(served), set()
                program = {"language": "bash", "code": code, "run_timeout": 900}
                request = asyncio.create_task(client.post("/run_code", json=program))
                for number in range(kills):
                    await until(lambda count=before + number: failures(served) == count)
                    await until(lambda: served.boxes()["lent"] == 1, every=0.05)
                    killed.add(kill(run, killed))
                    await until(lambda count=before + number: failures(served) == count + 1)
                while let_go and not request.done():
                    for box in running(run) - killed:
                        with docker_client() as engine, contextlib.suppress(APIError):  # it ends
                            engine.containers.get(box).exec_run(["touch", "/tmp/go"])
                    await asyncio.sleep(0.2)
                return dict((await request).json())

            once = await played(
                "until [ -e /tmp/go ]; do sleep 0.1; done; echo done", 1, let_go=True
            )
            assert (once["status"], once["run_result"]["stdout"]) == ("Success", "done\n")
            twice = await played("sleep 600", 2)
            assert (twice["status"], twice["run_result"]) == ("SandboxError", None)
            assert twice["message"]
            with docker_client() as docker:
                docker.images.remove(image)
            await asyncio.sleep(2 * DIGEST_SECONDS)
            gone = await played("true", 0)
            assert (gone["status"], gone["run_result"]) == ("SandboxError", None)
            assert image in gone["message"]


async def test_the_place_of_a_sandbox_whose_box_is_killed_is_free_at_once() -> None:
    run = f"serve-place-{os.getpid()}"
    body = {"templateID": "air-base", "timeout": 3600}
    program = {"language": "bash", "code": "echo done", "run_timeout": 300}
    with serving("--warm", "0", "--max-boxes", "1", AIR_RUN=run) as served:
        async with httpx.AsyncClient(base_url=served.url, timeout=600) as client:
            killed: set[str] = set()
            for _ in range(2):  # no request lists the sandboxes, which would remove the dead ones
                assert (await client.post("/sandboxes", json=body)).status_code == 201
                killed.add(kill(run, killed))
            ran = await client.post("/run_code", json=program)
            assert (ran.status_code, ran.json()["run_result"]["stdout"]) == (200, "done\n")
