"""Splits the one stream of a container into its standard output and its standard error.

An engine sends both in pieces, each after 8 bytes: the stream's number, three zeros and the piece's size.
"""

from __future__ import annotations

STDOUT, STDERR = 1, 2
_HEADER_BYTES = 8


class Demultiplexer:
    """Takes the bytes as they come; a piece may come in parts."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._stream = 0
        self._missing = 0

    @property
    def is_between_pieces(self) -> bool:
        """Whether the stream may end here."""
        return not (self._header or self._missing)

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The contents of `data`, each with the number of its stream."""
        parts: list[tuple[int, bytes]] = []
        while data:
            if self._missing:
                part, data = data[: self._missing], data[self._missing :]
                self._missing -= len(part)
                parts.append((self._stream, part))
                continue
            size = _HEADER_BYTES - len(self._header)
            self._header += data[:size]
            data = data[size:]
            if len(self._header) == _HEADER_BYTES:
                self._stream = self._header[0]
                self._missing = int.from_bytes(self._header[4:], "big")
                self._header.clear()
        return parts
