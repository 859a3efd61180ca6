"""Measures, with E2B's own client, how long a sandbox takes from its creation to the end of its first
command. `bench/serve` runs this program."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from typing import Any

CLIENTS = 5
"""The number of processes among which simultaneous sandboxes are divided. A single client would be slower
than the server."""


PATIENCE_SECONDS = 300
"""The maximum seconds in which all processes reach the next step of `at_once`."""


async def _answered(url: str, template: str) -> tuple[float, Any]:
    """Creates a sandbox and runs its first command. Returns the milliseconds from the creation to the end of
    the command, and the sandbox."""
    from e2b import AsyncSandbox

    options: dict[str, Any] = {"api_url": url, "sandbox_url": url, "api_key": "e2b_" + "0" * 40}
    begun = time.perf_counter()
    sandbox = await AsyncSandbox.create(template, timeout=300, **options)
    result = await sandbox.commands.run("echo 2")
    took = (time.perf_counter() - begun) * 1000
    assert result.stdout == "2\n"
    return took, sandbox


async def one(url: str, template: str) -> float:
    """Returns the milliseconds from the creation of a sandbox to the end of its first command."""
    took, sandbox = await _answered(url, template)
    await sandbox.kill()
    return took


def at_once(url: str, template: str, count: int, settle: Callable[[], None]) -> list[float]:
    """Creates `count` sandboxes at the same time, divided among `CLIENTS` processes. Returns the milliseconds
    of each, from its creation to the end of its first command.

    Not timed: in each process, the start of the client and one sandbox before the others, after which
    `settle` is called; and the end of the sandboxes, which are killed when all have run their first command.
    """
    context = multiprocessing.get_context("spawn")
    step, times = context.Barrier(CLIENTS + 1), context.SimpleQueue()
    arguments = (url, template, count // CLIENTS, step, times)
    clients = [context.Process(target=_client, args=arguments) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        step.wait(PATIENCE_SECONDS)  # all clients are warm
        settle()
        step.wait(PATIENCE_SECONDS)  # they begin
        step.wait(PATIENCE_SECONDS)  # all sandboxes have answered
        return [each for _ in clients for each in times.get()]
    except BaseException:  # no client may wait for this process
        step.abort()
        raise
    finally:
        for client in clients:
            client.join()


def _client(url: str, template: str, count: int, step: Any, times: Any) -> None:
    async def many() -> None:
        await one(url, template)
        for _ in ("all clients are warm", "the server is ready"):
            await asyncio.to_thread(step.wait, PATIENCE_SECONDS)
        answers = await asyncio.gather(*(_answered(url, template) for _ in range(count)))
        await asyncio.to_thread(step.wait, PATIENCE_SECONDS)  # all sandboxes have answered
        times.put([took for took, _ in answers])
        await asyncio.gather(*(sandbox.kill() for _, sandbox in answers))

    try:
        asyncio.run(many())
    except BaseException:  # the other processes must not wait for this one
        step.abort()
        raise
