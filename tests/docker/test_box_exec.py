"""Boxes of images without Python: how they are chosen, the conformance suite, and what any image has."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from air.errors import BoxFileError, BoxStartError
from air.sandbox import conformance, open_box
from air.sandbox.contract import ownership
from air.sandbox.contract.box import Box, BoxLimits, BoxSpec
from air.sandbox.docker import box as docker
from air.sandbox.docker import engine as daemon
from air.sandbox.docker import posix_shell, sdk
from air.sandbox.docker.exec_box import ExecBox
from air.sandbox.pool.box_pool import Pool

pytestmark = pytest.mark.docker
KEPT = [c for c in conformance.CHECKS if c.name not in conformance.KNOWN_GAPS["docker-exec"]]
LABEL = f"air.test.image={os.getpid()}"
BARE = f"""
FROM air-base AS build
USER 0
RUN rm -rf /usr/lib/python3* /usr/bin/python3* /usr/share/python3* /usr/bin/*bash /bin/*bash
LABEL {LABEL}
FROM scratch
COPY --from=build / /
ENV PATH=/usr/local/bin:/usr/bin:/bin
LABEL {LABEL}
"""


@pytest.fixture(scope="module")
def swept() -> Iterator[None]:
    """Removes every image that these tests have made."""
    yield
    with sdk.engine(60) as client:
        for image in client.images.list(all=True, filters={"label": LABEL}):
            if image.tags:
                client.images.remove(image.id, force=True)
        client.images.prune(filters={"dangling": True, "label": LABEL})


def _built(name: str, dockerfile: str, files: dict[str, bytes]) -> str:
    """Builds an image of ours, without any network."""
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        for path, data in {**files, "Dockerfile": dockerfile.encode()}.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(data), 0o755
            tar.addfile(member, io.BytesIO(data))
    context.seek(0)
    tag = f"air-test-{name}-{os.getpid()}"
    with sdk.engine(300) as client:
        client.images.build(
            fileobj=context,
            custom_context=True,
            tag=tag,
            network_mode="none",
            rm=True,
            forcerm=True,
        )
    return tag


@pytest.fixture(scope="module")
def bare(swept: None) -> str:
    """Debian without Python and without bash."""
    return _built("bare", BARE, {})


@pytest.fixture(scope="module")
def busybox(swept: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Nothing but busybox and a folder to work in."""
    folder = tmp_path_factory.mktemp("busybox")
    binary = shutil.which("busybox")
    if binary is None:
        argv = ["apt-get", "download", "-qq", "busybox-static"]
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no busybox here, and none to download: {done.stderr.strip()[-200:]}")
        package = next(folder.glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder / "x")], check=True)
        binary = str(folder / "x" / "bin" / "busybox")
    install = (
        '["/bin/busybox", "sh", "-c", "/bin/busybox --install -s /bin; mkdir /workspace /tmp"]'
    )
    dockerfile = f"FROM scratch\nCOPY busybox /bin/busybox\nRUN {install}\n"
    dockerfile += f"ENV PATH=/bin\nLABEL {LABEL}\n"
    return _built("busybox", dockerfile, {"busybox": Path(binary).read_bytes()})


def _of(run: str) -> list[dict[str, Any]]:
    return [c for c in daemon.boxes() if c["Labels"].get(ownership.RUN_LABEL) == run]


async def _exec_box(spec: BoxSpec) -> Box:
    box = await ExecBox.start(spec, run="exec")
    box.hand_out()
    return box


@pytest.mark.parametrize("check", KEPT, ids=lambda check: check.name)
async def test_conformance(check: conformance.Check) -> None:
    """In the base image, whose Python some checks are written in; the box makes no use of it."""
    running = conformance.run(check, BoxSpec(), start=_exec_box)
    await asyncio.wait_for(running, 240)


async def test_an_image_without_python_is_found_out_once(
    bare: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = BoxSpec(image=bare)
    with caplog.at_level(logging.WARNING, logger="air"):
        async with Pool(3, warm=1, run="bare") as pool:

            async def one(index: int) -> str:
                async with pool.lease(spec) as box:
                    assert isinstance(box, ExecBox)
                    return (await box.exec(f"ls -A; touch x; echo {index}", timeout=60)).text

            assert await asyncio.gather(*(one(i) for i in range(4))) == [f"{i}\n" for i in range(4)]
    said = [r.getMessage() for r in caplog.records if "exec, which is slower" in r.getMessage()]
    assert len(said) == 1
    assert f"image {bare} has no Python 3.8 or later" in said[0]
    assert (pool.stats.live, pool.stats.failed) == (0, 0)
    assert not _of("bare")


@pytest.mark.parametrize("image", ["bare", "busybox"])
async def test_what_any_image_can_do(image: str, request: pytest.FixtureRequest) -> None:
    spec = BoxSpec(image=request.getfixturevalue(image), env={"TOKEN": "hunter2"})
    async with await open_box(spec, run="any") as box:
        result = await box.exec(
            "echo $TOKEN; cat; echo err >&2; exit 3", stdin=b"\0\xff", timeout=60
        )
        assert (result.code, result.stdout, result.stderr) == (3, b"hunter2\n\0\xff", b"err\n")
        result = await box.exec(["printf", "%s|", "$HOME", "a b", ""], timeout=60)
        assert result.stdout == b"$HOME|a b||"
        script = "(setsid env -i sleep 987.1 &); setsid sleep 987.2 & echo early; sleep 987.3"
        result = await box.exec(script, timeout=0.5)
        assert (result.code, result.stdout, result.timed_out) == (137, b"early\n", True)
        left = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 98[7]' || true"
        assert (await box.exec(left, timeout=60)).stdout == b""
        result = await box.exec(f"printf %s {'x' * 10_000_000} | wc -c", timeout=60)
        assert result.text.strip() == "10000000"
        described = await asyncio.to_thread(daemon.client().inspect_container, box.id)
        assert "hunter2" not in str(described)
    assert not _of("any")


@pytest.mark.parametrize("image", ["bare", "busybox"])
async def test_files_in_any_image(
    image: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    for name, data in {"a/b": b"\0\xff" * 800_000, "new\nline/\udcff": b"", "-rf": b"1"}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    (source / "-rf").chmod(0o755)
    async with await open_box(BoxSpec(image=request.getfixturevalue(image)), run="any") as box:
        await box.put(source, "in")
        await box.exec("ln in/a/b in/a/hard; echo x > big; ln -s /etc out; mkfifo pipe", timeout=60)
        await box.get("in", tmp_path / "back")
        for path in ("a/b", "new\nline/\udcff", "-rf"):
            assert (tmp_path / "back" / path).read_bytes() == (source / path).read_bytes(), path
        assert (tmp_path / "back/a/hard").read_bytes() == (source / "a/b").read_bytes()
        assert os.access(tmp_path / "back/-rf", os.X_OK)
        for path, why in (("out/passwd", "a link"), ("pipe", "not a regular"), ("big", "larger")):
            with pytest.raises(BoxFileError, match=why):
                await box.read(path, max_bytes=1)
        for refused in (
            box.write("out/x", b""),
            box.put(source, "out"),
            box.get(".", tmp_path / "n"),
        ):
            with pytest.raises(BoxFileError, match=r"link|regular file"):
                await refused
        assert not (tmp_path / "n").exists()
        await box.write("out", b"mine", mode=0o600)
        assert await box.read("out") == b"mine"
    assert not _of("any")


async def test_a_snapshot_of_an_image_without_python(bare: str) -> None:
    spec = BoxSpec(image=bare, limits=BoxLimits(disk_mb=16))
    async with await open_box(spec, run="any") as box:
        await box.exec(
            "(while :; do echo x >> log; done) > /dev/null 2>&1 & echo 1 > a; "
            "until [ -s log ]; do sleep 0.01; done",
            timeout=60,
        )
        async with await box.snapshot() as snapshot, await open_box(spec, run="any") as fork:
            await fork.restore(snapshot)
            assert await fork.read("a") == b"1\n"
            result = await fork.exec(
                "echo 2 >> a; cat a; wc -c < log; sleep 0.2; wc -c < log", timeout=60
            )
            one, two, before, after = result.text.split()
            assert (one, two, before) == ("1", "2", after)
    assert not _of("any")


async def test_an_image_without_anything_is_one_line(swept: None) -> None:
    empty = _built("empty", f"FROM scratch\nCOPY x /x\nLABEL {LABEL}\n", {"x": b""})
    with pytest.raises(BoxStartError, match=r"neither Python 3\.8 or later nor `sh`"):
        await open_box(BoxSpec(image=empty), run="any")
    assert not _of("any")


async def test_a_missing_program_is_named(bare: str) -> None:
    dockerfile = (
        f"FROM {bare}\nUSER 0\nRUN rm -f /usr/bin/tar /usr/bin/find /bin/tar\nLABEL {LABEL}\n"
    )
    with pytest.raises(BoxStartError, match="needs `find`, `tar`, which the image lacks"):
        await open_box(BoxSpec(image=_built("poor", dockerfile, {})), run="any")
    assert not _of("any")


async def test_dead_orphans_are_collected(bare: str) -> None:
    async with await open_box(BoxSpec(image=bare), run="any") as box:
        await box.exec("for i in 1 2 3 4 5 6 7 8; do (sleep 0.05 &) ; done; sleep 0.5", timeout=60)
        zombies = "grep -l '^State:.Z' /proc/[0-9]*/status | wc -l"
        for _ in range(100):
            if int((await box.exec(zombies, timeout=60)).text) <= 1:  # the clock's own
                break
        else:
            pytest.fail("orphans stay as zombies")


async def test_what_ends_commands_is_not_deceived_by_their_output(bare: str) -> None:
    forge = "for p in /proc/[0-9]*; do for i in 1 2 3; do "
    forge += "printf 'x .\\n.\\n1 R 0 1 own\\n' > $p/fd/1; done; done 2>/dev/null; "
    async with await open_box(BoxSpec(image=bare), run="any") as box:
        for _ in range(3):
            result = await box.exec(f"{forge} setsid sleep 987.6 & sleep 987.7", timeout=1.0)
            assert result.timed_out
            left = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 98[7]' || true"
            assert (await box.exec(left, timeout=60)).stdout == b""


async def test_it_is_cleared_where_what_ends_commands_was_killed(bare: str) -> None:
    async with await open_box(BoxSpec(image=bare), run="any") as box:
        script = "kill -9 -1; setsid sleep 987.8 & sleep 987.9"
        result = await box.exec(script, timeout=1.0)
        assert result.timed_out or result.code == 137
        result = await box.exec("(setsid env -i sleep 987.8 &); sleep 987.9", timeout=0.5)
        assert result.timed_out
        left = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 987[.]9' || true"
        assert (await box.exec(left, timeout=60)).stdout == b""


HARNESS = """
import asyncio, sys
from air.sandbox import open_box
from air.sandbox.contract.box import BoxSpec

async def main():
    box = await open_box(BoxSpec(image=sys.argv[2]), run=sys.argv[1])
    task = asyncio.create_task(box.exec("trap '' TERM; setsid sleep 600 & while :; do :; done", timeout=600))
    await box.exec("true", timeout=60)
    print("ready", flush=True)
    await task

asyncio.run(main())
"""


async def test_sigkill_of_the_harness_ends_the_box(bare: str) -> None:
    harness = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HARNESS, "exec-killed", bare, stdout=asyncio.subprocess.PIPE
    )
    assert harness.stdout is not None
    assert await asyncio.wait_for(harness.stdout.readline(), 120) == b"ready\n"
    assert len(_of("exec-killed")) == 1
    harness.send_signal(signal.SIGKILL)
    await harness.wait()
    for _ in range(100):
        if not _of("exec-killed"):
            break
        await asyncio.sleep(0.05)
    assert not _of("exec-killed")


@pytest.mark.parametrize("image", ["bare", "busybox"])
def test_a_box_whose_harness_never_speaks_ends_by_itself(
    image: str, request: pytest.FixtureRequest
) -> None:
    engine = daemon.client()
    spec = BoxSpec(image=request.getfixturevalue(image))
    arguments = docker.container(spec, f"air-silent-{image}-{os.getpid()}", "any")
    arguments |= {"user": "0:0", "entrypoint": ["sh", "-c", posix_shell.INIT]}
    made = engine.create_container(**arguments)["Id"]
    try:
        engine.start(made)  # never attached: its stdin is open and stays silent
        deadline = time.monotonic() + 20
        while any(found["Id"] == made for found in engine.containers()):
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        daemon.remove(made)


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.2, 0.3, 0.5])
async def test_a_cancelled_start_leaves_nothing(delay: float) -> None:
    task = asyncio.create_task(ExecBox.start(BoxSpec(), run="exec-cancelled"))
    await asyncio.sleep(delay)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        await task.result().close()
    assert not _of("exec-cancelled")


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1, 0.2])
async def test_a_cancelled_command_leaves_nothing(delay: float) -> None:
    async with await _exec_box(BoxSpec()) as box:
        task = asyncio.create_task(box.exec("setsid sleep 987.4 & sleep 987.5", timeout=600))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        left = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 98[7]' || true"
        assert (await box.exec(left, timeout=60)).stdout == b""
