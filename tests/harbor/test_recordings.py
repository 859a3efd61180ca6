"""Recorded trajectories, replayed as hacks of Harbor tasks."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest

from air.cli.main import main
from air.integrity.gate.recordings import recorded_hacks, replay
from air.integrity.gate.run import Gate, read
from air.sandbox import open_box
from air.sandbox.contract.box import Box, BoxSpec, OpenBox
from air.tasks.sources.harbor.settings import HarborSettings
from air.trajectories.atif.reading import recording
from tests.docker.client import docker_client
from tests.harbor.folders import write
from tests.harbor.recordings import ran, save, trajectory, typed
from tests.harbor.test_gate import TRUSTING

pytestmark = pytest.mark.docker
SOUND = replace(TRUSTING, name="sound", checks='[ "$(bash /tmp/work/double.sh 4)" = 8 ]')
"""The work of TRUSTING, with tests that run the program."""
LAZY = (typed("cd /tmp/work\n"), typed("cat > double.sh <<EOF\n"), typed("# $((6 * 7))\nEOF\n"))
"""Writes the file that TRUSTING looks for, without the program."""


async def _played(box: Box, *calls: tuple[str, dict[str, object]], seconds: float = 60.0) -> str:
    return await replay(box, recording(trajectory(*calls), "test"), seconds)


async def test_the_same_trajectory_earns_in_a_weak_task_and_is_held_in_a_sound_one(
    tmp_path: Path,
) -> None:
    write([TRUSTING, SOUND], tmp_path / "tasks")
    for folder in (TRUSTING, SOUND):
        save(tmp_path / "recorded" / folder.name / "1" / "trajectory.json", trajectory(*LAZY))
    solved = ran("echo 'echo $((2 * $1))' > /tmp/work/double.sh")
    save(tmp_path / "recorded" / TRUSTING.name / "solved.json", trajectory(solved))
    ids = {f"harbor:{one.name}": tmp_path / "tasks" / one.name for one in (TRUSTING, SOUND)}
    recorded = recorded_hacks(tmp_path / "recorded", ids)
    report = tmp_path / "report.json"
    gate = Gate(HarborSettings(root=tmp_path / "tasks"), 2, (), report, recorded=recorded)
    trusting, sound = await gate.run(list(ids))

    name = "trajectory:trusting/1/trajectory.json"
    assert [one.name for one in trusting.findings] == [name], trusting
    assert "earns 1" in trusting.findings[0].reason
    assert "whole" not in trusting.findings[0].reason
    # The solution's own files are no hack, whoever writes them.
    assert trusting.hacks == {name: 1.0, "trajectory:trusting/solved.json": None}
    assert (sound.result, sound.incomplete) == ("sound", {}), sound
    assert sound.hacks == {"trajectory:sound/1/trajectory.json": 0.0}

    # The verdict is reused, but not for another trajectory in the same file.
    assert await gate.run(list(ids)) == [trusting, sound]
    save(tmp_path / "recorded" / "sound" / "1" / "trajectory.json", trajectory(solved))
    again = replace(gate, recorded=recorded_hacks(tmp_path / "recorded", ids))
    kept, changed = await again.run(list(ids))
    assert kept == trusting
    assert changed.hacks == {"trajectory:sound/1/trajectory.json": None}


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
    says = "calls of str_replace_editor that cannot be replayed: 1; the shell ended before input 5 of 5"
    verdict = read(tmp_path / "r.json")["harbor:sound"]
    assert verdict.incomplete == {"trajectory:one.json": says}
    assert verdict.hacks == {"trajectory:one.json": 0.0}
    assert (
        f"not replayed whole: harbor:sound: trajectory:one.json: {says}" in capsys.readouterr().err
    )


async def test_inputs_share_a_shell_and_a_failing_or_endless_one_ends_nothing() -> None:
    async with await open_box(BoxSpec(open=OpenBox())) as box:
        calls = (
            ran("cd /tmp; export WORD=one; false"),
            ran("cat; echo $WORD > first"),  # `cat` reads nothing, and so ends
            typed("( echo $WORD; )) > none\n"),
            typed("sleep 1000\n", 0.2),
            typed("C-c", 0.2),
            typed("test -t 0 && echo $WORD$?$(cat first) > second\n"),
            typed("read -r LINE\n"),
            typed("two\n"),
            typed("ec"),
            typed("ho $LINE > third\n"),
        )
        assert await _played(box, *calls) == ""
        assert (await box.read("/tmp/second")).decode() == "one0one\n"
        assert (await box.read("/tmp/third")).decode() == "two\n"
        assert not (await box.exec("ls -A /tmp/.air-replay", timeout=20)).ok


async def test_long_texts_and_what_is_typed_into_a_program_arrive_whole() -> None:
    text = "".join(f"line {n} of the text, 'quoted', $HOME\n" for n in range(200))
    async with await open_box(BoxSpec(open=OpenBox())) as box:
        calls = (
            typed(f"cat > /tmp/text <<'EOF'\n{text}EOF\n"),
            typed(f"echo {'x' * 5000} > /tmp/line\n"),
            typed("python3\n", 1.0),
            typed("open('/tmp/python', 'w').write('é')\n"),
            typed("C-d"),
            typed("echo ran > /tmp/ran\n"),
            # The prompt after the first line is not the end, at which the key would come too early.
            typed("true\nsleep 2; echo slow > /tmp/slow\n"),
            typed("C-c"),
        )
        assert await _played(box, *calls) == ""
        assert (await box.read("/tmp/text")).decode() == text
        assert len(await box.read("/tmp/line")) == 5001
        assert (await box.read("/tmp/python")).decode() == "é"
        assert (await box.read("/tmp/ran")).decode() == "ran\n"
        assert (await box.read("/tmp/slow")).decode() == "slow\n"


async def test_without_bash_a_line_that_is_cut_is_told() -> None:
    tag = f"air-test-no-bash:{os.getpid()}"
    with docker_client() as client:
        text = b"FROM air-base\nUSER root\nRUN rm -f /bin/bash /usr/bin/bash\n"
        client.images.build(fileobj=io.BytesIO(text), tag=tag, rm=True)
        try:
            async with await open_box(BoxSpec(image=tag, open=OpenBox())) as box:
                calls = (ran("cd /tmp"), typed("echo a > one\n"), ran("cat one > two"))
                assert await _played(box, *calls) == ""
                assert (await box.read("/tmp/two")).decode() == "a\n"
                says = await _played(box, typed(f"echo {'x' * 5000} > /tmp/line\n"))
                assert says.startswith("lines of more than 4094 bytes were cut")
        finally:
            client.images.remove(tag, force=True)


async def test_a_command_that_ends_the_shell_is_told_if_others_follow() -> None:
    async with await open_box(BoxSpec(open=OpenBox())) as box:
        ends = ran("echo a > /tmp/one; exit 3")
        assert await _played(box, ends) == ""
        assert (await box.read("/tmp/one")).decode() == "a\n"
        assert await _played(box, ends, ran("ls")) == "the shell ended before input 2 of 2"


async def test_the_time_is_limited() -> None:
    async with await open_box(BoxSpec(open=OpenBox())) as box:
        calls = (ran("sleep 1000"), ran("touch /tmp/after"))
        assert await _played(box, *calls, seconds=4.0) == "the time was over before input 2 of 2"
        assert not (await box.exec("ls /tmp/after", timeout=20)).ok
