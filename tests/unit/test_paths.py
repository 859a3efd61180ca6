from __future__ import annotations

import os
from pathlib import Path

import pytest

from air.errors import UsageError
from air.paths import locked, write_whole


def test_a_file_that_is_replaced_is_as_readable_as_others(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_whole(tmp_path / "folder" / "whole", b"1")
    write_whole(tmp_path / "folder" / "whole", b"2")
    (file,) = (tmp_path / "folder").iterdir()
    assert file.read_bytes() == b"2"
    assert file.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_private_file_is_private_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_whole(tmp_path / "private", b"1", mode=0o600)
    finally:
        os.umask(before)
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_cannot_hold_a_lock_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(UsageError, match="cannot lock"),
        locked(tmp_path / "file" / "images.lock"),
    ):
        pass
