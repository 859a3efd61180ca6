"""`air shell` where something fails, or cannot be as it was asked for: nothing that was done is lost, and
nothing is passed over in silence."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from air import tasks
from air.cli.main import main
from air.manual.session import ManualEpisode
from air.sandbox import open_box
from air.sandbox.contract.box import BoxSpec
from air.trajectories import load
from tests.e2e.commands.by_hand import Terminal, printed, shell
from tests.e2e.conftest import research

HERE = ("titanic", "--runtime", "subprocess")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A person who plays titanic, with temporary files in the folder `temp`."""
    (tmp_path / "temp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temp"))
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8:strict")  # as in most locales
    terminal = Terminal("shell", *HERE)
    yield terminal
    terminal.kill()


def copy_of_step(number: int) -> Path:
    """The copy of the workspace from before a step, once it is there."""
    for _ in range(1200):
        found = sorted(Path("temp").glob("*-air-shell/*.tar.gz"), key=lambda p: p.stat().st_mtime)
        if len(found) == number:
            return found[-1]
        time.sleep(0.1)
    raise AssertionError(f"there are {len(found)} copies")


def test_a_step_that_cannot_be_taken_back_can_be_later(person: Terminal) -> None:
    person.expect("titanic 10> ")
    person.type("touch one\n")
    person.expect("titanic 9> ")
    person.type("touch two; sleep 60\n")
    copy = copy_of_step(2)
    time.sleep(1)
    good = copy.read_bytes()
    copy.write_bytes(b"broken")
    person.type("\x03")  # what stops the action is told first, then what became of it
    person.expect("stopped; step 2 is not undone: a workspace could not be restored")
    person.expect("titanic 8> ")
    person.type(":undo\n")
    person.expect("a workspace could not be restored")
    person.expect("titanic 8> ")
    copy.unlink()
    os.mkfifo(copy)
    person.type(":undo\n")
    time.sleep(1)
    person.type("\x03")  # without a box nothing could go on
    time.sleep(0.5)
    with copy.open("wb") as file:
        file.write(good)
    person.expect("step 2 is undone")
    person.expect("titanic 9> ")
    person.type("ls\n")
    shown = person.expect("titanic 8> ")
    assert "one" in shown.split()
    assert "two" not in shown.split()
    for typed, answer in (
        (":", "there is no command :"),
        (":diff ²", "is not a number"),
        ("\udcff", "is not valid UTF-8"),
        (":save ~no-such-user/x.jsonl", "home directory"),
        (f":save {'a' * 300}.jsonl", "cannot record to"),
        (":save one.jsonl", "saved one.jsonl"),
        (":expect", "needs a text"),
    ):
        person.type(f"{typed}\n")
        person.expect(answer)
        person.expect("titanic 8> ")
    person.type("\x04")
    assert person.end() == 0
    assert [step.turn for step in load("one.jsonl").steps] == [1, 2]


def test_an_undone_episode_may_not_replay(capsys: pytest.CaptureFixture[str]) -> None:
    """What the steps that stay left outside of the workspace is gone."""
    script = "echo 1 >/tmp/a\nprintf 'a\rb' | wc -c\n:save one.jsonl\n:undo\n:save two.jsonl\n"
    shell(script, *HERE, "--json")
    saved = [line["text"] for line in printed(capsys) if line["type"] == "save"]
    assert ["may differ" in text for text in saved] == [False, True]
    assert load("one.jsonl").steps[1].shown.startswith("3\n")  # the script's carriage return


async def test_copies_are_nobodys_time() -> None:
    async with ManualEpisode(research(("titanic",), "subprocess")) as session:
        await session.act("```\nhead -c 50000000 /dev/urandom >big\n```")
        for work in (lambda: session.act("```\ntrue\n```"), session.undo):
            began, before = time.monotonic(), session.episode.world.agent_seconds
            await work()
            took = time.monotonic() - began
            assert session.episode.world.agent_seconds - before < took / 2


def recorded(folder: Path, **changes: Any) -> Path:
    """An episode of a task that lies in `folder`, recorded with these settings; two turns, and two of which
    the token limit cut the reply: at the end of the context, and before it."""
    shutil.copytree(tasks.load("titanic").folder, folder / "own")
    toml = folder / "own" / "task.toml"
    toml.write_text(toml.read_text().replace('id = "titanic"', 'id = "own"'))
    given = [word for name, value in changes.items() for word in ("--env", f"{name}={value}")]
    flags = ["own", "--runtime", "subprocess", "--task-root", str(folder), *given]
    shell(":reply\nNothing.\n.\ntouch a\n:save first.jsonl\n", *flags)
    lines = Path("first.jsonl").read_text().splitlines()
    step = json.loads(lines[1]) | {"problem": "length", "shown": ""}
    for turn, completion in ((3, 40), (4, 39)):
        tokens = {"nodes": None, "prompt": 60, "completion": completion}
        lines.append(json.dumps(step | {"turn": turn, "tokens": tokens}))
    Path("recorded.jsonl").write_text("\n".join(lines) + "\n")
    return Path("recorded.jsonl")


def test_a_recorded_episode_goes_on_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"format_penalty": 0.5, "agent.harness.max_context_tokens": 100}
    path = recorded(tmp_path / "then", **settings)
    (tmp_path / "then").rename(tmp_path / "now")
    again = ["--from", str(path), "--task-root", str(tmp_path / "now")]
    capsys.readouterr()
    shell(":reward\nls\n:save again.jsonl\n", *again, "--json")
    terms = next(line for line in printed(capsys) if line["type"] == "reward")["terms"]
    assert terms["format"] == -2 * 0.5  # no format error where the context was full
    one = load("again.jsonl")
    assert one.start is not None
    assert one.start.task_roots[0] == str(tmp_path / "now")
    assert [step.turn for step in one.steps] == [1, 2, 3, 4, 5]
    for change in (
        "delta=best",
        "format_penalty=0",
        "agent.harness.format=mlgym",
        "agent.harness.max_observation_tokens=99",
        'agent.harness={id="air", max_context_tokens=99}',
    ):
        shell("ls\n", *again, "--env", change, code=2)
        assert "cannot be changed in a recorded episode" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ("--attach", "x", "--format", "mlgym"),
        ("--attach", "x", "--runtime", "docker"),
        ("--attach", "x", "--max-turns", "0"),
        ("--attach", "x", "--seed", "0"),
        ("--attach", "x", "--env", "delta=best"),
        ("--attach", "x", "--task-root", "."),
        ("--attach", "x", "--mlgym-root", "."),
        ("--from", "x", "--seed", "0"),
        ("--from", "x", "--format", "fenced"),
    ],
)
def test_flags_without_effect_are_refused(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shell", *flags, "--exec", "none"]) == 2
    assert f"{flags[2]}: has no effect with {flags[0]}" in capsys.readouterr().err


async def test_a_visitor_asks_for_a_number_of_events(capsys: pytest.CaptureFixture[str]) -> None:
    async with await open_box(BoxSpec(provider="process")) as box:
        for _ in range(3):
            await box.exec("true", timeout=60)
        script = "".join(f":log {n}\n" for n in (0, 2, 99))
        await asyncio.to_thread(shell, script, "--attach", box.id, "--json")
        counts = [len(line["events"]) for line in printed(capsys) if line["type"] == "log"]
        assert counts == [7, 0, 2, 7]  # its start, then each command and its end
        await asyncio.to_thread(shell, ":log ²\n", "--attach", box.id, code=2)
        assert "is not a number" in capsys.readouterr().err
