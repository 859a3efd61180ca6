"""The guest reads no more names of a folder than a request may get: commands can make a million files."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from air.sandbox.guest.entries import Gathering
from air.sandbox.guest.files import Refused, names_in

FILES, NAME_BYTES = 5000, 200


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(FILES):
        (tmp_path / f"{number:0{NAME_BYTES}}").touch()
    return tmp_path


def test_names_beyond_the_limit_are_not_read(folder: Path) -> None:
    header = {"tree": True, "max_bytes": 1, "all_bytes": 1, "max_entries": 10}
    parent = os.open(folder.parent, os.O_RDONLY)
    tracemalloc.start()
    try:
        with pytest.raises(Refused, match="too many files"):
            list(Gathering(header, kernel=0).entry(parent, folder.name, folder.name, 0))
        assert tracemalloc.get_traced_memory()[1] < FILES * NAME_BYTES / 4
    finally:
        tracemalloc.stop()
        os.close(parent)


def test_as_many_names_as_allowed_are_read_in_their_order(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        assert names_in(fd, FILES) == sorted(path.name for path in folder.iterdir())
        with pytest.raises(Refused):
            names_in(fd, FILES - 1)
    finally:
        os.close(fd)
