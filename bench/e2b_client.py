"""Measures, with E2B's own client, how long a sandbox takes from its creation to the end of its first
command. `bench/serve.py` runs this program."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from typing import Any

CLIENTS = 5
"""The number of processes among which simultaneous sandboxes are divided. A single client would be slower
than the server."""


async def one(url: str, template: str) -> float:
    """Returns the milliseconds from the creation of a sandbox to the end of its first command."""
    from e2b import AsyncSandbox

    options: dict[str, Any] = {"api_url": url, "sandbox_url": url, "api_key": "e2b_" + "0" * 40}
    begun = time.perf_counter()
    sandbox = await AsyncSandbox.create(template, timeout=300, **options)
    result = await sandbox.commands.run("echo 2")
    took = (time.perf_counter() - begun) * 1000
    assert result.stdout == "2\n"
    await sandbox.kill()
    return took


def at_once(url: str, template: str, count: int) -> list[float]:
    """Creates `count` sandboxes at the same time, divided among `CLIENTS` processes. Returns the milliseconds
    of each, from its creation to the end of its first command."""
    context = multiprocessing.get_context("spawn")
    ready, times = context.Barrier(CLIENTS), context.SimpleQueue()
    arguments = (url, template, count // CLIENTS, ready, times)
    clients = [context.Process(target=_client, args=arguments) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    took = [each for _ in clients for each in times.get()]
    for client in clients:
        client.join()
    return took


def _client(url: str, template: str, count: int, ready: Any, times: Any) -> None:
    import e2b  # noqa: F401 — it takes longer than what is measured

    async def many() -> list[float]:
        return await asyncio.gather(*(one(url, template) for _ in range(count)))

    ready.wait()
    times.put(asyncio.run(many()))
