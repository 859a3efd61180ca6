"""File locks: real processes, real users, a folder of the test's own."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from air.errors import ConfigError
from air.sandbox.pool import file_locks

ROUNDS = 300
CONTENDER = """
import os, sys, time
from air.sandbox.pool import file_locks as locks

inside, rounds = sys.argv[1], int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(rounds):
    while (lock := locks.acquire("one.0")) is None:
        time.sleep(0)
    os.close(os.open(inside, os.O_CREAT | os.O_EXCL))  # fails where somebody else is inside
    os.unlink(inside)
    lock.release()
    time.sleep(0)
"""
HOLDER = """
import sys, time
from air.sandbox.pool import file_locks as locks

lock = locks.acquire(sys.argv[1], run="other")
print("held" if lock else "refused", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(file_locks.FOLDER_ENV, str(tmp_path / "locks"))
    return tmp_path / "locks"


def start(script: str, *args: str, **more: Any) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    argv = [sys.executable, "-c", script, *args]
    return subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, **more)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> int:
    process.communicate("\n", timeout=120)
    return process.returncode


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_two_processes_are_never_inside_together(tmp_path: Path) -> None:
    both = [start(CONTENDER, str(tmp_path / "inside"), str(ROUNDS)) for _ in range(2)]
    assert [line(process) for process in both] == ["ready", "ready"]
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [go_on(process) for process in both] == [0, 0]


def test_the_first_free_one_is_taken() -> None:
    first, second = file_locks.acquire("a.0", "a.1"), file_locks.acquire("a.0", "a.1")
    assert first is not None
    assert second is not None
    assert (first.name, second.name) == ("a.0", "a.1")
    assert file_locks.acquire("a.0", "a.1") is None
    first.release()
    first.release()
    again = file_locks.acquire("a.1", "a.0")
    assert again is not None
    assert again.name == "a.0"
    assert file_locks.names("a.") == ["a.0", "a.1"]


def test_a_killed_holder_frees_it() -> None:
    other = start(HOLDER, "a.0")
    assert line(other) == "held"
    assert file_locks.acquire("a.0") is None
    holder = file_locks.holder("a.0")
    assert holder is not None
    assert (holder.pid, holder.run) == (other.pid, "other")
    assert f"pid {other.pid} (" in str(holder)
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert file_locks.holder("a.0") is None
    assert file_locks.acquire("a.0") is not None
    other.communicate()


def test_a_release_frees_it_though_a_child_has_a_copy() -> None:
    lock = file_locks.acquire("a.0")
    assert lock is not None
    with start("input()", pass_fds=[lock.fd]) as child:
        lock.release()
        assert file_locks.acquire("a.0") is not None
        go_on(child)


def test_a_lock_outlives_its_owner_in_a_process_that_inherited_it() -> None:
    script = HOLDER.replace("sys.stdin", "import subprocess\nkeep = subprocess.Popen(['cat'], "
                            "pass_fds=[lock.fd])\nprint(keep.pid, flush=True)\nsys.stdin")  # fmt: skip
    other = start(script, "a.0")
    assert line(other) == "held"
    keeper = int(line(other))
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert file_locks.acquire("a.0") is None
    os.kill(keeper, signal.SIGKILL)
    wait_for(lambda: file_locks.acquire("a.0") is not None)
    other.communicate()


def wait_for(what: Any) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


FORKED = """
import os
from air.sandbox.pool import file_locks as locks

lock = locks.acquire("a.0")
if (child := os.fork()) == 0:
    lock.release()
    os._exit(0)
os.waitpid(child, 0)
print("held" if locks.acquire("a.0") is None else "lost")
"""


def test_a_fork_that_releases_leaves_it_to_its_parent() -> None:
    assert subprocess.check_output([sys.executable, "-c", FORKED], text=True) == "held\n"


def test_folder_and_files_are_for_all_users_whatever_the_umask(folder: Path) -> None:
    argv = [
        sys.executable,
        "-c",
        "from air.sandbox.pool import file_locks as locks; locks.acquire('a.0')",
    ]
    subprocess.run(argv, check=True, umask=0o077)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE((folder / "a.0").stat().st_mode) == 0o666
    assert [path.name for path in folder.parent.iterdir()] == ["locks"]
    assert {path.name for path in folder.iterdir()} == {".air", "a.0"}


MAKERS = """
import os, sys, time
from air.sandbox.pool import file_locks as locks

base, began = sys.argv[1], float(sys.argv[2])
for turn in range(1000):
    os.environ["AIR_LOCK_DIR"] = f"{base}/{turn}"
    due = began + turn * 0.002
    time.sleep(max(0.0, due - time.time() - 0.0003))
    while time.time() < due:
        pass
    held = locks.acquire(f"{os.getpid()}.0")
    assert locks.holder(held.name).pid == os.getpid()
"""


@pytest.mark.slow
def test_the_folder_is_made_by_several_at_once(tmp_path: Path) -> None:
    began = str(time.time() + 2)
    both = [start(MAKERS, str(tmp_path), began) for _ in range(2)]
    assert [go_on(process) for process in both] == [0, 0]
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == list(range(1000))


AS_NOBODY = """
import os, sys
from air.sandbox.pool import file_locks as locks

os.setgid(65534)
os.setuid(65534)
mine, theirs = locks.acquire("mine.0"), locks.acquire("theirs.0")
print(mine is not None, theirs is not None, flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_users_share_them(folder: Path, tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents[:-2]):
        parent.chmod(parent.stat().st_mode | 0o111)
    held = file_locks.acquire("theirs.0")
    assert held is not None
    other = start(AS_NOBODY)
    assert line(other) == "True False"
    assert file_locks.acquire("mine.0") is None
    owner = file_locks.holder("mine.0")
    assert owner is not None
    assert owner.user == "nobody"
    held.release()
    assert go_on(other) == 0
    assert file_locks.acquire("mine.0") is not None  # another user's file, in a sticky folder


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("as it was")
    assert file_locks.acquire("b.0") is not None
    (folder / "a.0").symlink_to(precious)
    (folder / "c.0").symlink_to(tmp_path / "new")
    for name in ("a.0", "c.0"):
        with pytest.raises(ConfigError, match=rf"{name}: .*symbolic links — remove it"):
            file_locks.acquire(name)
        with pytest.raises(ConfigError, match=name):
            file_locks.holder(name)
    assert precious.read_text() == "as it was"
    assert not (tmp_path / "new").exists()


def test_a_folder_that_is_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="AIR_LOCK_DIR: the folder of locks"):
        file_locks.acquire("a.0")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_fifo_is_refused_and_nobody_waits_for_it(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / "a.0")
    for look in (file_locks.acquire, file_locks.holder, file_locks.wanted):
        with pytest.raises(ConfigError, match=r"a\.0: .* not a regular file — remove it"):
            look("a.0")


def test_a_folder_that_cannot_be_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(file_locks.FOLDER_ENV, "/proc/none/locks")
    with pytest.raises(ConfigError) as caught:
        file_locks.acquire("a.0")
    assert str(caught.value) == (
        "AIR_LOCK_DIR: the folder of locks /proc/none/locks cannot be used: No such file or "
        "directory — set it to a folder that all users of this machine may write: "
        "sudo mkdir -m 1777 /proc/none/locks"
    )


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("", "unknown"),
        ("[1]\n", "unknown"),
        ('{"pid": null, "user": "x", "run": "y"}\n', "unknown"),
        ('{"pid": 1e999, "user": "x", "run": "y"}\n', "unknown"),
        pytest.param("[" * 2000, "unknown", id="nested"),
        (json.dumps({"pid": 1, "user": "\x1b[2J" + "x" * 99, "run": "r"}), "?[2J" + "x" * 56),
    ],
)
def test_what_a_file_says_is_only_shown(folder: Path, text: str, user: str) -> None:
    lock = file_locks.acquire("a.0")
    assert lock is not None
    (folder / "a.0").write_text(text)
    holder = file_locks.holder("a.0")
    assert holder is not None
    assert holder.user == user
    lock.release()
    assert file_locks.holder("a.0") is None


def test_a_longer_line_leaves_nothing_of_itself(folder: Path) -> None:
    for run in ("long" * 20, "short"):
        lock = file_locks.acquire("a.0", run=run)
        assert lock is not None
        lock.release()
    assert json.loads((folder / "a.0").read_text())["run"] == "short"


def test_shared_locks() -> None:
    assert not file_locks.wanted("a.0")
    one, two = file_locks.acquire("a.0", shared=True), file_locks.acquire("a.0", shared=True)
    assert one is not None
    assert two is not None
    assert file_locks.acquire("a.0") is None
    assert file_locks.wanted("a.0")
    assert file_locks.holder("a.0") is None
    one.release()
    assert file_locks.acquire("a.0") is None
    two.release()
    alone = file_locks.acquire("a.0")
    assert alone is not None
    assert file_locks.acquire("a.0", shared=True) is None


def test_nothing_is_left_open() -> None:
    before = descriptors()
    held = file_locks.acquire("held.0")
    for _ in range(200):
        lock = file_locks.acquire("held.0", "a.0")
        assert lock is not None
        assert file_locks.holder("held.0") is not None
        assert not file_locks.wanted("b.0")
        lock.release()
    assert held is not None
    held.release()
    assert descriptors() == before


async def test_waiting_shows_is_said_and_can_be_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held = file_locks.acquire("a.0")
    assert held is not None

    async def attempt() -> file_locks.Lock | None:
        return file_locks.acquire("a.0")

    def wait() -> asyncio.Task[file_locks.Lock]:
        until = file_locks.until(
            attempt, marker="waiting", what=lambda: str(file_locks.holder("a.0")), say_after=0.2
        )
        return asyncio.create_task(until)

    tasks = [wait(), wait()]
    with caplog.at_level(logging.WARNING):
        for _ in range(6000):
            if "waiting for pid" in caplog.text:
                break
            await asyncio.sleep(0.01)
    assert file_locks.wanted("waiting")
    assert f"pid {os.getpid()} (" in caplog.text
    assert "this process)" in caplog.text
    tasks[0].cancel()
    await asyncio.wait([tasks[0]])
    assert file_locks.wanted("waiting")
    held.release()
    async with asyncio.timeout(60):
        got = await tasks[1]
    assert got.name == "a.0"
    assert not file_locks.wanted("waiting")
