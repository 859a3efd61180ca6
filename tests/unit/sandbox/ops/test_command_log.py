"""The record of what was run in a box: what it says, what bounds it, and that no box fails for it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from air.sandbox import open_box
from air.sandbox.contract import ownership
from air.sandbox.contract.box import BoxLimits, BoxSpec, ExecResult
from air.sandbox.ops import command_log, orphans
from air.sandbox.ops.command_log import CommandLog
from tests.until import until

SPEC = BoxSpec(provider="process")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))


def _of(name: str) -> list[dict[str, Any]]:
    return command_log.read(command_log.folder() / f"{name}.jsonl")[0]


async def test_a_record_says_what_was_run_and_what_became_of_it() -> None:
    begun = time.time()
    async with await open_box(SPEC, run="recorded") as box:
        await box.exec("echo out; echo err >&2; exit 3", timeout=60)
        await box.exec(["printf", "%s", "a b"], timeout=60)
        await box.exec("sleep 60", timeout=0.3)
        running = asyncio.create_task(box.exec("sleep 61", timeout=60))
        await until(lambda: len(_of(box.id)) == 8)
        running.cancel()
        await asyncio.wait([running])
        assert _of(box.id)[-1]["type"] == "done"
    start, *commands, end = _of(box.id)
    assert begun - 1 < start["t"] <= end["t"] < time.time() + 1
    told = {k: start[k] for k in ("type", "box", "provider", "image", "run", "owner", "workspace")}
    assert told == {
        "type": "start",
        "box": box.id,
        "provider": "process",
        "image": "air-base",
        "run": "recorded",
        "owner": ownership.owner(),
        "workspace": box.seen_from_host,
    }
    assert start["limits"] == SPEC.limits.model_dump()
    assert [(e["type"], e["n"]) for e in commands] == [
        (kind, number) for number in (1, 2, 3, 4) for kind in ("run", "done")
    ]
    shown = [e["command"] for e in commands if e["type"] == "run"]
    assert shown == ["echo out; echo err >&2; exit 3", "printf %s 'a b'", "sleep 60", "sleep 61"]
    first, second, late, cancelled = (e for e in commands if e["type"] == "done")
    assert (first["code"], first["bytes"], first["timed_out"]) == (3, [4, 4], False)
    assert (second["code"], second["bytes"]) == (0, [3, 0])
    assert late["timed_out"]
    assert 0.3 <= late["seconds"] < 30
    assert cancelled["error"].startswith("CancelledError")
    assert {k: end[k] for k in ("type", "reason", "commands", "unwritten")} == {
        "type": "end",
        "reason": "closed",
        "commands": 4,
        "unwritten": 0,
    }


async def test_a_box_that_died_says_why() -> None:
    spec = SPEC.model_copy(update={"limits": BoxLimits(seconds=0.5)})
    async with await open_box(spec) as box:
        with pytest.raises(Exception, match="time to live"):
            await box.exec("sleep 60", timeout=60)
    *_, done, end = _of(box.id)
    assert "time to live" in done["error"]
    assert end["reason"] == "its time to live is over"


async def test_only_its_user_may_read_a_record() -> None:
    async with await open_box(SPEC) as box:
        file = command_log.folder() / f"{box.id}.jsonl"
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700


def _started(name: str) -> CommandLog:
    record = CommandLog(name)
    record.start(SPEC, run="r", owner=ownership.owner(), workspace="/w")
    return record


def test_a_record_is_bounded_and_counts_the_rest() -> None:
    record, descriptors = _started("air-long"), len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(4000):
        record.done(record.run("x" * 10_000), ExecResult(0, b"", b""))
    record.end("closed")
    record.end("closed")
    found = _of("air-long")
    assert (
        command_log.MAX_BYTES < (command_log.folder() / "air-long.jsonl").stat().st_size < 1_010_000
    )
    assert len(found[1]["command"]) == command_log.MAX_COMMAND
    assert found[-1]["commands"] == 4000
    assert found[-1]["unwritten"] == 8000 - (len(found) - 2) > 0
    assert len(os.listdir("/proc/self/fd")) == descriptors - 1  # noqa: PTH208


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("a\nb", "a\nb"),
        (["ls", "-l", "a b"], "ls -l 'a b'"),
        (["x"] * 50_000, "x " * 150),
        (["y" * 1_000_000], "y" * 300),
        ([], ""),
    ],
)
def test_a_command_is_shown_as_it_could_be_typed(command: Any, text: str) -> None:
    assert command_log.command_text(command) == text


def test_odd_characters_are_kept() -> None:
    record = _started("air-odd")
    record.run("\udcff\0\x1b[31m")
    assert _of("air-odd")[-1]["command"] == "\udcff\0\x1b[31m"
    record.end("closed")


def test_a_torn_line_is_left_out_and_one_under_way_is_read_later() -> None:
    command_log.folder().mkdir(parents=True)
    file = command_log.folder() / "air-torn.jsonl"
    file.write_bytes(b'{"n": 1}\n{"n": 2{"n": 3}\n{"n": 4}\n{"n"')
    found, mark = command_log.read(file)
    assert found == [{"n": 1}, {"n": 4}]
    with file.open("ab") as more:
        more.write(b": 5}\n")
    assert command_log.read(file, mark)[0] == [{"n": 5}]


def test_old_records_and_too_many_are_collected() -> None:
    command_log.folder().mkdir(parents=True)
    now = time.time()
    for index in range(command_log.KEEP_FILES + 5):
        file = command_log.folder() / f"air-{index}.jsonl"
        file.touch()
        os.utime(file, (now - index, now - index))
    foreign = command_log.folder() / "notes.txt"
    foreign.touch()
    os.utime(foreign, (0, 0))
    removed = {Path(name).stem for name in command_log.collect(now=now)}
    assert removed == {f"air-{command_log.KEEP_FILES + i}" for i in range(5)}
    assert (
        len(command_log.collect(now=now + command_log.KEEP_SECONDS - 99))
        == command_log.KEEP_FILES - 100
    )
    assert len(list(command_log.folder().iterdir())) == 101


def test_collecting_what_dead_runs_left_takes_old_records_along() -> None:
    command_log.folder().mkdir(parents=True)
    old = command_log.folder() / "air-old.jsonl"
    old.touch()
    os.utime(old, (0, 0))
    orphans.collect()
    assert not old.exists()


MANY = """
from air.sandbox.ops import command_log
from air.sandbox.contract.box import BoxSpec
for index in range(command_log.KEEP_FILES + 20):
    record = command_log.CommandLog(f"air-{index}")
    record.start(BoxSpec(), run="", owner="", workspace="")
    record.end("closed")
print(len(list(command_log.folder().iterdir())), (command_log.folder() / "air-19.jsonl").exists())
"""


def test_a_long_run_leaves_no_more_than_is_kept() -> None:
    done = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(command_log.KEEP_FILES), "False"]


UNWRITABLE = """
import asyncio
from air.sandbox import open_box
from air.sandbox.contract.box import BoxSpec

async def main():
    for _ in range(2):
        async with await open_box(BoxSpec(provider="process")) as box:
            print((await box.exec("echo fine", timeout=60)).text, end="")

asyncio.run(main())
"""


def test_a_record_that_cannot_be_written_is_said_once_and_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = os.environ | {"AIR_CACHE": str(tmp_path / "file" / "below")}
    argv = [sys.executable, "-c", UNWRITABLE]
    done = subprocess.run(argv, capture_output=True, text=True, env=env, check=True)
    assert done.stdout == "fine\nfine\n"
    (line,) = done.stderr.splitlines()
    assert "not recorded" in line
    assert "Not a directory" in line


FULL = """
import resource
from air.sandbox.ops import command_log
from air.sandbox.contract.box import BoxSpec
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
record = command_log.CommandLog("air-full")
record.start(BoxSpec(), run="", owner="", workspace="")
for _ in range(100):
    record.run("true")
record.end("closed")
"""


def test_a_disk_that_fills_up_is_said_once() -> None:
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    assert "not recorded" in line
    assert "File too large" in line
    assert 0 < len(_of("air-full")) < 20
