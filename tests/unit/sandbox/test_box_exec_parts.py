"""The parts of a box without a guest that need no container: marks in output, process trees, archives,
and the words of its shell programs, under the shells that are here."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from air.errors import BoxFileError
from air.sandbox.docker import posix_shell
from air.sandbox.docker.engine_errors import lacks_python, lacks_shell
from air.sandbox.docker.exec_stream import Marked
from air.sandbox.docker.process_reaper import Seen, tree
from air.sandbox.wire import archive, folders
from air.sandbox.wire.folders import Entry

MARK = b"0123456789ab"
SHELLS = [
    argv
    for argv in (["sh"], ["dash"], ["bash", "--posix"], ["busybox", "sh"])
    if shutil.which(argv[0])
]


@pytest.mark.parametrize(
    ("sent", "kept", "began", "status"),
    [
        (MARK + b"+;out" + MARK + b"7;", b"out", True, 7),
        (MARK + b"+;" + MARK + b"0;late", b"", True, 0),
        (b"engine: no", b"engine: no", False, None),
        (MARK + b"+;cut off" + MARK[:5], b"cut off" + MARK[:5], True, None),
        (MARK + b"+;" + MARK + b"nonsense;" + MARK + b"137;", MARK + b"nonsense;", True, 137),
        (MARK + b"+;" + MARK + b"99999;x", MARK + b"99999;x", True, None),
        (MARK + b"+;" + MARK + b"1", MARK + b"1", True, None),
    ],
)
@pytest.mark.parametrize("piece", [1, 5, 1000])
def test_output_is_what_lies_between_the_marks(
    sent: bytes, kept: bytes, began: bool, status: int | None, piece: int
) -> None:
    side = Marked(MARK, 1000)
    for start in range(0, len(sent), piece):
        side.add(sent[start : start + piece])
    side.close()
    assert (side.output.bytes(), side.began, side.status) == (kept, began, status)


def test_a_tree_is_what_is_marked_what_is_orphaned_and_what_descends_from_it() -> None:
    table = {
        1: Seen("S", 0, 1, 1, "none"),
        5: Seen("S", 1, 1, 1, "none"),  # of the box itself
        7: Seen("S", 0, 7, 7, "own"),
        8: Seen("R", 7, 7, 7, "none"),
        9: Seen("S", 8, 9, 9, "none"),
        10: Seen("Z", 9, 9, 9, "none"),
        20: Seen("S", 0, 20, 20, "other"),
        21: Seen("S", 20, 20, 20, "none"),
        22: Seen("S", 1, 20, 20, "other"),
        30: Seen("T", 1, 30, 30, "none"),
        31: Seen("S", 29, 30, 30, "none"),  # whose parent has ended meanwhile
        40: Seen("S", 0, 40, 40, "none"),  # the hand
    }
    assert tree(table) == {7, 8, 9, 30, 31}


@pytest.mark.parametrize("argv", SHELLS, ids=" ".join)
def test_every_byte_survives_as_an_argument(argv: list[str]) -> None:
    data = bytes(range(1, 256)) + b"\n\n"
    done = subprocess.run([*argv, "-c", "printf %b \"$1\"", "x", posix_shell.escaped(data)],
                          capture_output=True, check=True)  # fmt: skip
    assert done.stdout == data


@pytest.mark.parametrize("argv", SHELLS, ids=" ".join)
@pytest.mark.parametrize(
    "name", ["INIT", "HAND", "WRAPPER", "SCRIPT", "READ", "WRITE", "PUT", "GET"]
)
def test_every_shell_takes_the_programs(argv: list[str], name: str) -> None:
    done = subprocess.run(
        [*argv, "-n", "-c", getattr(posix_shell, name)], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("argv", SHELLS, ids=" ".join)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ulimit -Sc 0", "4096 4096 0 0"),
        ("ulimit -Sn 99", "4096 4096 0 0"),
        ("ulimit -Sn 300; ulimit -Hn 300; ulimit -Sc 0; ulimit -Hc 0", "300 300 0 0"),
        ("ulimit -Sn 200; ulimit -Hn 300", "200 300 0 0"),
    ],
)
def test_a_shell_bounds_itself_and_what_it_starts(argv: list[str], before: str, after: str) -> None:
    tell = "echo $(ulimit -Sn) $(ulimit -Hn) $(ulimit -Sc) $(ulimit -Hc)"
    script = f'{before}\n{posix_shell.BOUND}\nsh -c "$0"'
    done = subprocess.run([*argv, "-c", script, tell], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == (after, "")


FOLDERS = {"/workspace": "/workspace", "/workspace-2": "/workspace-2", "/tmp": "/tmp"}


@pytest.mark.parametrize(
    ("path", "root", "parts"),
    [
        (".", "/workspace", ()),
        ("a/../b//c", "/workspace", ("b", "c")),
        ("/tmp/x", "/tmp", ("x",)),
        ("/workspace-2/y", "/workspace-2", ("y",)),
    ],
)
def test_a_place_is_a_folder_and_the_way_from_there(
    path: str, root: str, parts: tuple[str, ...]
) -> None:
    assert archive.place(path, FOLDERS) == archive.Place(root, parts)


@pytest.mark.parametrize(
    "path", ["..", "/etc", "/workspaces", "a/../../x", "/", "a\0b", "d/" * 101]
)
def test_a_path_that_leads_out_has_no_place(path: str) -> None:
    with pytest.raises(BoxFileError):
        archive.place(path, FOLDERS)


def test_what_is_packed_is_numbered_and_planned() -> None:
    entries = [Entry("", True), Entry("a b/ü", False, 0o755, b"x" * 3_000_000), Entry("-", False)]
    pieces = list(archive.packed(entries, ("to",)))
    assert len(pieces) > 1
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
        assert [(m.name, m.mode) for m in tar] == [("plan", 0o644), ("1", 0o755), ("2", 0o644)]
        plan, one = (tar.extractfile(name) for name in ("plan", "1"))
        assert plan is not None
        assert one is not None
        assert one.read() == entries[1].data
        steps = [r"folder 0 'to'", r"file 1 'to' 'a\0040b' '\0303\0274'", "file 2 'to' '-'"]
        assert plan.read().decode().splitlines() == steps


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
    entries = archive.unpacked(data, max_bytes=10, above=0)
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
    entries = archive.unpacked(data, max_bytes=10, above=0)
    with pytest.raises(BoxFileError, match="would leave"):
        folders.lay(entries, tmp_path / "in" / "side", "name")
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize(
    ("said", "whole"),
    [
        (["tar 0"], True),
        (["tar: ./x: file changed as we read it", "tar 1"], True),
        (["tar: ./x: Cannot open: Permission denied", "tar 1"], False),
        (["tar 1"], False),
        (["tar 2"], False),
        ([], False),
    ],
)
def test_an_archive_is_whole_when_tar_says_so(said: list[str], whole: bool) -> None:
    assert archive.whole(said) == whole


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('container_linux.go:380: starting container process caused: exec: "python3": executable '
         "file not found in $PATH: unknown", '"python3": executable file not found in $PATH'),
        ("crun: executable file `python3` not found in $PATH: No such file or directory: OCI runtime "
         "attempted to invoke a command that was not found", "`python3` not found in $PATH"),
        ("a box did not start: box air-1: its stream ended (Python 3.6.9 is older than 3.8)",
         "Python 3.6.9 is older than 3.8"),
        ("a box did not start: box air-1: its stream ended (ModuleNotFoundError: No module named "
         "'ctypes')", "ModuleNotFoundError: No module named 'ctypes'"),
        ("a box did not start: box air-1: its stream ended", None),
        ('exec: "sh": executable file not found in $PATH: unknown', None),
        ("fork/exec: resource temporarily unavailable: unknown", None),
    ],
)  # fmt: skip
def test_an_image_without_python_is_told_from_other_failures(text: str, why: str | None) -> None:
    assert lacks_python(text) == why
    assert lacks_shell(text) == ('"sh"' in text)


def test_a_place_is_handed_over_as_bytes() -> None:
    odd = os.fsdecode(b"\xff\xfe")
    assert archive.Place("/tmp", (odd, "a")).arguments == ["/tmp", r"\0377\0376", "a"]
