"""Reads and writes the messages between the server and its helper programs in a sandbox, which are frames on
the programs' standard input and output.

A frame consists of the lengths of its two parts (four bytes each, big-endian), a JSON object, and bytes. Each
request gets one answer with the same `id`. Standard library only, Python >= 3.8, and no import of `air`
except the modules beside this file.
"""

from __future__ import annotations

import json
import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HEAD = struct.Struct(">II")


class Refused(Exception):
    """Error: the helper program in a sandbox cannot carry out a request. `code` is an error code of the
    Connect protocol (remote calls over HTTP), such as `not_found`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def receive() -> tuple[dict[str, Any], bytes]:
    """Reads the next request from standard input, and returns its JSON object and its bytes. Raises EOFError
    if standard input has ended."""
    head, size = HEAD.unpack(read_exactly(HEAD.size))
    return json.loads(read_exactly(head)), read_exactly(size)


def read_exactly(size: int) -> bytes:
    data = bytearray()  # read without a buffer: `poll` must see what was not read
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def send(header: dict[str, Any], body: bytes = b"") -> None:
    # Names in a box need not be text: what cannot be written becomes `?`.
    text = json.dumps(header, ensure_ascii=False).encode("utf-8", "replace")
    sys.stdout.buffer.write(HEAD.pack(len(text), len(body)) + text + body)
    sys.stdout.buffer.flush()
