"""Conformance checks (tests in a real box) of `Box.put` and `Box.get`: both copy regular files and folders,
and refuse everything else."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from air.sandbox.conformance.check import Checks, expect, line, refused, same, sh
from air.sandbox.contract.box import Box

CHECKS = Checks()


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def _tree(folder: Path) -> dict[str, tuple[bytes | None, bool]]:
    """Returns the contents of a folder as a dict: relative path -> (the bytes of a file, or None for a
    folder; whether it is executable)."""
    tree = {}
    for path in folder.rglob("*"):
        data = path.read_bytes() if path.is_file() else None
        tree[str(path.relative_to(folder))] = (data, data is not None and os.access(path, os.X_OK))
    return tree


def _grow(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


@CHECKS.add()
async def a_folder_goes_in_and_comes_out(box: Box) -> None:
    with _folder() as source, _folder() as dest:
        files = {f"f{i}": b"%d" % i for i in range(300)}
        _grow(source, files | {"a/b/c": b"\0\xff" * 800_000, "new\nline/\udcff": b"", "run": b"#!"})
        (source / "empty").mkdir()
        (source / "run").chmod(0o750)
        await box.put(source, "in")
        same(await line(box, "stat -c %a in/run in/f1 in/empty"), "755\n644\n755")
        same(await line(box, "ls in | wc -l"), "305")
        await box.get("in", dest / "out")
        expect(_tree(dest / "out") == _tree(source), "the folder came back changed")
        await box.put(source)
        expect(await box.read("a/b/c") == b"\0\xff" * 800_000, "into the workspace itself")


@CHECKS.add()
async def a_file_goes_in_and_comes_out(box: Box) -> None:
    with _folder() as host:
        _grow(host, {"one.txt": b"1"})
        await box.put(host / "one.txt")
        await box.put(host / "one.txt", "named/two.txt")
        await sh(box, "mkdir there")
        await box.put(host / "one.txt", "there")
        files = await line(box, "find . -type f | sort")
        same(files, "./named/two.txt\n./one.txt\n./there/one.txt")
        await box.get("named/two.txt", host / "back")
        same(_tree(host / "back"), {"two.txt": (b"1", False)})
        same(await box.read("there/one.txt"), b"1")


@CHECKS.add()
async def put_takes_no_links_and_writes_through_none(box: Box) -> None:
    with _folder() as source:
        _grow(source, {"x": b"1", "sub/y": b"2"})
        await sh(box, "ln -s /etc sub; ln -s /etc/passwd x; ln -s /etc dest")
        for dest, reason in (("dest", "link"), (".", "link"), ("/etc", "out of the box")):
            with refused(reason):
                await box.put(source, dest)
        (source / "leads-out").symlink_to("/etc/passwd")
        os.mkfifo(source / "sub" / "fifo")
        faults = {"": "a link", "absent": "No such file", "sub": "neither a file nor a folder"}
        for name, reason in faults.items():
            with refused(reason):
                await box.put(source / name, "fine")


@CHECKS.add()
async def get_takes_files_and_folders_only(box: Box) -> None:
    with _folder() as dest:
        for name, make in {
            "link": "ln -s /etc/passwd bad/deep/x",
            "folder-link": "ln -s /etc bad/deep/x",
            "fifo": "mkfifo bad/deep/x",
            "dangling": "ln -s nowhere bad/deep/x",
        }.items():
            await sh(box, f"rm -rf bad; mkdir -p bad/deep; echo fine > bad/fine; {make}")
            with refused("link", "not a regular file"):
                await asyncio.wait_for(box.get("bad", dest / name), 60)
            expect(not (dest / name).exists(), "something was written although it was refused")
        with refused("out of the box"):
            await box.get("/etc", dest)
        with refused("No such file"):
            await box.get("absent", dest)


@CHECKS.add()
async def get_is_bounded(box: Box) -> None:
    with _folder() as dest:
        await sh(box, "mkdir big; for i in 1 2 3; do head -c 400000 /dev/zero > big/$i; done")
        await box.get("big", dest / "fits", max_bytes=1_200_000)
        with refused("larger than 1000000"):
            await box.get("big", dest / "cut", max_bytes=1_000_000)
        deep = "d=deep; for i in $(seq 150); do d=$d/d; done; mkdir -p $d"
        await sh(box, f"truncate -s 200M sparse; {deep}")
        with refused("larger than"):
            await box.get("sparse", dest / "cut")
        with refused("too deep"):
            await box.get("deep", dest / "cut")
        expect(not (dest / "cut").exists(), "something was written although it was refused")
