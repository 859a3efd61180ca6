"""Conformance checks (tests in a real box) of `Box.read` and `Box.write`: they reach only regular files, and
only in writable folders."""

from __future__ import annotations

import time

from air.sandbox.conformance.check import Checks, expect, line, refused, same, sh
from air.sandbox.contract.box import Box

CHECKS = Checks()


@CHECKS.add()
async def what_is_written_is_read(box: Box) -> None:
    for path, data in (("a", b""), ("deep/er/b.bin", bytes(range(256)) * 12_000), ("a", b"again")):
        await box.write(path, data)
        expect(await box.read(path) == data, path)
    expect(await box.read("/workspace/deep/er/b.bin") == bytes(range(256)) * 12_000, "absolute")
    expect(await box.read(f"{box.workspace}/a") == b"again", "as the box sees it")
    expect(await box.read("deep/../a") == b"again", "a path that stays inside")
    same(await line(box, "stat -c '%a %s' a; ls -A"), "644 5\na\ndeep")
    await box.write("run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
    same(await line(box, "./run.sh"), "ran")


@CHECKS.add()
async def scratch_folders_are_writable(box: Box) -> None:
    await box.write("/scratch/in/side", b"1")
    same(await box.read("/scratch/in/side"), b"1")
    same(await line(box, f"cat {box.path('/scratch/in/side')}"), "1")
    await sh(box, f"echo 2 > {box.path('/scratch/own')}")
    same(await box.read("/scratch/own"), b"2\n")
    await box.write("/tmp/t", b"3")
    same(await line(box, f"cat {box.path('/tmp/t')}"), "3")


@CHECKS.add()
async def what_cannot_be_read_says_why(box: Box) -> None:
    await sh(box, "mkdir folder; echo 12345 > file; mkfifo pipe; chmod 700 folder")
    reasons = {
        "absent": "No such file",
        "folder": "folder",
        "file/below": "folder",
        "fi\0le": "NUL",
    }
    for path, reason in reasons.items():
        with refused(reason):
            await box.read(path)
    with refused("larger than 3"):
        await box.read("file", max_bytes=3)
    expect(await box.read("file", max_bytes=6) == b"12345\n", "exactly as large as allowed")
    for path in ("folder", ".", "file/below"):
        with refused("folder"):
            await box.write(path, b"")
    same(await line(box, "ls -A"), "file\nfolder\npipe")


@CHECKS.add()
async def paths_lead_nowhere_else(box: Box) -> None:
    for path in ("/etc/passwd", "../etc/passwd", "/workspace/../etc/passwd", "a/../../x", "/", ""):
        with refused("out of the box", "folder"):
            await box.read(path)
        with refused("out of the box", "folder"):
            await box.write(path, b"x")
    with refused("out of the box"):
        await box.write("/workspaces/x", b"x")


@CHECKS.add()
async def links_are_not_followed(box: Box) -> None:
    await sh(
        box,
        f"ln -s /etc/passwd file; ln -s /etc folder; ln -s {box.path('/tmp')} out; ln -s . self;"
        "echo 1 > real; ln -s real inside; ln -s nowhere dangling; ln -s loop loop",
    )
    for path in ("file", "folder/passwd", "inside", "dangling", "loop", "self/real"):
        with refused("link"):
            await box.read(path)
    for path in ("folder/x", "out/x", "self/x", "loop/x"):
        with refused("link"):
            await box.write(path, b"x")
    for path in ("file", "dangling", "inside"):
        await box.write(path, b"mine")
        same(await box.read(path), b"mine")
    same(await line(box, "cat real; ls nowhere 2>/dev/null; stat -c %F file"), "1\nregular file")


@CHECKS.add()
async def a_path_that_changes_meanwhile_leads_nowhere(box: Box) -> None:
    await sh(box, "mkdir safe; echo mine > safe/passwd")
    swap = "mv safe kept; ln -s /etc safe; rm safe; mv kept safe"
    await sh(box, f"while true; do {swap}; done >/dev/null 2>&1 & sleep 0.1")
    begun = time.monotonic()
    for _ in range(300):
        if time.monotonic() - begun > 5:
            break
        try:
            data = await box.read("safe/passwd")
        except Exception as error:
            expect(type(error).__name__ == "BoxFileError", error)
        else:
            same(data, b"mine\n")


@CHECKS.add()
async def only_regular_files_are_opened(box: Box) -> None:
    socket = "import socket; socket.socket(socket.AF_UNIX).bind('socket')"
    await sh(box, f'mkfifo pipe; python3 -c "{socket}"; ln -s /dev/zero zero')
    begun = time.monotonic()
    for path in ("pipe", "socket", "zero"):
        with refused("not a regular file", "link"):
            await box.read(path)
    await box.write("pipe", b"now a file")
    same(await box.read("pipe"), b"now a file")
    expect(time.monotonic() - begun < 30, "a FIFO held the box up")


@CHECKS.add()
async def odd_names(box: Box) -> None:
    for name in ("new\nline", " ", "-rf", "ü", "\udcff\udcfe", '"$(x)', "a" * 255, ".air-x"):
        await box.write(name, name.encode("utf-8", "surrogateescape"))
        same(await box.read(name), name.encode("utf-8", "surrogateescape"))
    same(await line(box, "ls -A | wc -l"), "9")
    with refused("too long"):
        await box.write("a" * 256, b"")


@CHECKS.add()
async def a_file_that_grows_is_still_bounded(box: Box) -> None:
    await sh(box, "(while true; do head -c 100000 /dev/zero; done > grows) & sleep 0.2")
    with refused("larger than"):
        await box.read("grows", max_bytes=5_000_000)
        await box.read("grows", max_bytes=500_000)
