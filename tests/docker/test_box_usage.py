"""What a container is said to use, and what is told of a command that ran out of memory."""

from __future__ import annotations

import pytest

from air.sandbox import open_box
from air.sandbox.contract.box import BoxLimits, BoxSpec
from air.sandbox.docker.engine_errors import outcome

pytestmark = pytest.mark.docker
EAT = "x = [b'x' * (1 << 20) for _ in range(4000)]"


async def test_every_figure_of_a_container_is_known() -> None:
    limits = BoxLimits(memory_mb=64, disk_mb=16, shm_mb=8)
    async with await open_box(BoxSpec(limits=limits)) as box:
        await box.exec("head -c 2000000 /dev/zero > file; sleep 60 & sleep 60 &", timeout=20)
        usage = await box.stats()
    assert usage.memory_bytes is not None
    assert usage.memory_limit_bytes is not None
    assert usage.cpu_seconds is not None
    assert 2_000_000 < usage.memory_bytes < usage.memory_limit_bytes
    assert (64 + 16 + 8) << 20 < usage.memory_limit_bytes < 256 << 20
    assert 0 < usage.cpu_seconds < 60
    assert usage.processes == 2
    assert usage.workspace_bytes is not None
    assert 2_000_000 <= usage.workspace_bytes < 3_000_000
    assert usage.workspace_limit_bytes == 16 << 20


async def test_out_of_memory_is_told_from_other_ends() -> None:
    limits = BoxLimits(memory_mb=64, disk_mb=16)
    async with await open_box(BoxSpec(limits=limits)) as box:
        assert outcome(await box.exec(["python3", "-c", EAT], timeout=60)) == "out-of-memory"
        assert outcome(await box.exec("kill -9 $$", timeout=60)) == "killed"
        survived = await box.exec(f'python3 -c "{EAT}"; exit 4', timeout=60)
        assert (survived.code, survived.out_of_memory) == (4, True)
        assert outcome(survived) == "out-of-memory"
        assert outcome(await box.exec("exit 4", timeout=60)) == "failed"
