"""Copies in and out of a box that are cancelled or large, and a stream that cannot be used."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest

from air.errors import BoxFileError, BoxStartError
from air.sandbox import open_box
from air.sandbox.contract.box import BoxLimits, BoxSpec
from air.sandbox.docker.container_stream import detach_socket
from air.sandbox.process.box import ProcessBox
from tests.unit.sandbox.process.full_disk import played_on_a_full_disk

MIB = 1 << 20
SPEC = BoxSpec(provider="process", limits=BoxLimits(memory_mb=512, disk_mb=64))


def _open_files(box: ProcessBox) -> int:
    """How many descriptors the guest has open."""
    assert box._process
    (guest,) = _children(box._process.pid) or [box._process.pid]
    return len(list(Path(f"/proc/{guest}/fd").iterdir()))


def _begun(box: ProcessBox) -> bool:
    """Whether a file of the workspace is being written."""
    return any(Path(box.seen_from_host).glob(".air-*"))


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_a_cancelled_write_leaves_nothing_in_the_box() -> None:
    async with await open_box(SPEC) as box:
        assert isinstance(box, ProcessBox)
        await box.write("before", b"1")
        before = _open_files(box)
        for _ in range(5):
            writing = asyncio.create_task(box.write("file", bytes(20 * MIB)))
            while not _begun(box):
                await asyncio.sleep(0.001)
                assert not writing.done()
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
        assert (await box.exec("ls -A", timeout=60)).text.split() == ["before"]
        assert _open_files(box) == before


async def test_a_cancelled_read_ends_what_the_guest_sends() -> None:
    async with await open_box(SPEC) as box:
        assert isinstance(box, ProcessBox)
        await box.exec("truncate -s 30M file", timeout=60)
        before = _open_files(box)
        reading = asyncio.create_task(box.read("file", max_bytes=32 * MIB))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert (await box.exec("true", timeout=60)).ok
        assert _open_files(box) == before


async def test_a_folder_is_not_read_into_memory_to_be_copied(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(os.urandom(16 * MIB))
    async with await open_box(SPEC) as box:
        tracemalloc.start()
        try:
            await box.put(tmp_path)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        sizes = (await box.exec("stat -c %s a b c", timeout=60)).text.split()
    assert sizes == [str(16 * MIB)] * 3
    assert peak < 32 * MIB


async def test_nothing_is_copied_of_a_folder_that_holds_a_link(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "link").symlink_to("a")
    async with await open_box(SPEC) as box:
        with pytest.raises(BoxFileError, match="is a link"):
            await box.put(tmp_path)
        assert (await box.exec("ls -A", timeout=60)).text == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_of_the_host_is_no_fault_of_the_boxs_files(tmp_path: Path) -> None:
    error, files = played_on_a_full_disk("process", "get", tmp_path)
    assert error == f"InfrastructureError: '{tmp_path}/out': No space left on device"
    assert files == "big"


def test_an_encrypted_stream_is_refused() -> None:
    here, there = socket.socketpair()
    context = ssl.create_default_context()
    stream = context.wrap_socket(here, server_hostname="x", do_handshake_on_connect=False)
    stream._response = SimpleNamespace(close=lambda: None)  # type: ignore[attr-defined]  # as the SDK
    with there, pytest.raises(BoxStartError, match="encrypted"):
        detach_socket(stream)
