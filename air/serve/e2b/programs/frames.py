"""Reads and writes the messages between the server and its helper programs in a sandbox, which are frames on
the programs' standard input and output.

Each request gets one answer with the same `id`. Standard library only, Python >= 3.8, and no import of `air`
except the modules beside this file and `air.sandbox.guest.frames`, which describes frames.
"""

from __future__ import annotations

import json
import os
import sys

from air.sandbox.guest.frames import joined, read_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIMITS = (64 << 20, 2 << 20)
"""The maximum sizes in bytes of the JSON object and of the bytes of a frame. A list of the most entries that
`files` returns fits, and so does the largest request, with all its characters escaped."""


class Refused(Exception):
    """Error: the helper program in a sandbox cannot carry out a request. `code` is an error code of the
    Connect protocol (remote calls over HTTP), such as `not_found`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def receive() -> tuple[dict[str, Any], bytes]:
    """Reads the next request from standard input, and returns its JSON object and its bytes. Raises EOFError
    if standard input has ended."""
    # Without a buffer: `poll` must see what was not read.
    return read_frame(lambda size: os.read(0, size), LIMITS)


def send(header: dict[str, Any], body: bytes = b"") -> None:
    # Names in a box need not be text: what cannot be written becomes `?`.
    text = json.dumps(header, ensure_ascii=False).encode("utf-8", "replace")
    sys.stdout.buffer.write(joined(text, body))
    sys.stdout.buffer.flush()
