"""`air shell`: scripts, a person at a terminal, and visitors, over real boxes."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from air import tasks
from air.cli.main import main
from air.cli.output import safe
from air.replay.options import ReplayOptions
from air.replay.replayer import Replayer
from air.sandbox import open_box
from air.sandbox.contract.box import BoxSpec
from air.sandbox.ops import command_log, listing
from air.testing import Message, replies
from air.trajectories import load, trajectory_files
from tests.e2e.commands.by_hand import Terminal, printed, shell, solve, wait_for_process
from tests.e2e.conftest import attempt, containers_in_full, played_by, research
from tests.e2e.episodes.test_episode import fails_where

REPLIES = (
    "Look.\n```\ncd data && export N=3 && ls\n```",
    "No action at all.",
    "Open.\n```\nopen ../solve.py\n```",
    "Long.\n```\nseq 1 2000; sleep 100 & echo $N >/tmp/n\n```",
    "Still there?\n```\npgrep -c sleep; cat /tmp/n; exit 3\n```",
    'Write.\n```\ncd .. && echo "method=2 level=2" > config && python3 solve.py\n```',
    "Score.\n```\nvalidate\n```",
    "Missing.\n```\nrm submission.csv\n```",
    "Done.\n```\nsubmit\n```",
)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


async def replayed(path: Path) -> None:
    """It must replay without a difference."""
    async with Replayer(ReplayOptions()) as replayer:
        done = await replayer.replay(load(path))
    assert done.differences == []
    assert done.equal_scores == done.scores


def essence(path: Path) -> list[Any]:
    """What of a trajectory is the same whenever the same is done."""
    one = load(path)
    assert one.start is not None
    found: list[Any] = [one.start.system, one.start.prompt, one.start.max_turns]
    for step in one.steps:
        diff = None if step.diff is None else [step.diff.text, step.diff.files]
        found.append([step.turn, step.reply, step.call, step.observation, step.shown, step.code])
        found.append([step.left, step.problem, diff])
    for v in one.validations:
        found.append([v.turn, v.score, v.phi, v.anchor, v.delta, v.problem, v.artefact, v.kept])
    if one.end is not None:
        found.append([one.end.why, one.end.reward, one.end.terms, one.end.test])
    return found


@containers_in_full
async def test_a_person_sees_what_a_model_would_see(runtime: str, tmp_path: Path) -> None:
    """The same replies from a model and by hand make the same trajectory."""
    harness = {"format": "mlgym", "memory": True, "max_observation_tokens": 300, "window": 50}
    config = research(
        ("titanic",),
        runtime,
        harness=harness,
        max_turns=9,
        format_penalty=0.1,
        validate_penalty=0.2,
        record_dir=tmp_path / "model",
    )
    async with played_by(replies(*REPLIES), config) as play:
        await play()
    script = "".join(f":reply\n{reply}\n.\n" for reply in REPLIES) + ":save person/one.jsonl\n"
    settings = [f"agent.harness.{k}={v}".replace("True", "true") for k, v in harness.items()]
    settings += ["format_penalty=0.1", "validate_penalty=0.2"]
    flags = ["titanic", "--runtime", runtime, "--max-turns", "9"]
    flags += [word for one in settings for word in ("--env", one)]
    await asyncio.to_thread(shell, script, *flags)
    by_model, by_hand = trajectory_files(tmp_path / "model")[0], Path("person/one.jsonl")
    assert essence(by_hand) == essence(by_model)
    shown = [step.shown for step in load(by_hand).steps]
    assert "tokens cut" in shown[3]
    assert shown[4].startswith("1\n3\n[exit 3]")  # what the step before left is there
    await replayed(by_hand)
    async with Replayer(ReplayOptions()) as replayer:  # what was graded lies beside it
        from air.replay.regrade import rescore

        one = load(by_hand)
        assert (await rescore(one, replayer.grader_of(one), {}, ReplayOptions())).matched


UNDO = (
    solve(1, 1),
    "validate",
    "ln -s config link; chmod 600 config; mkdir empty; export N=5; cd empty",
    "cd ..; rm -rf data *; mkdir other",
    "validate",
    ":undo",
    ":undo",
    ":reward",
    "ls -l ..; cat ../config ../link; echo $N",
    ":diff",
    "cd ..",
    solve(2, 2),
    "submit",
    ":expect the episode is over (submit)",
    ":undo",
    "validate",
    ":save one.jsonl",
    "submit",
    ":save one.jsonl",
)


async def test_undo_takes_back_workspace_scores_and_turns(
    runtime: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["titanic", "--format", "mlgym", "--runtime", runtime, "--json"]
    await asyncio.to_thread(shell, "\n".join(UNDO), *flags)
    said = printed(capsys)
    looked = next(line for line in said if "cat ../config" in line.get("reply", ""))
    assert looked["turn"] == 4
    assert "method=1 level=1\nmethod=1 level=1\n5\n" in looked["shown"]
    for kept in ("-rw-------", "lrwxrwxrwx", "empty", "data"):
        assert kept in looked["shown"]
    assert "other" not in looked["shown"]
    assert next(line for line in said if line["type"] == "diff")["files"] == []
    graded = [line for line in said if line["type"] == "validate"]
    assert [line["turn"] for line in graded] == [2, 5, 7, 7, 8]
    assert [line["score"] is None for line in graded] == [False, True, False, False, False]
    assert next(x for x in said if x["type"] == "reward")["reward"] == graded[0]["delta"] > 0
    assert graded[2]["delta"] == graded[3]["delta"] == graded[3]["phi"] - graded[0]["phi"]
    one = load("one.jsonl")
    assert one.end is not None
    assert one.end.reward == pytest.approx(graded[-1]["phi"])
    assert [step.turn for step in one.steps] == list(range(1, 9))
    await replayed(Path("one.jsonl"))


async def test_a_recorded_episode_is_entered_at_any_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = research(("titanic",), "subprocess", record_dir=tmp_path / "run", max_turns=6)
    texts = (attempt(1, 1), attempt(2, 3), attempt(3, 2, "submit"))
    async with played_by(replies(*texts), config) as play:
        await play()
    path = trajectory_files(tmp_path / "run")[0]
    recorded = load(path)
    for step in (0, 1, 2):
        flags = ["--from", str(path), "--step", str(step), "--json"]
        script = f"cat config\n{attempt(2, 3)}\n:save at{step}.jsonl\n"
        script = script.replace("Try it.\n", "")
        await asyncio.to_thread(shell, script, *flags)
        said = [line for line in printed(capsys) if line["type"] in ("step", "validate")][-3:]
        was = ("method=1 level=4", "method=1 level=1", "method=2 level=3")[step]
        assert said[0]["shown"] == f"{was}\n[{5 - step} turns left]"
        assert said[2]["score"] == recorded.validations[1].score
        before = recorded.validations[step - 1].phi if step else 0.0
        assert said[2]["delta"] == pytest.approx(said[2]["phi"] - before)
        saved = load(f"at{step}.jsonl")
        assert essence(Path(f"at{step}.jsonl"))[: 3 + 2 * step] == essence(path)[: 3 + 2 * step]
        assert all((Path.cwd() / v.kept).is_file() for v in saved.validations)
    await replayed(Path("at2.jsonl"))
    script = "```\nsubmit\n```\n:save whole.jsonl\n"
    await asyncio.to_thread(shell, script, "--from", str(path), "--step", "2")
    assert [v.turn for v in load("whole.jsonl").validations] == [1, 2, 3]
    await replayed(Path("whole.jsonl"))
    await asyncio.to_thread(shell, "ls\n", "--from", str(path), code=2)
    assert "the episode is over (submit)" in capsys.readouterr().err
    await asyncio.to_thread(shell, "ls\n", "--from", str(path), "--step", "4", code=2)


class Blocking:
    """A model whose replies past the first wait until they are let go."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.go = texts, threading.Event()

    def __call__(self, conversation: Sequence[Message]) -> str:
        spoken = sum(1 for message in conversation if message["role"] == "assistant")
        if spoken:
            assert self.go.wait(60)
        return self.texts[spoken]


def own_box(runtime: str) -> str:
    """The box that this process has."""
    boxes = listing.containers() if runtime == "docker" else listing.folders()
    return next(box.name for box in boxes if box.pid == str(os.getpid()))


@containers_in_full
async def test_a_visitor_does_not_disturb_an_episode(
    runtime: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nap = f"sleep 600.{random.randrange(10**9)}"  # it lasts until this test ends it
    # Processes of the recorder and of a visitor may end a moment after their work.
    lines = "ps aux > /tmp/p; wc -l < /tmp/p"  # a pipe would count its other end, or not
    count = f"for i in $(seq 10); do {lines}; sleep 0.1; done > /tmp/c"
    few = f"{{ {lines}; }} > /tmp/m; [ $(cat /tmp/m) -le $(cat /tmp/n) ]"
    texts = (
        f"Run.\n```\necho marker; pwd; ls; touch a; {count}; sort -n /tmp/c | head -n 1 > /tmp/n\n```",
        f"Wait.\n```\n{{ {nap}; }} 2>/dev/null; ls -la --time-style=+; "
        f"for i in $(seq 900); do {few} && break; sleep 0.1; done; {few} && echo quiet\n```",
        attempt(2, 2, "submit"),
    )
    found = []
    for visited in (False, True):
        model = Blocking(*texts)
        folder = tmp_path / str(visited)
        config = research(("titanic",), runtime, record_dir=folder, max_turns=4)
        async with played_by(model, config) as play:
            playing = asyncio.create_task(play())
            if visited:
                await asyncio.to_thread(_visit, runtime, model, nap, capsys)
            model.go.set()
            await asyncio.to_thread(_until, lambda: _kill(nap))
            await playing
        found.append(essence(trajectory_files(folder)[0]))
    assert found[0] == found[1]
    assert "quiet" in str(found[0])


def _kill(command: str) -> None:
    """Ends the process with this command line, in whichever box it runs; raises StopIteration without one."""
    line = command.replace(" ", "\0").encode() + b"\0"
    os.kill(
        next(int(p.parent.name) for p in Path("/proc").glob("[0-9]*/cmdline") if _reads(p, line)),
        15,
    )


def _reads(file: Path, content: bytes) -> bool:
    with suppress(OSError):  # the process has ended
        return file.read_bytes() == content
    return False


def _visit(runtime: str, model: Blocking, nap: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Looks into the box between two turns, then while its agent's command runs."""
    name = _until(lambda: own_box(runtime))
    file = command_log.folder() / f"{name}.jsonl"
    _until(lambda: next(e for e in command_log.read(file)[0] if "marker" in str(e)))
    before = command_log.read(file)[0]
    script = ":log\n:expect marker\n:files\n:expect solve.py\n:bash cat config; exit 3\n"
    shell(script + ":expect [exit 3]\n:files data\n:expect train.csv\n", "--attach", name)
    assert "method=1 level=4" in capsys.readouterr().out
    seen = [e for e in command_log.read(file)[0][len(before) :] if e["type"] == "run"]
    assert all(
        "find . -xdev" in e["command"] for e in seen
    )  # the recorder's: none is the visitor's
    shell("ls\n", "--attach", name, code=2)
    assert "takes no actions" in capsys.readouterr().err
    model.go.set()
    _until(lambda: next(e for e in command_log.read(file)[0] if nap in str(e)))
    shell(f":log 1\n:expect {nap}\n:files\n:expect solve.py\n", "--attach", name)
    assert command_log.read(file)[0][-1]["type"] == "run"  # it still ran


def _until(there: Any) -> Any:
    for _ in range(1200):
        try:
            return there()
        except (StopIteration, IndexError, OSError):
            time.sleep(0.1)
    raise AssertionError("it never came")


def test_scripts_say_by_exit_codes_what_went_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    here = ["titanic", "--runtime", "subprocess"]
    for script, code, words in (
        ("ls\n:expect solve.py\n:quit\nnever", 0, ""),
        ("ls\n:expect nothing such", 1, "script:2: expected 'nothing such'"),
        ("exit 7\n:expect [exit 7]\n:undo\n:undo", 2, "script:4: there is no step to undo"),
        ("ls\n:save x.txt", 2, "must end in .jsonl"),
        (":save script.jsonl\n:save script.jsonl\n:diff", 2, "there is no step"),
        (":bash", 2, "needs a terminal"),
    ):
        shell(script, *here, code=code)
        assert words in capsys.readouterr().err
    for script, flags, words in (  # found before any box is started
        ("ls\n```\nls", here, "script:2: the entry that begins here has no end"),
        (":nonsense", here, "no command :nonsense"),
        ("ls", ["nowhere"], "nowhere"),
        ("ls", [], "name a task"),
        ("ls", ["titanic", "--turn", "1"], "--turn"),
        ("ls", ["titanic", "--format", "none"], "none"),
        ("ls", ["titanic", "--env", "agent.harness.widow=3"], "widow"),
        ("ls", ["--attach", "air-none-such"], "no live box"),
    ):
        shell(script, *flags, code=2)
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("error: ")
        assert words in error
    assert main(["shell", "titanic", "--exec", "missing"]) == 2


def test_what_cannot_be_taken_back_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    here = ["titanic", "--runtime", "subprocess"]
    shell("head -c 70000000 /dev/urandom >big\nls\n:undo", *here, code=2)
    assert "step 2 cannot be undone: the workspace is too large" in capsys.readouterr().err


def test_a_failure_of_ours_is_no_observation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "tasks"
    shutil.copytree(tasks.load("titanic").folder, root / "broken")
    toml = root / "broken" / "task.toml"
    toml.write_text(toml.read_text().replace('id = "titanic"', 'id = "broken"'))
    fails_where(root / "broken", "'test' in sys.argv")
    script = f":save a.jsonl\n```\n{solve(1, 1)}\nsubmit\n```\n"
    shell(script, "broken", "--task-root", str(root), "--runtime", "subprocess", code=1)
    error = capsys.readouterr().err
    assert "script:2: " in error
    assert "step 1 is undone" in error


def test_output_is_shown_safely(capsys: pytest.CaptureFixture[str]) -> None:
    shell("printf 'a\\033[2Jb\\rc\\td\\x9be\\n'\n", "titanic", "--runtime", "subprocess")
    out = capsys.readouterr().out
    assert "a\\x1b[2Jb\\rc\td" in out
    assert "\x1b" not in out
    assert safe("\x9b\u202e\x00") == "\\x9b\\u202e\\x00"


@pytest.fixture
def person(runtime: str) -> Iterator[Terminal]:
    """A person who plays titanic."""
    terminal = Terminal("shell", "titanic", "--runtime", runtime)
    yield terminal
    terminal.kill()


def test_a_person_at_a_terminal(person: Terminal, runtime: str) -> None:
    before = person.expect("titanic 10> ")
    assert "Reply with a short thought" in before
    person.type("ls\n")
    assert "solve.py" in person.expect("titanic 9> ")
    person.type('```\necho "method=1 level=1" > config\n')
    person.expect("... ")
    person.type("python3 solve.py\nvalidate\n```\n")
    assert "# reward +0.7" in person.expect("titanic 8> ")
    sleep = f"sleep 60.{os.getpid()}"
    person.type(f"rm solve.py; {sleep}\n")
    wait_for_process(sleep)
    person.type("\x03")
    person.expect("stopped; step 3 is undone")
    person.expect("titanic 8> ")
    person.type("half a li")
    person.expect("half a li")
    time.sleep(0.5)  # Python's readline notices Ctrl-C only once it waits for a key
    person.type("\x03")
    person.expect("titanic 8> ")
    person.type(":bash\n")
    person.expect("$ ")
    person.type("test -f solve.py && echo in$((40+2))\n")
    person.expect("in42")
    person.type("exit\n")
    person.expect("titanic 8> ")
    person.type(":nonsense\n")  # no key of it is lost to who was in the box
    person.expect("there is no command :nonsense")
    person.expect("titanic 8> ")
    person.type("\x04")
    assert person.end() == 0


async def test_a_visitor_at_a_terminal(runtime: str) -> None:
    provider: Any = {"docker": "docker", "subprocess": "process"}[runtime]
    async with await open_box(BoxSpec(provider=provider)) as box:
        await box.write("hello.txt", b"hi")
        await box.write(".bashrc", b"touch trap")
        await box.write(".inputrc", rb'"e": "\C-utouch trap\C-m"')  # for the key e
        terminal = Terminal("shell", "--attach", box.id)
        try:
            await asyncio.to_thread(_look_around, terminal)
        finally:
            terminal.kill()
        left = (await box.exec("ls -A", timeout=60)).text.split()
        assert left == [".bashrc", ".inputrc", "hello.txt"]


def _look_around(terminal: Terminal) -> None:
    terminal.expect("attach> ")
    terminal.type(":bash\n")
    time.sleep(1)  # its prompt is the machine's own
    terminal.type("cat hello.txt; echo in$((40+2))\n")
    assert "hi" in terminal.expect("in42")
    terminal.type("exit\n")
    terminal.expect("attach> ")
    terminal.type(":files\n")
    assert "hello.txt" in terminal.expect("attach> ")
    terminal.type("\x04")
    assert terminal.end() == 0
