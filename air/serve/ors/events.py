"""Streams the result of a tool call to a client of ORS (Open Reward Standard) as server-sent events. A client
that has lost its connection can request the events again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse

PING_SECONDS = 10.0
"""Seconds between two keepalive comments in a stream while there are no events. Clients give up after 30
seconds without data."""
CHUNK = 4096


def event(name: str, data: str) -> str:
    """Returns one server-sent event with the name `name`, as text for the stream. `data` must not contain
    line breaks."""
    return f"event: {name}\ndata: {data}\n\n"


def stream(events: AsyncIterator[str]) -> StreamingResponse:
    """Returns an HTTP response that streams `events`, which are server-sent events as text."""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


async def of_call(task_id: str, call: asyncio.Task[str]) -> AsyncIterator[str]:
    """Yields the server-sent events of a tool call: first the call's id `task_id`, then the result in pieces,
    or an error. `call` is the asyncio task that runs the tool call and returns its result.

    If the client disconnects, the tool call continues. With the call's id, the client can request the events
    again.
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
