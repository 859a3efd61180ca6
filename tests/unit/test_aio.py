"""Many works at once: bounded, in order, and none left running."""

from __future__ import annotations

import asyncio

import pytest

from air.aio import run_concurrently


async def test_so_many_at_a_time_and_answers_in_order() -> None:
    under_way: list[int] = []
    most = 0

    async def work(number: int) -> int:
        nonlocal most
        under_way.append(number)
        most = max(most, len(under_way))
        await asyncio.sleep(0.01 * (4 - number % 4))
        under_way.remove(number)
        return number

    assert await run_concurrently([work(n) for n in range(9)], 3) == list(range(9))
    assert most == 3
    most = 0
    assert await run_concurrently([work(n) for n in range(9)]) == list(range(9))
    assert most == 9
    assert await run_concurrently([]) == []


@pytest.mark.parametrize("cancelled", [False, True])
async def test_one_that_fails_ends_the_others_and_those_that_never_began(cancelled: bool) -> None:
    told: list[str] = []

    async def long() -> None:
        told.append("begun")
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            told.append("ended")

    async def fails() -> None:
        await asyncio.sleep(60 if cancelled else 0.01)
        raise ValueError("mine")

    all_of_them = asyncio.create_task(run_concurrently([long(), fails(), long(), long()], 2))
    await asyncio.sleep(0.005)
    if cancelled:
        all_of_them.cancel()
    with pytest.raises(asyncio.CancelledError if cancelled else ValueError):
        await all_of_them
    assert told.count("begun") == told.count("ended") >= 1
