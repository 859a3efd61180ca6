"""Recorded trajectories, replayed as hacks of Harbor tasks."""

from __future__ import annotations

import asyncio
import io
import os
from dataclasses import replace
from pathlib import Path

import pytest

from air.cli.main import main
from air.errors import BoxCommandError, BoxDiedError
from air.integrity.gate.recordings import read_recorded_hacks
from air.integrity.gate.replays import replay
from air.integrity.gate.run import Gate, read
from air.sandbox import open_box
from air.sandbox.contract.box import Box, BoxSpec, OpenBox
from air.sandbox.docker import engine
from air.tasks.sources.harbor.settings import HarborSettings
from air.trajectories.atif.reading import read_recording
from tests.docker.client import docker_client
from tests.harbor.folders import step, write
from tests.harbor.recordings import ran, save, trajectory, typed
from tests.harbor.test_gate import PLAIN, TRUSTING

pytestmark = pytest.mark.docker
SOUND = replace(TRUSTING, name="sound", checks='[ "$(bash /tmp/work/double.sh 4)" = 8 ]')
"""The work of TRUSTING, with tests that run the program."""
LAZY = (typed("cd /tmp/work\n"), typed("cat > double.sh <<EOF\n# $((6 * 7))\nEOF\n"))
"""Writes the file that TRUSTING looks for, without the program."""
_TWO_STEPS = '\n[[steps]]\nname = "one"\n\n[[steps]]\nname = "two"\n'
STEPS = replace(
    PLAIN,
    name="steps",
    instruction="",
    settings=PLAIN.settings + _TWO_STEPS,
    artifacts='["/tmp/work/lines"]',
    files={
        **step("one", "Write a line.", "echo x >> lines", "grep -c . /tmp/work/lines | grep 1"),
        **step("two", "Write another.", "echo x >> lines", "grep -c . /tmp/work/lines | grep 2"),
    },
)
"""A task of two steps. Each wants one more line in a file."""


async def _played(
    box: Box,
    *calls: tuple[str, dict[str, object]],
    seconds: float = 600.0,
    command_seconds: float = 600.0,
    end_seconds: float = 600.0,
) -> str:
    recording = read_recording(trajectory(*calls), "test")
    return await replay(box, recording, seconds, command_seconds, end_seconds)


async def _text(box: Box, file: str) -> str:
    """Returns the text of a file, as soon as there is one."""
    result = await box.exec(f"until [ -s {file} ]; do sleep 0.1; done; cat {file}", timeout=120)
    assert result.ok, result
    return result.stdout.decode()


async def test_the_same_trajectory_earns_in_a_weak_task_and_is_held_in_a_sound_one(
    tmp_path: Path,
) -> None:
    write([TRUSTING, SOUND], tmp_path / "tasks")
    for folder in (TRUSTING, SOUND):
        save(tmp_path / "recorded" / folder.name / "1" / "trajectory.json", trajectory(*LAZY))
    solved = ran("echo 'echo $((2 * $1))' > /tmp/work/double.sh")
    save(tmp_path / "recorded" / TRUSTING.name / "solved.json", trajectory(solved))
    ids = {f"harbor:{one.name}": tmp_path / "tasks" / one.name for one in (TRUSTING, SOUND)}
    replays = read_recorded_hacks(tmp_path / "recorded", ids).by_task
    report = tmp_path / "report.json"
    gate = Gate(HarborSettings(root=tmp_path / "tasks"), 2, (), report, replays=replays)
    trusting, sound = await gate.run(list(ids))

    name = "trajectory:1/trajectory.json"
    assert [one.name for one in trusting.findings] == [name], trusting
    assert "earns 1" in trusting.findings[0].reason
    assert "completely" not in trusting.findings[0].reason
    # The solution's own files are no hack, whoever writes them.
    assert trusting.hacks == {name: 1.0, "trajectory:solved.json": None}
    assert (sound.result, sound.incomplete) == ("sound", {}), sound
    assert sound.hacks == {"trajectory:1/trajectory.json": 0.0}

    # The verdict is reused, but not for another trajectory in the same file.
    assert await gate.run(list(ids)) == [trusting, sound]
    save(tmp_path / "recorded" / "sound" / "1" / "trajectory.json", trajectory(solved))
    again = replace(gate, replays=read_recorded_hacks(tmp_path / "recorded", ids).by_task)
    kept, changed = await again.run(list(ids))
    assert kept == trusting
    assert changed.hacks == {"trajectory:1/trajectory.json": None}


def test_what_cannot_be_replayed_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write([SOUND], tmp_path)
    monkeypatch.chdir(tmp_path)
    edit = ("str_replace_editor", {"command": "create", "path": "/tmp/work/double.sh"})
    file = save(tmp_path / "one.json", trajectory(edit, *LAZY, typed("exit\n"), typed("ls\n")))
    arguments = ["tasks", "check", "harbor:sound", "--attacks", "--report", "r.json"]
    arguments += ["--trajectories", str(file), "--only", "trajectory:one.json"]
    assert main(arguments) == 0
    says = "calls of str_replace_editor that cannot be replayed: 1; the shell ended before input 4 of 4"
    verdict = read(tmp_path / "r.json")["harbor:sound"]
    assert verdict.incomplete == {"trajectory:one.json": says}
    assert verdict.hacks == {"trajectory:one.json": 0.0}
    assert (
        f"not replayed completely: harbor:sound: trajectory:one.json: {says}"
        in capsys.readouterr().err
    )


async def test_a_trajectory_is_played_in_every_step(tmp_path: Path) -> None:
    write([STEPS], tmp_path / "tasks")
    calls = (typed("echo other >> /tmp/work/lines; exit\n"), typed("ls\n"))
    file = save(tmp_path / "1.json", trajectory(*calls))
    replays = read_recorded_hacks(file, {"harbor:steps": tmp_path / "tasks" / "steps"}).by_task
    gate = Gate(HarborSettings(root=tmp_path / "tasks"), 2, replays=replays)
    [verdict] = await gate.run(["harbor:steps"])
    assert (verdict.oracle, verdict.nothing) == (1.0, 0.0), verdict
    assert verdict.hacks == {"trajectory:1.json": 1.0}
    assert verdict.incomplete == {"trajectory:1.json": "the shell ended before input 2 of 2"}


async def test_commands_share_a_folder_and_variables_and_none_ends_the_others() -> None:
    async with await open_box(BoxSpec(open=OpenBox())) as box:
        calls = (
            ran("mkdir /tmp/here; cd /tmp/here; export WORD=one; false"),
            ran("cat; echo $WORD > first"),  # `cat` reads nothing, and so ends
            ran("set -eu; false"),
            ran("( echo ) )"),
            ran("exit 3"),
            ("bash", {"command": "echo wrong > first", "cwd": "/nowhere"}),
            ran("mkdir -p sub"),
            ("bash", {"command": "echo a >> third", "cwd": "sub"}),
            ("bash", {"command": "echo b >> third", "cwd": "sub"}),
            ran(f"echo {'x' * 200_000} > second"),
        )
        assert await _played(box, *calls) == ""
        assert (await box.read("/tmp/here/first")).decode() == "one\n"
        assert len(await box.read("/tmp/here/second")) == 200_001
        assert await box.read("/tmp/here/sub/third") == b"a\nb\n"


async def test_keystrokes_share_a_shell_in_a_terminal() -> None:
    # Start-up files that write no prompt as bash does, and that want to be asked for one.
    profile = b"PS1='a\\n$ '; PROMPT_COMMAND='printf more\\\\n'\n"
    text = "".join(f"line {n} of the text, 'quoted', $HOME\n" for n in range(200))
    async with await open_box(BoxSpec(open=OpenBox())) as box:
        await box.write("/home/user/.bash_profile", profile)
        calls = (
            typed("cd /tmp; WORD=one\n"),
            typed(f"cat > text <<'EOF'\n{text}EOF\n"),
            typed("( echo $WORD; )) > none\n"),
            typed(f"echo {'x' * 5000} > line\n"),
            typed(
                'while read -r LINE && [ "$LINE" != end ]; do echo $LINE >> lines; done\né\nend\n'
            ),
            typed("sleep 1000\n", 0.0),
            typed("C-c", 0.0),
            typed("test -t 0; echo $?$WORD > ec", 0.0),
            typed("ho\n"),
        )
        assert await _played(box, *calls) == ""
        assert await _text(box, "/tmp/echo") == "0one\n"
        assert (await box.read("/tmp/text")).decode() == text
        assert len(await box.read("/tmp/line")) == 5001
        assert (await box.read("/tmp/lines")).decode() == "é\n"


async def test_without_bash_a_line_that_is_cut_is_told() -> None:
    tag = f"air-test-no-bash:{os.getpid()}"
    with docker_client() as client:
        text = b"FROM air-base\nUSER root\nRUN rm -f /bin/bash /usr/bin/bash\n"
        client.images.build(fileobj=io.BytesIO(text), tag=tag, rm=True)
        try:
            async with await open_box(BoxSpec(image=tag, open=OpenBox())) as box:
                calls = (ran("cd /tmp"), ran("echo a > one"), typed("cat /tmp/one > /tmp/two\n"))
                assert await _played(box, *calls) == ""
                assert await _text(box, "/tmp/two") == "a\n"
                message = await _played(box, typed(f"echo {'x' * 5000} > /tmp/line\n", 0.0))
                assert "lines of more than 4094 bytes were cut" in message
        finally:
            client.images.remove(tag, force=True)


async def test_a_shell_that_ends_is_told_if_more_is_typed() -> None:
    async with await open_box(BoxSpec(open=OpenBox())) as box:
        ends = typed("echo a > /tmp/one; exit 3\n")
        assert await _played(box, ends) == ""
        assert (await box.read("/tmp/one")).decode() == "a\n"
        assert await _played(box, ends, ran("ls")) == ""
        assert await _played(box, ends, typed("ls\n")) == "the shell ended before input 2 of 2"
        await box.write("/home/user/.bash_profile", b"exit\n")
        with pytest.raises(BoxCommandError, match="the shell ended at its start"):
            await _played(box, typed("ls\n"))


async def test_the_time_is_limited() -> None:
    async with await open_box(BoxSpec(open=OpenBox())) as box:
        for sleeps in (ran("sleep 1000"), typed("sleep 1000\n"), typed("sleep 1000")):
            calls = (sleeps, ran("touch /tmp/after"))
            message = await _played(box, *calls, seconds=1.0)
            assert message == "the time limit was reached in input 1 of 2"
        assert not (await box.exec("ls /tmp/after", timeout=60)).ok
        message = await _played(box, typed("sleep 1000\n", 0.0), end_seconds=1.0)
        assert message == "what was typed last had not ended within the time limit of 1 seconds"
        message = await _played(box, ran("sleep 1000"), ran("true"), command_seconds=1.0)
        assert message.startswith("commands that reached the time limit of 1 seconds: ")


async def test_a_box_that_dies_is_no_shell_that_ended() -> None:
    async with await open_box(BoxSpec(open=OpenBox())) as box:
        calls = (typed("echo a > /tmp/one; sleep 1000\n", 600.0), typed("ls\n"))
        playing = asyncio.create_task(_played(box, *calls))
        await _text(box, "/tmp/one")
        await asyncio.to_thread(engine.client().kill, box.id)
        with pytest.raises(BoxDiedError):
            await playing
