"""Boxes over the socket of rootless Podman: a `podman system service` of an ordinary user.

Skipped, with the reason, where Podman is not installed or does not work for an ordinary user. As root
these tests make a user for the while, else they take whoever runs them; nothing of theirs stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from air.errors import BoxDiedError, MissingError
from air.sandbox import conformance, open_box
from air.sandbox.contract import ownership
from air.sandbox.contract.box import Box, BoxSpec
from air.sandbox.docker import air_images, container_spec, engine, portable_python
from air.sandbox.docker.container_stream import AttachedContainer, create
from air.sandbox.docker.engine_errors import lacks_python
from air.sandbox.ops import orphans
from air.sandbox.pool.box_pool import Pool
from tests.docker.client import box_with_python, boxes_of, docker_client
from tests.processes import running
from tests.until import until

pytestmark = [
    pytest.mark.podman,
    pytest.mark.skipif(
        os.environ.get("AIR_TEST_PODMAN") != "1",
        reason="boxes over rootless Podman take minutes and make a user: set AIR_TEST_PODMAN=1",
    ),
]
INSTALL = "apt-get install podman uidmap slirp4netns fuse-overlayfs"
SPEC = BoxSpec()
KEPT = [c for c in conformance.CHECKS if c.name not in conformance.KNOWN_GAPS["podman"]]
CONFIG = """[engine]
lock_type = "file"
events_logger = "file"
cgroup_manager = "cgroupfs"
"""


@dataclass
class Rootless:
    """Podman of one user, with all that it keeps in one folder."""

    user: pwd.struct_passwd
    folder: Path
    runtime: str = ""

    def argv(self, *arguments: str) -> list[str]:
        """The command for `podman` with these arguments, as the user."""
        become: list[str] = []
        if os.geteuid() == 0:
            ids = [f"--reuid={self.user.pw_uid}", f"--regid={self.user.pw_gid}"]
            become = ["setpriv", *ids, "--init-groups"]
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
        }
        where = [f"--root={self.folder}/storage", f"--runroot={self.folder}/run/containers"]
        given = [f"--runtime={self.runtime}"] if self.runtime else []
        setting = [f"{key}={value}" for key, value in env.items()]
        return [*become, "env", "-i", *setting, "podman", *where,
                "--storage-driver=overlay", *given, *arguments]  # fmt: skip

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs `podman` to its end, in a folder that the user may be in."""
        return subprocess.run(
            self.argv(*arguments), capture_output=True, text=True, check=False, cwd="/", **options
        )

    def pick_runtime(self) -> str:
        """Finds a runtime that starts a container; returns why there is none."""
        for self.runtime in ("crun", "runc"):
            done = self.run("run", "--rm", "--network=none", "air-base", "true")
            if done.returncode == 0:
                return ""
        return done.stderr.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def rootless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rootless]:
    """Podman that has the base image."""
    missing = [p for p in ("podman", "newuidmap", "setpriv") if shutil.which(p) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: {INSTALL}")
    if problem := air_images.why_not_ready():
        pytest.skip(f"the base image is taken from Docker: {problem}")
    with contextlib.ExitStack() as stack:
        user = stack.enter_context(_user()) if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
        folder = Path(user.pw_dir if os.geteuid() == 0 else tmp_path_factory.mktemp("podman"))
        podman = Rootless(user, folder)
        (folder / "run").mkdir(mode=0o700)
        (folder / "containers.conf").write_text(CONFIG)
        os.chown(folder / "run", user.pw_uid, user.pw_gid)
        stack.callback(_clear, podman)
        _load(podman)
        if problem := podman.pick_runtime():
            pytest.skip(f"podman starts no container for an ordinary user here: {problem}")
        yield podman


@contextlib.contextmanager
def _user() -> Iterator[pwd.struct_passwd]:
    """An ordinary user for the while, who has subordinate ids."""
    name = f"air-podman-{os.getpid()}"
    done = subprocess.run(["useradd", "--create-home", name], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no user for podman can be made: {done.stderr.decode().strip()}")
    try:
        if f"{name}:" not in Path("/etc/subuid").read_text():
            pytest.skip("a new user has no subordinate ids here (SUB_UID_COUNT in /etc/login.defs)")
        yield pwd.getpwnam(name)
    finally:
        deadline = time.monotonic() + 60
        remove = ["userdel", "--remove", name]
        while subprocess.run(remove, capture_output=True, check=False).returncode == 8:
            assert time.monotonic() < deadline, f"processes of {name} do not end"
            time.sleep(0.1)


def _load(podman: Rootless) -> None:
    """Gives Podman the base image that Docker has."""
    with docker_client() as engine:
        saved = engine.images.get("air-base").save(named=True)
        argv = podman.argv("load", "--quiet")
        pipe = subprocess.PIPE
        with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/") as load:
            assert load.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                for piece in saved:
                    load.stdin.write(piece)
            _, said = load.communicate()
    if load.returncode:
        pytest.skip(f"podman does not work for an ordinary user: {said.decode().strip()[-300:]}")


def _clear(podman: Rootless) -> None:
    """Removes what belongs to the user's subordinate ids, and ends what Podman leaves running: the
    process that holds the namespace, and (for five minutes) one for each exec."""
    podman.run("rm", "--all", "--force", "--time=0")
    podman.run("unshare", "rm", "-rf", str(podman.folder / "storage"))
    podman.run("system", "migrate")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.geteuid() == 0 and process.stat().st_uid == podman.user.pw_uid:
                os.kill(int(process.name), signal.SIGKILL)


@pytest.fixture(scope="module")
def _service(rootless: Rootless) -> Iterator[str]:
    host = f"unix://{rootless.folder}/run/air.sock"
    with (rootless.folder / "service.log").open("wb") as log:
        argv = rootless.argv("system", "service", "--time=0", host)
        service = subprocess.Popen(argv, stdout=log, stderr=log, cwd="/")
        try:
            deadline = time.monotonic() + 60
            while not Path(host.removeprefix("unix://")).exists():
                assert service.poll() is None, (rootless.folder / "service.log").read_text()
                assert time.monotonic() < deadline, "no socket"
                time.sleep(0.05)
            yield host
        finally:
            service.terminate()
            service.wait(60)


@pytest.fixture
def podman(_service: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its socket, as DOCKER_HOST."""
    monkeypatch.setenv("DOCKER_HOST", _service)
    return _service


async def _with_mounted_python(spec: BoxSpec) -> Box:
    python = await portable_python.mounted("podman-python")
    box = await box_with_python(spec, "podman-python", python)
    box.hand_out()
    return box


TWO_BOXES = """
import asyncio, json, logging
from air.sandbox.docker import engine, engine_support
from air.sandbox import open_box
from air.sandbox.contract.box import BoxSpec

async def main():
    logging.basicConfig(format="said: %(message)s")
    for _ in range(2):
        async with await open_box(BoxSpec()) as box:
            print(json.dumps(engine_support.ignored_limits(engine.client().inspect_container(box.id))))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def unheld(_service: str) -> list[str]:
    """The limits that do not hold here, as a process of its own is told."""
    argv = [sys.executable, "-c", TWO_BOXES]
    env = {**os.environ, "DOCKER_HOST": _service}
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=env)
    first, second = (json.loads(row) for row in done.stdout.splitlines())
    said = [row for row in done.stderr.splitlines() if row.startswith("said: ")]
    assert first == second
    assert len(said) == bool(first), done.stderr
    assert not said or f"holds no box to its limit of {', '.join(first)}" in said[0]
    return list(first)


@pytest.mark.usefixtures("podman")
def test_limits_that_do_not_hold_are_said_once(unheld: list[str]) -> None:
    assert unheld in ([], ["CPU"], ["memory", "processes", "CPU"])


@pytest.mark.usefixtures("podman")
@pytest.mark.parametrize("check", KEPT, ids=lambda check: check.name)
async def test_conformance(check: conformance.Check, unheld: list[str]) -> None:
    if unheld and check.name in conformance.LIMITS:
        pytest.skip(f"this engine holds no box to its limit of {', '.join(unheld)}")
    await asyncio.wait_for(conformance.run(check, SPEC), 600)


FEW = {
    "standard-input-is-what-was-given",
    "a-timeout-kills-the-whole-tree",
    "a-cancelled-exec-kills-its-command",
    "what-is-written-is-read",
    "a-folder-goes-in-and-comes-out",
    "the-guest-cannot-be-killed-stopped-or-traced",
    "the-time-to-live-ends-the-box",
    "a-second-user-is-kept-apart",
    "open-files-are-bounded",
    "a-crash-leaves-no-core",
}


@pytest.mark.usefixtures("podman")
@pytest.mark.parametrize("check", [c for c in KEPT if c.name in FEW], ids=lambda check: check.name)
async def test_boxes_with_a_mounted_python(check: conformance.Check) -> None:
    await asyncio.wait_for(conformance.run(check, SPEC, start=_with_mounted_python), 240)


@pytest.mark.usefixtures("podman")
async def test_only_the_boxes_own_folders_can_be_written() -> None:
    async with await open_box(SPEC.model_copy(update={"scratch": ("/scratch",)})) as box:
        writable = (
            "find / -xdev -writable -type d 2>/dev/null; for d in /run /var/tmp /dev /dev/shm "
        )
        writable += "/tmp /workspace /scratch; do touch $d/x 2>/dev/null && echo $d; done"
        found = (await box.exec(writable, timeout=60)).text.split()
        assert set(found) == {"/dev/shm", "/tmp", "/workspace", "/scratch"}
        assert (await box.exec("stat -c '%u %a' . /scratch", timeout=60)).text == "1000 755\n" * 2


@pytest.mark.usefixtures("podman")
async def test_a_missing_image_and_a_missing_python() -> None:
    with pytest.raises(MissingError, match="`air-no-such` is not built here"):
        await open_box(SPEC.model_copy(update={"image": "air-no-such"}), run="missing")
    arguments = container_spec.container(SPEC, "air-podman-nothing", "missing")
    attached = AttachedContainer("air-podman-nothing")
    try:
        with pytest.raises(engine.FOREIGN) as caught:
            await attached.start(arguments | {"environment": {"PATH": "/nowhere"}}, b"")
        assert lacks_python(str(caught.value))
    finally:
        await attached.close()
    assert not boxes_of("missing")


@pytest.mark.usefixtures("podman")
async def test_the_pool_over_podman() -> None:
    async with Pool(3, warm=1, run="podman-pool") as pool:

        async def one(index: int) -> str:
            async with pool.lease(SPEC) as box:
                return (await box.exec(f"ls -A; touch x; echo {index}", timeout=60)).text

        assert await asyncio.gather(*(one(i) for i in range(5))) == [f"{i}\n" for i in range(5)]
    assert not boxes_of("podman-pool")
    assert pool.stats.live == 0


@pytest.mark.usefixtures("podman")
async def test_a_container_that_is_taken_away_is_a_dead_box() -> None:
    async with await open_box(SPEC, run="podman-taken") as box:
        running = asyncio.create_task(box.exec("sleep 60", timeout=60))
        await box.exec("true", timeout=60)
        await asyncio.to_thread(engine.client().kill, box.id)
        with pytest.raises(BoxDiedError, match=box.id):
            await running
    assert not boxes_of("podman-taken")


@pytest.mark.usefixtures("podman")
@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3, 0.6])
async def test_a_cancelled_start_leaves_nothing(delay: float) -> None:
    task = asyncio.create_task(open_box(SPEC, run="podman-cancelled"))
    await asyncio.sleep(delay)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        await task.result().close()
    assert not boxes_of("podman-cancelled")


HARNESS = """
import asyncio, sys
from air.sandbox.contract.box import BoxSpec
from air.sandbox.docker import portable_python
from air.sandbox.pool.box_pool import Pool
from tests.docker.client import box_with_python

BUSY = "(setsid bash -c \\"trap '' TERM; while true; do sleep 0.1; done\\" &); sleep 600"

async def main():
    async with Pool(3, warm=1, run=sys.argv[1]) as pool:
        boxes = [await pool.take(BoxSpec()) for _ in range(2)]
        python = await portable_python.mounted(sys.argv[1])
        boxes.append(await box_with_python(BoxSpec(), sys.argv[1], python))
        tasks = [asyncio.create_task(box.exec(BUSY, timeout=600)) for box in boxes]
        while pool.stats.started < 3:
            await asyncio.sleep(0.05)
        for box in boxes:
            await box.exec("true", timeout=60)
        print("ready", flush=True)
        await asyncio.gather(*tasks)

asyncio.run(main())
"""


@pytest.mark.usefixtures("podman")
async def test_sigkill_leaves_no_container() -> None:
    argv = [sys.executable, "-c", HARNESS, "podman-killed"]
    async with running(*argv, stdout=asyncio.subprocess.PIPE) as harness:
        assert harness.stdout is not None
        assert await asyncio.wait_for(harness.stdout.readline(), 120) == b"ready\n"
        assert len(boxes_of("podman-killed")) == 4
        harness.send_signal(signal.SIGKILL)
    await until(lambda: not boxes_of("podman-killed"))


@pytest.fixture
def dead_pid() -> int:
    """The number of a process that is no more."""
    return int(subprocess.check_output([sys.executable, "-c", "import os; print(os.getpid())"]))


@pytest.mark.usefixtures("podman")
async def test_what_never_started_is_collected(dead_pid: int) -> None:
    host, _, start = ownership.owner().rsplit(":", 2)
    arguments = container_spec.container(SPEC, "air-podman-created", "podman-created")
    arguments["labels"][ownership.OWNER_LABEL] = f"{host}:{dead_pid}:{start}"
    await asyncio.to_thread(create, arguments)
    assert len(boxes_of("podman-created")) == 1
    assert "air-podman-created" in await asyncio.to_thread(orphans.collect)
    assert not boxes_of("podman-created")
