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
    from collections.abc import Mapping
    from typing import Any

MAX_HEADER = 1 << 25
MAX_BODY = 1 << 28
_LENGTHS = 8


def frame(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Returns a message (frame) with this `header` and `body` as bytes, ready to be sent. Raises ValueError
    if the header or the body is too large."""
    head = json.dumps(header).encode()
    if len(head) > MAX_HEADER or len(body) > MAX_BODY:
        raise ValueError(f"a request of {len(head) + len(body)} bytes is too large for a box")
    return len(head).to_bytes(4, "big") + len(body).to_bytes(4, "big") + head + body


def take(buffer: bytearray) -> tuple[dict[str, Any], bytes] | None:
    """Removes the first frame from `buffer` and returns its header and body. Returns None if the frame is not
    yet complete.

    Raises ValueError if the bytes are not a valid frame.
    """
    if missing(buffer):
        return None
    start = _LENGTHS + int.from_bytes(buffer[:4], "big")
    end = start + int.from_bytes(buffer[4:_LENGTHS], "big")
    header = json.loads(buffer[_LENGTHS:start].decode())
    if not isinstance(header, dict):
        raise ValueError("a frame without a header")
    body = bytes(buffer[start:end])
    del buffer[:end]
    return header, body


def missing(buffer: bytearray) -> int:
    """Returns how many further bytes must be read until the frame at the beginning of `buffer` is complete
    or, if not even its two lengths are there, until they are. Raises ValueError if the bytes are not a valid
    frame."""
    if len(buffer) < _LENGTHS:
        return _LENGTHS - len(buffer)
    head, body = int.from_bytes(buffer[:4], "big"), int.from_bytes(buffer[4:_LENGTHS], "big")
    if head > MAX_HEADER or body > MAX_BODY:
        raise ValueError("a frame with impossible lengths")
    return max(0, _LENGTHS + head + body - len(buffer))


def receive(patience: float) -> dict[str, Any]:
    """Reads one message (frame) from standard input and returns its header. Ends this process if the input
    closes, or if no bytes come for `patience` seconds."""
    buffer = bytearray()
    while size := missing(buffer):
        data = os.read(0, size) if select.select([0], [], [], patience)[0] else b""
        if not data:
            sys.exit(0)
        buffer += data
    request = take(buffer)
    assert request is not None
    return request[0]


def send(header: Mapping[str, Any]) -> None:
    """Writes a message (frame) without a body to standard output. Blocks until the whole frame is written."""
    view = memoryview(frame(header))
    while view:
        view = view[os.write(1, view) :]
