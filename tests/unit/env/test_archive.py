"""Archives that come out of a runtime of verifiers' own: what is taken from them, and what is refused."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from air.env.runtimes import archive
from air.errors import BoxFileError
from air.sandbox.wire import file_transfer


def _tar(*members: tuple[str, bytes, bytes, str]) -> bytes:
    """An archive of (name, type, data, link name)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind, data, link in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(data), link
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


FOLDER = ("./", tarfile.DIRTYPE, b"", "")
FILE = ("./a", tarfile.REGTYPE, b"12345", "")


def _unpacked(data: bytes) -> dict[str, bytes | None]:
    entries = archive.unpacked(data, max_bytes=10)
    return {e.path: None if e.folder else e.data for e in entries}


def test_what_comes_out_is_files_and_folders() -> None:
    hard = ("./b", tarfile.LNKTYPE, b"", "./a")
    assert _unpacked(_tar(FOLDER, FILE, hard)) == {"": None, "a": b"12345", "b": b"12345"}
    assert _unpacked(_tar(FILE)) == {"": b"12345"}


DEEP = "/".join("d" * 101)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (_tar(FOLDER, ("./x", tarfile.SYMTYPE, b"", "/etc")), "is a link"),
        (_tar(FOLDER, ("./x", tarfile.LNKTYPE, b"", "/etc/passwd")), "is a link"),
        (_tar(FOLDER, ("./x", tarfile.CHRTYPE, b"", "")), "not a regular file"),
        (_tar(FOLDER, ("./x", tarfile.FIFOTYPE, b"", "")), "not a regular file"),
        (_tar(FOLDER, ("./x", tarfile.GNUTYPE_SPARSE, b"", "")), "not a regular file"),
        (_tar(FOLDER, FILE, ("./b", tarfile.REGTYPE, b"x" * 6, "")), "larger than 10"),
        (
            _tar(FOLDER, FILE, *[(f"./{i}", tarfile.LNKTYPE, b"", "./a") for i in range(2)]),
            "larger",
        ),
        (_tar(FOLDER, (DEEP, tarfile.REGTYPE, b"", "")), "too deep"),
        (_tar(FOLDER, FILE)[:1026], "cannot be read"),
        (b"nonsense" * 100, "cannot be read"),
        (b"", "cannot be read"),
        (bytes(1024), "empty"),
    ],
)
def test_everything_else_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(BoxFileError, match=why):
        _unpacked(data)


@pytest.mark.parametrize("name", ["../x", "/x", "./a/../../x"])
def test_no_name_in_an_archive_leads_out(name: str, tmp_path: Path) -> None:
    data = _tar(FOLDER, (name, tarfile.REGTYPE, b"x", ""))
    entries = archive.unpacked(data, max_bytes=10)
    with pytest.raises(BoxFileError, match="would leave"):
        file_transfer.lay(entries, tmp_path / "in" / "side", "name")
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == []
