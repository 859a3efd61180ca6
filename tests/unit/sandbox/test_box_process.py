"""The process box: the conformance suite, its labels of honesty, and its end with the harness."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from air.errors import ConfigError
from air.sandbox import cleanup, conformance, open_box
from air.sandbox.base import BoxLimits, BoxSpec

SPEC = BoxSpec(provider="process")
GAPS = conformance.KNOWN_GAPS["process"]
KEPT = [check for check in conformance.CHECKS if check.name not in GAPS]


@pytest.mark.parametrize("check", KEPT, ids=lambda check: check.name)
async def test_conformance(check: conformance.Check) -> None:
    await asyncio.wait_for(conformance.run(check, SPEC), 90)


def test_gaps_are_only_about_isolation() -> None:
    names = {check.name for check in conformance.CHECKS}
    assert len(names) == len(conformance.CHECKS)
    assert names >= GAPS
    assert all(check.container for check in conformance.CHECKS if check.name in GAPS)


async def test_environment_is_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    async with await open_box(SPEC.model_copy(update={"env": {"GIVEN": "1"}})) as box:
        text = (await box.exec("env; cat /proc/$PPID/environ", timeout=5)).text
        assert "hunter2" not in text
        assert "GIVEN=1" in text
        result = await box.exec(["python3", "-c", "import sys; print(sys.executable)"], timeout=5)
        assert Path(result.text.strip()).parent == Path(sys.executable).parent
        assert box.isolation == "process"
        assert box.path("/workspace/a") == f"{box.workspace}/a"
        assert box.path("/elsewhere") == "/elsewhere"


async def test_memory_and_file_size_are_bounded() -> None:
    limits = BoxLimits(memory_mb=64, disk_mb=2)
    async with await open_box(SPEC.model_copy(update={"limits": limits})) as box:
        assert not (await box.exec(["python3", "-c", "b'x' * (200 << 20)"], timeout=20)).ok
        assert not (await box.exec("head -c 5M /dev/zero > big", timeout=20)).ok


async def test_nothing_is_left() -> None:
    box = await open_box(SPEC)
    root = Path(box.workspace).parent
    await box.exec("(setsid sleep 600 &)", timeout=5)
    await box.close()
    assert not root.exists()
    assert not _running_below(root)


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.03, 0.1])
async def test_a_cancelled_start_leaves_nothing(delay: float) -> None:
    task = asyncio.create_task(open_box(SPEC))
    await asyncio.sleep(delay)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        await task.result().close()
    assert not _folders()


def _folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"{cleanup.folder_prefix()}*"))


HARNESS = """
import asyncio, sys
from air.sandbox import open_box
from air.sandbox.base import BoxSpec

async def main():
    box = await open_box(BoxSpec(provider="process"))
    await box.exec("(setsid bash -c 'while true; do sleep 0.1; done' &)", timeout=5)
    print(box.workspace, flush=True)
    await box.exec("trap '' TERM; while true; do :; done", timeout=600)

asyncio.run(main())
"""


@pytest.mark.parametrize("attempt", range(6))
async def test_sigkill_of_the_harness_leaves_nothing(attempt: int) -> None:
    harness = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HARNESS, stdout=asyncio.subprocess.PIPE
    )
    assert harness.stdout is not None
    root = Path((await harness.stdout.readline()).decode().strip()).parent
    await asyncio.sleep(0.05 * attempt)
    assert _running_below(root)
    harness.send_signal(signal.SIGKILL)
    await harness.wait()
    for _ in range(100):
        if not _running_below(root) and not root.exists():
            break
        await asyncio.sleep(0.05)
    assert not _running_below(root)
    assert not root.exists()


def _running_below(root: Path) -> list[int]:
    """Processes whose working directory lies in `root`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            where = str((entry / "cwd").readlink())
        except OSError:
            continue
        if where.startswith(str(root)):
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize("folder", ["relative", "/", "/workspace/x", "/etc/x", "/a/../b", "/a/"])
async def test_scratch_folders_are_checked(folder: str) -> None:
    with pytest.raises(ConfigError, match="scratch"):
        await open_box(SPEC.model_copy(update={"scratch": (folder,)}))
