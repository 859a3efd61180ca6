"""Splits the stream of an attached container into the container's standard output and standard error. air's
connection to a container uses it.

Docker sends both streams in pieces over one connection. A header of 8 bytes precedes each piece: one byte
with the value 1 (output) or 2 (error), three zero bytes, and the piece's size as a big-endian integer of 4
bytes.
"""

from __future__ import annotations

STDOUT, STDERR = 1, 2
_HEADER_BYTES = 8


class Demultiplexer:
    """A parser that splits the stream of an attached container into standard output and standard error. Pass
    the bytes of the stream to `feed` as they come."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._stream = 0
        self._missing = 0

    @property
    def is_between_pieces(self) -> bool:
        """Whether no piece is incomplete at present. If the stream ends while this is false, bytes are
        missing."""
        return not (self._header or self._missing)

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Parses `data`, the next bytes of the stream. Returns a list of pairs, in the order of the stream:
        STDOUT or STDERR, and bytes that the container wrote there."""
        parts: list[tuple[int, bytes]] = []
        at = 0
        while at < len(data):
            if self._missing:
                part = data[at : at + self._missing]
                at += len(part)
                self._missing -= len(part)
                parts.append((self._stream, part))
                continue
            header = data[at : at + _HEADER_BYTES - len(self._header)]
            at += len(header)
            self._header += header
            if len(self._header) == _HEADER_BYTES:
                self._stream = self._header[0]
                self._missing = int.from_bytes(self._header[4:], "big")
                self._header.clear()
        return parts
