"""Namespaces of process boxes: which ones there are, why, and what is seen inside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import air
from air.errors import BoxFileError, ConfigError
from air.sandbox import open_box
from air.sandbox.contract.box import BoxLimits, BoxSpec
from air.sandbox.guest import users
from air.sandbox.guest.frames import frame
from air.sandbox.process import box as process
from air.sandbox.process import namespaces
from air.sandbox.wire.connection import interpreter

SPEC = BoxSpec(provider="process")
REPOSITORY = Path(air.__file__).parents[1]
MODE = namespaces.detect().mode
isolated = pytest.mark.skipif(MODE == "plain", reason=f"{process.namespaces()}")
as_root = pytest.mark.skipif(MODE != "root", reason=f"needs root: {process.namespaces()}")
SAY = """
import asyncio, sys
from air.sandbox import open_box
from air.sandbox.process import box as process
from air.sandbox.contract.box import BoxSpec

async def main():
    print(process.namespaces())
    spec = BoxSpec(provider="process", second_user=sys.argv[2:] == ["second"])
    async with await open_box(spec) as box:
        print((await box.exec(sys.argv[1], timeout=60)).text, box.mode)

asyncio.run(main())
"""


def _say(
    *before: str, script: str = "echo runs", setting: str = "auto", second: bool = False
) -> subprocess.CompletedProcess[str]:
    """What a process says that opens a box; `before` is the command that starts it."""
    env = {**os.environ, namespaces.SETTING: setting, "PYTHONPATH": str(REPOSITORY)}
    argv = [*before, sys.executable, "-c", SAY, script, *(["second"] if second else [])]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


def test_the_setting_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(namespaces.SETTING, "best")
    with pytest.raises(
        ConfigError, match=r"AIR_PROCESS_BOX: 'best' is not a mode .* set it to auto, root"
    ):
        namespaces.detect()
    monkeypatch.setenv(namespaces.SETTING, "plain")
    assert process.namespaces() == "plain: AIR_PROCESS_BOX=plain"
    other = "user" if os.geteuid() == 0 else "root"
    monkeypatch.setenv(namespaces.SETTING, other)
    with pytest.raises(
        ConfigError, match=f"'{other}' does not work here: .* — set it to auto or plain"
    ):
        namespaces.detect()


@as_root
@pytest.mark.skipif(not shutil.which("setpriv"), reason="there is no setpriv")
def test_where_the_kernel_allows_none_boxes_are_plain_and_it_is_said() -> None:
    unable = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]
    done = _say(*unable)
    assert done.stdout.splitlines()[0].startswith("plain: no namespaces: ")
    assert "Operation not permitted" in done.stdout
    assert done.stdout.endswith("runs\n plain\n")
    refused = _say(*unable, setting="root")
    assert "'root' does not work here: " in refused.stderr
    assert "Operation not permitted" in refused.stderr
    assert not refused.stdout


@as_root
@pytest.mark.skipif(not shutil.which("unshare"), reason="there is no unshare")
def test_root_of_a_container_only_has_boxes_of_a_user() -> None:
    script = "id -u; echo ${AIR_SECOND_UID-none}"
    done = _say("unshare", "--user", "--map-root-user", script=script, second=True)
    assert done.stdout == "user: namespaces of a user's own\n1000\nnone\n user\n", done.stderr


@pytest.mark.slow
@as_root
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.full)])
def test_an_ordinary_user_passes_the_conformance_suite(every: int) -> None:
    if not shutil.which("mount"):
        pytest.skip("there is no mount")
    env = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    script = str(Path(__file__).with_name("other_user.py"))
    argv = [sys.executable, script, "65531", str(every)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=900)
    lines = done.stdout.splitlines()
    if lines and lines[0].startswith("plain: no namespaces: "):
        pytest.skip(f"ordinary users: {lines[0]}")
    assert lines[:1] == ["user: namespaces of a user's own"], done.stderr
    assert lines[-1] == "0 failed", [line for line in lines if not line.startswith("held")]
    assert len(lines) > 40 / every


@isolated
async def test_nothing_of_the_host_is_seen_but_its_system_and_its_python() -> None:
    async with await open_box(SPEC) as box:
        listed = (await box.exec("ls -A /", timeout=60)).text.split()
        top = {"workspace", "tmp", "proc", "sys", "dev", *(p[1:] for p in namespaces._SYSTEM)}
        assert set(listed) <= top | {Path(path).parts[1] for path in namespaces._visible()}
        hidden = [REPOSITORY / "tasks", REPOSITORY / "air", Path(__file__), "/var/run/docker.sock"]
        for path in hidden:
            assert (await box.exec(["ls", str(path)], timeout=60)).code == 2, path
        folders = [
            f"{path}/air-was-here" for path in (sys.prefix, "/usr", "/etc", "", "/dev", "/sys")
        ]
        for path in (*folders, "/etc/passwd", "/proc/sys/kernel/shmall"):
            result = await box.exec(f"echo 1 > {path}", timeout=60)
            assert b"Read-only file system" in result.stderr, (path, result)
        assert (await box.exec("whoami; hostname; id -u", timeout=60)).text == "agent\nbox\n1000\n"


@isolated
async def test_a_box_has_a_loopback_and_terminals_of_its_own() -> None:
    talk = (
        "import os, socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname()).close()\n"
        "print(os.ttyname(os.openpty()[1]))\n"
    )
    async with await open_box(SPEC) as box:
        result = await box.exec(["python3", "-c", talk], timeout=60)
        assert result.text == "/dev/pts/0\n"


@isolated
async def test_mounts_of_a_box_are_nowhere_else() -> None:
    async with await open_box(SPEC.model_copy(update={"scratch": ("/air-scratch",)})) as box:
        await box.write("/air-scratch/x", b"1")
        table = Path("/proc/self/mountinfo").read_text()  # noqa: ASYNC240
        assert "air-scratch" not in table
        assert "air-box-" not in table


@isolated
async def test_what_the_host_has_there_moves_a_writable_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tool").write_bytes(b"tool")
    tmp_path.chmod(0o755)  # noqa: ASYNC240
    monkeypatch.setenv(namespaces.SHOW, str(tmp_path))
    where, shown = namespaces.places(("/workspace", "/tmp", "/usr/own", str(tmp_path.parent)))
    assert where["/workspace"] == "/workspace"
    assert where["/tmp"] == "/tmp"
    assert where["/usr/own"] == "/box/usr/own"
    assert where[str(tmp_path.parent)] == f"/box{tmp_path.parent}"
    assert str(tmp_path) in shown
    async with await open_box(SPEC.model_copy(update={"scratch": ("/opt/own",)})) as box:
        assert (await box.exec(["cat", str(tmp_path / "tool")], timeout=60)).text == "tool"
        assert not (await box.exec(f"> {tmp_path}/mine", timeout=60)).ok
        moved = "/box/opt/own" if "/opt" in shown else "/opt/own"
        assert box.path("/opt/own/x") == f"{moved}/x"
        await box.write("/opt/own/x", b"1")
        assert (await box.exec(["cat", f"{moved}/x"], timeout=60)).text == "1"


def test_what_is_to_be_shown_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("/air-no-such-folder", "relative", "/"):
        monkeypatch.setenv(namespaces.SHOW, f"/usr:{wrong}")
        with pytest.raises(ConfigError, match=f"AIR_PROCESS_SHOW: '{wrong}' cannot be shown"):
            namespaces.places(("/workspace",))


@isolated
async def test_the_size_of_every_folder_holds() -> None:
    spec = SPEC.model_copy(update={"limits": BoxLimits(disk_mb=2)})
    async with await open_box(spec) as box:
        with pytest.raises(BoxFileError, match="No space left"):
            await box.write("big", b"x" * (3 << 20))
        room = await box.exec("df -Pk . | awk 'NR > 1 {print $2}'", timeout=60)
        assert room.text == "2048\n"


def test_only_the_devices_of_its_gpus(tmp_path: Path) -> None:
    told = "Model: \t NVIDIA H200\nGPU UUID: \t GPU-{0}\nBus Location: \t 0000:{0}\nDevice Minor: \t {1}\n"
    for index, uuid in enumerate("abc"):
        folder = tmp_path / "gpus" / f"0000:0{index}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(told.format(uuid, 2 - index))
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    where = {"driver": str(tmp_path / "gpus"), "dev": str(tmp_path)}
    found = namespaces.gpu_devices(["GPU-c", "GPU-b"], **where)
    assert found == [f"{tmp_path}/{n}" for n in ("nvidia1", "nvidia0", "nvidiactl", "nvidia-uvm")]
    assert namespaces.gpu_devices(["GPU-d"], **where) == []
    assert namespaces.gpu_devices([], **where) == []
    assert namespaces.gpu_devices(["GPU-a"], driver=str(tmp_path / "absent")) == []


@isolated
def test_a_device_is_there_only_if_given(tmp_path: Path) -> None:
    device = next(path for path in ("/dev/kmsg", "/dev/fuse") if Path(path).exists())
    where, shown = namespaces.places(("/workspace", "/tmp"))
    for given in ([], [device]):
        folder = tmp_path / str(len(given))
        folder.mkdir()
        layout = namespaces.layout(SPEC, MODE, where, shown, str(folder), given)
        layout["trial"] = ["bash", "-c", "ls -d /dev/kmsg /dev/fuse"]
        argv = interpreter(sys.executable, namespaces.program())
        sent = namespaces.program() + frame(layout)
        done = subprocess.run(argv, input=sent, capture_output=True, check=False)
        assert done.stdout.decode().split() == given
        assert not folder.exists()


@as_root
@pytest.mark.skipif(not shutil.which("unshare"), reason="there is no unshare")
def test_mounts_are_private_where_the_hosts_are_shared() -> None:
    done = _say("unshare", "--mount", "--propagation", "shared")
    assert done.stdout == "root: namespaces as root\nruns\n root\n", done.stderr


@isolated
@pytest.mark.skipif(not namespaces.counts_by_namespace(), reason="needs Linux 5.14")
async def test_processes_of_commands_are_limited() -> None:
    async with await open_box(SPEC.model_copy(update={"limits": BoxLimits(pids=20)})) as box:
        most = (
            20 if namespaces.detect().mode == "root" else 21
        )  # with the guest, if it is the same user
        assert (await box.exec("ulimit -u; ulimit -Hu", timeout=60)).text == f"{most}\n{most}\n"


@isolated
async def test_the_guest_has_only_the_privileges_that_it_needs() -> None:
    several = namespaces.detect().mode == "root"
    async with await open_box(SPEC) as box:
        rows = (await box.exec("grep -E '^(Cap|NoNewPrivs|Uid)' /proc/1/status", timeout=60)).text
        fields = dict(row.split(":\t") for row in rows.splitlines())
        assert fields.pop("Uid").split() == [*["65532" if several else "1000"] * 3, "1000"]
        assert fields.pop("NoNewPrivs") == "1"
        needed = sum(1 << number for number in (users.KILL, users.SETGID, users.SETUID))
        masks = {name: int(mask, 16) for name, mask in fields.items()}
        own = dict.fromkeys(("CapPrm", "CapEff"), needed if several else 0)
        assert masks == dict.fromkeys(("CapInh", "CapBnd", "CapAmb"), 0) | own


@as_root
@pytest.mark.skipif(not shutil.which("setpriv"), reason="there is no setpriv")
def test_no_group_of_roots_comes_along() -> None:
    done = _say("setpriv", "--groups", "12,34", script="id -G; cat /proc/self/gid_map")
    ids = ["1000", "0", str(namespaces.HOST_IDS), "65536"]
    assert done.stdout.split()[4:] == [*ids, "root"], done


@as_root
async def test_the_root_of_a_graders_box_is_nobody_on_the_host() -> None:
    async with await open_box(SPEC.model_copy(update={"second_user": True})) as box:
        assert isinstance(box, process.ProcessBox)
        await box.exec("touch made; id -u", timeout=60)
        assert (box.host_workspace / "made").stat().st_uid == namespaces.HOST_IDS
        shadow = await box.exec("head -c 1 /etc/shadow", timeout=60)
        assert b"Permission denied" in shadow.stderr
