"""Frames: the messages between the host (the air process that starts boxes) and programs in boxes. Both sides
use this module to make and to read frames.

A frame consists of two big-endian 32-bit lengths, a JSON header and a body of bytes. Part of the guest, air's
program in a box: standard library only, Python >= 3.8, no import of `air`.
"""

from __future__ import annotations

import json
import os
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

MAX_HEADER = 1 << 25
MAX_BODY = 1 << 28
LIMITS = (MAX_HEADER, MAX_BODY)
"""The maximum sizes in bytes of the header and of the body of a frame, unless a program sets its own."""
_LENGTHS = 8


def frame(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Returns a message (frame) with this `header` and `body` as bytes, ready to be sent. Raises ValueError
    if the header or the body is too large."""
    head = json.dumps(header).encode()
    if len(head) > MAX_HEADER or len(body) > MAX_BODY:
        raise ValueError(f"a request of {len(head) + len(body)} bytes is too large for a box")
    return joined(head, body)


def joined(head: bytes, body: bytes) -> bytes:
    """Returns a frame as bytes, ready to be sent. `head` is its header, already written as JSON."""
    return len(head).to_bytes(4, "big") + len(body).to_bytes(4, "big") + head + body


def take(
    buffer: bytearray, limits: tuple[int, int] = LIMITS
) -> tuple[dict[str, Any], bytes] | None:
    """Removes the first frame from `buffer` and returns its header and body. Returns None if the frame is not
    yet complete.

    Raises ValueError if the bytes are not a valid frame within `limits` (see `LIMITS`).
    """
    if missing(buffer, limits):
        return None
    start = _LENGTHS + int.from_bytes(buffer[:4], "big")
    end = start + int.from_bytes(buffer[4:_LENGTHS], "big")
    header = json.loads(buffer[_LENGTHS:start].decode())
    if not isinstance(header, dict):
        raise ValueError("a frame without a header")
    body = bytes(buffer[start:end])
    del buffer[:end]
    return header, body


def missing(buffer: bytearray, limits: tuple[int, int] = LIMITS) -> int:
    """Returns how many further bytes must be read until the frame at the beginning of `buffer` is complete
    or, if not even its two lengths are there, until they are. Raises ValueError if the bytes are not a valid
    frame within `limits` (see `LIMITS`)."""
    if len(buffer) < _LENGTHS:
        return _LENGTHS - len(buffer)
    head, body = int.from_bytes(buffer[:4], "big"), int.from_bytes(buffer[4:_LENGTHS], "big")
    if head > limits[0] or body > limits[1]:
        raise ValueError(f"a frame with impossible lengths: {head} and {body} bytes")
    return max(0, _LENGTHS + head + body - len(buffer))


def read_frame(
    read: Callable[[int], bytes], limits: tuple[int, int] = LIMITS
) -> tuple[dict[str, Any], bytes]:
    """Reads one frame and returns its header and body. `read` gets a number, waits, and returns up to so many
    bytes; it is never asked for bytes after the frame. Raises EOFError if it returns none, and ValueError if
    the bytes are not a valid frame within `limits` (see `LIMITS`)."""
    buffer = bytearray()
    while size := missing(buffer, limits):
        data = read(size)
        if not data:
            raise EOFError
        buffer += data
    frame = take(buffer, limits)
    assert frame is not None
    return frame


def receive(patience: float) -> dict[str, Any]:
    """Reads one message (frame) from standard input and returns its header. Ends this process if the input
    closes, or if no bytes come for `patience` seconds."""

    def read(size: int) -> bytes:
        return os.read(0, size) if select.select([0], [], [], patience)[0] else b""

    try:
        return read_frame(read)[0]
    except EOFError:
        sys.exit(0)


def send(header: Mapping[str, Any]) -> None:
    """Writes a message (frame) without a body to standard output. Blocks until the whole frame is written."""
    view = memoryview(frame(header))
    while view:
        view = view[os.write(1, view) :]
