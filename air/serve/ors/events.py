"""Answers as server-sent events, which a client can ask for again after its connection was lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse

PING_SECONDS = 10.0
"""Seconds between two comments in a stream without events. Clients give up after 30 seconds of silence."""
CHUNK = 4096


def event(name: str, data: str) -> str:
    """Returns one event. `data` has no line ends."""
    return f"event: {name}\ndata: {data}\n\n"


def stream(events: AsyncIterator[str]) -> StreamingResponse:
    """Returns the answer that sends these events."""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


async def of_call(task_id: str, call: asyncio.Task[str]) -> AsyncIterator[str]:
    """Yields the events of a call: its id, then its result in pieces, or an error.

    The call goes on if the client leaves, and the client can ask for the call's events again.
    """
    yield event("task_id", task_id)
    while not call.done():
        await asyncio.wait([call], timeout=PING_SECONDS)
        if not call.done():
            yield ": ping\n\n"
    if call.cancelled():
        yield event("error", "the session is over")
    elif (error := call.exception()) is not None:
        yield event("error", " ".join(str(error).split()))
    else:
        result = call.result()
        last = max(0, len(result) - 1) // CHUNK * CHUNK
        for start in range(0, last, CHUNK):
            yield event("chunk", result[start : start + CHUNK])
        yield event("end", result[last:])
