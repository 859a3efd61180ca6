"""A context of E2B's code interpreter, whose code prints more than its client reads."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from air.serve.e2b.helper_program import Program
from air.serve.e2b.interpreter import MOST_UNREAD, Context


class Flood:
    """A program whose code prints for ever. It counts the outputs that the context has taken."""

    events: Any = None
    taken = 0
    interrupts = 0

    async def ask(self, op: str, **fields: Any) -> None:
        if op == "interrupt":
            self.interrupts += 1
            return
        while not self.interrupts:
            await self.events.event({"run": fields["run"], "output": {"text": "x"}})
            self.taken += 1
            await asyncio.sleep(0)


async def test_code_waits_for_a_client_that_reads_nothing() -> None:
    flood = Flood()
    outputs = Context("c", cast(Program, flood), "/").execute("", {})
    assert await anext(outputs) == {"text": "x"}
    for _ in range(10 * MOST_UNREAD):
        await asyncio.sleep(0)
    assert flood.taken == MOST_UNREAD + 1
    await outputs.aclose()
    assert flood.interrupts == 1
