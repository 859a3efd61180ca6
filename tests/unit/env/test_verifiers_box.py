"""`VerifiersBox`: a box over a runtime that verifiers itself started, here one of its processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from verifiers.v1.runtimes import SubprocessConfig, SubprocessRuntime

from air.env.runtimes.verifiers_owned import VerifiersBox
from air.errors import BoxFileError
from air.sandbox.contract.box import BoxSpec


@pytest.fixture
async def box() -> AsyncIterator[VerifiersBox]:
    runtime = SubprocessRuntime(SubprocessConfig(), name=f"owned-{uuid4().hex}")
    await runtime.start()
    try:
        yield await VerifiersBox.over(runtime, BoxSpec(provider="process"))
    finally:
        await runtime.stop()


async def test_files_are_written_before_the_command_runs(box: VerifiersBox) -> None:
    files = {"a/b.txt": b"one\n\xff", "c d.txt": b"two\n"}
    result = await box.exec("cat 'c d.txt'; wc -c < a/b.txt", timeout=60, files=files)
    assert (result.code, result.stdout.split()) == (0, [b"two", b"5"])
    assert await box.read("a/b.txt") == files["a/b.txt"]


async def test_a_file_that_cannot_be_written_keeps_the_command_from_running(
    box: VerifiersBox,
) -> None:
    await box.write("file", b"x")
    with pytest.raises(BoxFileError, match="file/below"):
        await box.exec("touch ran", timeout=60, files={"file/below": b"y"})
    with pytest.raises(BoxFileError, match="absent"):
        await box.read("ran")
