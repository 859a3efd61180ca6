"""The process box, with namespaces where they are allowed and without: the conformance suite, its
labels of honesty, and its end with the harness."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

from air.errors import BoxDiedError, ConfigError
from air.sandbox import conformance, open_box
from air.sandbox.contract import ownership
from air.sandbox.contract.box import Box, BoxLimits, BoxSpec
from air.sandbox.process import namespaces
from air.sandbox.process.box import ProcessBox
from air.sandbox.process.copy_snapshots import CopiedSnapshot
from tests.processes import running
from tests.unit.sandbox.process.full_disk import played_on_a_full_disk
from tests.until import until

SPEC = BoxSpec(provider="process")
MODES = list(dict.fromkeys([namespaces.detect().mode, "plain"]))
KEPT = [
    pytest.param(
        mode,
        check,
        id=f"{mode}-{check.name}",
        # The first mode is the one that users have here; the others share its code, and are sampled.
        marks=[pytest.mark.full] if mode != MODES[0] and number % 6 else [],
    )
    for mode in MODES
    for number, check in enumerate(conformance.CHECKS)
    if check.name not in conformance.KNOWN_GAPS[f"process/{mode}"]
]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every mode that process boxes have here."""
    monkeypatch.setenv(namespaces.SETTING, request.param)
    return str(request.param)


async def opened(spec: BoxSpec = SPEC) -> ProcessBox:
    box: Box = await open_box(spec)
    assert isinstance(box, ProcessBox)
    return box


@pytest.mark.slow
@pytest.mark.parametrize(("chosen", "check"), KEPT)
async def test_conformance(
    chosen: str, check: conformance.Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(namespaces.SETTING, chosen)
    await asyncio.wait_for(conformance.run(check, SPEC), 120)


def test_gaps_are_only_about_isolation_and_have_a_reason() -> None:
    names = {check.name for check in conformance.CHECKS}
    assert len(names) == len(conformance.CHECKS)
    for provider, gaps in conformance.KNOWN_GAPS.items():
        assert names >= set(gaps)
        isolation = all(c.container for c in conformance.CHECKS if c.name in gaps)
        assert isolation or provider.endswith("-exec")  # where a shell stands in for the guest
        assert all(len(reason) > 20 for reason in gaps.values())
    sizes = {provider: len(gaps) for provider, gaps in conformance.KNOWN_GAPS.items()}
    assert sizes["docker"] <= 1  # the machine decides about one: see `conformance._may_order`
    assert sizes["process/root"] < sizes["process/user"] < sizes["process/plain"]


@pytest.mark.slow
async def test_a_box_starts_though_its_host_is_busy_for_a_while(mode: str) -> None:
    """The host's process gets no time between the start of the guest and the sending of its program."""

    def children() -> str:
        return Path("/proc/thread-self/children").read_text()

    before = children()
    opening = asyncio.create_task(opened())
    while children() == before and not opening.done():  # noqa: ASYNC110 (the next turn of the loop may send it)
        await asyncio.sleep(0)
    time.sleep(3)  # noqa: ASYNC251
    async with await opening as box:
        assert (await box.exec("echo ready", timeout=60)).text == "ready\n"


async def test_environment_is_not_inherited(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    async with await opened(SPEC.model_copy(update={"env": {"GIVEN": "1"}})) as box:
        assert box.mode == mode
        text = (await box.exec("env; cat /proc/$PPID/environ", timeout=60)).text
        assert "hunter2" not in text
        assert "GIVEN=1" in text
        result = await box.exec(["python3", "-c", "import sys; print(sys.executable)"], timeout=60)
        assert Path(result.text.strip()).parent == Path(sys.executable).parent
        assert box.isolation == "process"
        assert box.path("/workspace/a") == f"{box.workspace}/a"
        assert box.path("/elsewhere") == "/elsewhere"


async def test_memory_and_file_size_are_bounded(mode: str) -> None:
    limits = BoxLimits(memory_mb=64, disk_mb=2)
    async with await opened(SPEC.model_copy(update={"limits": limits})) as box:
        assert not (await box.exec(["python3", "-c", "b'x' * (200 << 20)"], timeout=60)).ok
        assert not (await box.exec("head -c 5M /dev/zero > big", timeout=60)).ok


async def test_the_host_reaches_the_workspace_while_the_box_lives(mode: str) -> None:
    async with await opened() as box:
        await box.write("made", b"inside")
        folder = box.host_workspace
        assert (folder / "made").read_bytes() == b"inside"
        (folder / "left").write_bytes(b"outside")
        assert await box.read("left") == b"outside"
    assert not (folder / "made").exists()


async def test_nothing_is_left(mode: str) -> None:
    box = await opened()
    assert box._process is not None
    assert box._root is not None
    await box.exec("(setsid sleep 600 &)", timeout=60)
    inside = _inside(box._process.pid, box._root)
    assert len(inside) >= 2
    await box.close()
    assert not box._root.exists()
    await until(lambda: not _live(inside))


async def test_a_box_whose_process_is_killed_is_dead_and_leaves_nothing(mode: str) -> None:
    async with await opened() as box:
        assert box._process is not None
        assert box._root is not None
        sleeping = asyncio.create_task(box.exec("sleep 600", timeout=600))
        await box.exec("(setsid sleep 600 &)", timeout=60)
        inside = _inside(box._process.pid, box._root)
        box._process.kill()
        with pytest.raises(BoxDiedError):
            await asyncio.wait_for(sleeping, 60)
    assert not box._root.exists()
    if mode == "plain":  # without a process 1, who kills a guest leaves its orphans
        for pid in _live(inside):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    await until(lambda: not _live(inside))


NEST = """python3 -c "
import os
for _ in range(1100):
    os.mkdir('d')
    os.chdir('d')
" """


@pytest.mark.slow
async def test_a_box_and_its_copy_are_removed_however_deep_their_folders_are(mode: str) -> None:
    async with await opened(SPEC) as box:
        assert (await box.exec(NEST, timeout=600)).code == 0
        copy = await box.copy()
        assert isinstance(copy, CopiedSnapshot)
        await copy.close()
    assert box._root is not None
    assert not any(folder.exists() for folder in (box._root, copy._folder))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_during_a_copy_is_a_failure_of_the_machine(mode: str, tmp_path: Path) -> None:
    error, files = played_on_a_full_disk("process", "copy", tmp_path)
    assert error.startswith("InfrastructureError: a copy of a workspace cannot be stored: ")
    assert error.endswith(": No space left on device")
    assert files == "big"


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.03, 0.1])
async def test_a_cancelled_start_leaves_nothing(mode: str, delay: float) -> None:
    task = asyncio.create_task(open_box(SPEC))
    await asyncio.sleep(delay)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        await task.result().close()
    assert not _folders()


def _folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"{ownership.folder_prefix()}*"))


HARNESS = """
import asyncio, os, signal, sys
from air.sandbox import open_box
from air.sandbox.contract.box import BoxSpec

async def main():
    box = await open_box(BoxSpec(provider="process"))
    await box.exec("(setsid bash -c 'while true; do sleep 0.1; done' &)", timeout=60)
    child = 0
    if sys.argv[1] == "heir":  # a child that was forked, as data loaders are, keeps our pipes open
        child = os.fork()
        if not child:
            os.close(1)
            signal.pause()
    print(box._process.pid, box._root, child, flush=True)
    await box.exec("trap '' TERM; while true; do :; done", timeout=600)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("heir", ["", "heir"])
@pytest.mark.parametrize("attempt", range(2))
async def test_sigkill_of_the_harness_leaves_nothing(
    mode: str, attempt: int, heir: str, tmp_path: Path
) -> None:
    argv, child = [sys.executable, "-c", HARNESS, heir], "0"
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # where no other process collects what is left
    try:
        async with running(*argv, env=env, stdout=asyncio.subprocess.PIPE) as harness:
            assert harness.stdout is not None
            pid, folder, child = (await harness.stdout.readline()).decode().split()
            root = Path(folder)
            await until(lambda: len(_inside(int(pid), root)) >= 3)
            await asyncio.sleep(0.1 * attempt)
            inside = _inside(int(pid), root)
            assert folder in map(str, root.parent.iterdir())
            harness.send_signal(signal.SIGKILL)
        await until(lambda: not root.exists())
        await until(lambda: not _inside(int(pid), root))
        await until(lambda: not _live(inside))
    finally:
        if child != "0":
            os.kill(int(child), signal.SIGKILL)


MANY = """
import asyncio
from air.sandbox import open_box
from air.sandbox.contract.box import BoxSpec

async def main():
    boxes = [await open_box(BoxSpec(provider="process")) for _ in range(32)]
    print(*(box._root for box in boxes), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_sigkill_of_the_harness_leaves_no_folder_of_many_boxes(
    mode: str, tmp_path: Path
) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    argv = [sys.executable, "-c", MANY]
    async with running(*argv, env=env, stdout=asyncio.subprocess.PIPE) as harness:
        assert harness.stdout is not None
        folders = [Path(name) for name in (await harness.stdout.readline()).decode().split()]
        assert len(folders) == 32
        harness.send_signal(
            signal.SIGKILL
        )  # each is told twice: its input ends, and a signal comes
    await until(lambda: not any(folder.exists() for folder in folders))


def _live(pids: set[int]) -> list[int]:
    """Those that run still; a dead one that is not reaped yet does not."""
    states = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            states[pid] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return [pid for pid, state in states.items() if state not in "ZX"]


def _inside(first: int, root: Path) -> set[int]:
    """The live processes of a box: the first one, what descends from it, and what works in `root`."""
    parents, found = dict[int, int](), set[int]()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX":
                parents[int(entry.name)] = int(fields[1])
            if str((entry / "cwd").readlink()).startswith(str(root)):
                found.add(int(entry.name))
        except OSError:
            continue
    found |= {first} & parents.keys()
    size = 0
    while size != len(found):
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found


@pytest.mark.parametrize("folder", ["relative", "/", "/workspace/x", "/etc/x", "/a/../b", "/a/"])
async def test_scratch_folders_are_checked(folder: str) -> None:
    with pytest.raises(ConfigError, match="scratch"):
        await open_box(SPEC.model_copy(update={"scratch": (folder,)}))
