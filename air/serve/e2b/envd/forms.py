"""Reads multipart forms piece by piece, so that uploaded files need no place on the server's machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from air.serve.e2b.errors import ApiError

FIELD = "file"
"""The name of the form's fields that are files. Other fields are skipped."""
_MOST_FILES = 10_000
_MOST_HEADER = 1 << 16


class _Form:
    """The callbacks of the parser. They append to `events` what `events_of` yields."""

    def __init__(self, boundary: bytes) -> None:
        self.events: list[str | bytes | None] = []
        self.in_file = self.ended = False
        self._files = 0
        self._name = self._value = self._disposition = b""
        self._data: list[bytes] = []
        names = ["part_begin", "header_field", "header_value", "header_end", "headers_finished"]
        names += ["part_data", "part_end", "end"]
        callbacks: Any = {f"on_{name}": getattr(self, f"_{name}") for name in names}
        self.parser = MultipartParser(boundary, callbacks)

    def flush(self) -> None:
        """Appends the file's bytes since the last call, as one piece: the parser splits them at each newline
        that could begin a boundary."""
        if self._data:
            self.events.append(b"".join(self._data))
            self._data.clear()

    def _part_begin(self) -> None:
        self._name = self._value = self._disposition = b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]
        self._check_header()

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._check_header()

    def _check_header(self) -> None:
        if len(self._name) + len(self._value) > _MOST_HEADER:
            raise ApiError(400, "the form is malformed: a header is too long")

    def _header_end(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value
        self._name = self._value = b""

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        self.in_file = options.get(b"name") == FIELD.encode() and b"filename" in options
        if self.in_file:
            self._files += 1
            if self._files > _MOST_FILES:
                raise ApiError(400, f"the form has more than {_MOST_FILES} files")
            self.events.append(options[b"filename"].decode("utf-8", "replace"))

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self.in_file:
            self._data.append(data[start:end])

    def _part_end(self) -> None:
        if self.in_file:
            self.flush()
            self.events.append(None)
        self.in_file = False

    def _end(self) -> None:
        self.ended = True


async def events_of(
    body: AsyncIterator[bytes], boundary: bytes
) -> AsyncIterator[str | bytes | None]:
    """Yields what the files of a form consist of: for each file its name, its bytes in pieces, and None at
    its end. Raises ApiError if the form is malformed or incomplete."""
    try:
        form = _Form(boundary)
        async for data in body:
            form.parser.write(data)
            form.flush()
            events, form.events = form.events, []
            for event in events:
                yield event
    except FormParserError as error:
        raise ApiError(400, f"the form is malformed: {error}") from None
    if not form.ended:
        raise ApiError(400, "the form is malformed: its end is missing")
