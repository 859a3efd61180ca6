from __future__ import annotations

from pathlib import Path

from air.paths import write_whole


def test_a_file_that_is_replaced_is_as_readable_as_others(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_whole(tmp_path / "folder" / "whole", b"1")
    write_whole(tmp_path / "folder" / "whole", b"2")
    (file,) = (tmp_path / "folder").iterdir()
    assert file.read_bytes() == b"2"
    assert file.stat().st_mode == (tmp_path / "plain").stat().st_mode
