"""The demultiplexer of a container's stream, on streams written by hand."""

from __future__ import annotations

import pytest

from air.sandbox.wire.demultiplexer import STDERR, STDOUT, Demultiplexer

STREAM = b"\1\0\0\0\0\0\0\2ab" + b"\2\0\0\0\0\0\0\3err" + b"\1\0\0\0\0\0\0\0" + b"\1\0\0\0\0\0\0\1c"


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 11, len(STREAM)])
def test_streams_are_told_apart_wherever_the_bytes_are_cut(size: int) -> None:
    demultiplexer = Demultiplexer()
    contents = {STDOUT: b"", STDERR: b""}
    for start in range(0, len(STREAM), size):
        for stream, part in demultiplexer.feed(STREAM[start : start + size]):
            contents[stream] += part
    assert contents == {STDOUT: b"abc", STDERR: b"err"}
    assert demultiplexer.is_between_pieces


@pytest.mark.parametrize("end", [3, 8, 9])
def test_an_end_within_a_piece_is_noticed(end: int) -> None:
    demultiplexer = Demultiplexer()
    demultiplexer.feed(STREAM[:end])
    assert not demultiplexer.is_between_pieces
