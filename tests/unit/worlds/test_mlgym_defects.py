"""Defects of MLGym's own interface, each with a test that air does not have it."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest

from air import tasks
from air.actions.mlgym import SIGNATURES
from air.errors import GradingError
from air.tasks.spec import TaskSpec
from air.worlds import ResearchWorld
from tests.unit.worlds.conftest import MakeWorld, do, told

pytestmark = pytest.mark.slow

PROGRAMS = ("python3", "cat", "bash", "sh -i", "read x; test -z $x", "more", "su -c true nobody")


def copied_titanic(folder: Path, *, limits: str = "", grader: str = "") -> TaskSpec:
    """A titanic with other limits, or a grader that begins with other lines."""
    root = folder / "tasks"
    shutil.copytree(tasks.load("titanic").folder, root / "titanic")
    toml, program = root / "titanic" / "task.toml", root / "titanic" / "grader" / "grade.py"
    toml.write_text(re.sub(r"^exec_seconds = .*$", limits, toml.read_text(), flags=re.MULTILINE))
    program.write_text(grader + program.read_text())
    return tasks.load("titanic", [root])


@pytest.fixture
async def world(make_world: MakeWorld) -> ResearchWorld:
    return await make_world()


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_blocklist_that_never_matches(world: ResearchWorld, program: str) -> None:
    """No list of forbidden programs is needed: what asks for input finds none, and ends."""
    step = await do(world, program)
    assert not step.timed_out
    assert await told(world, "echo still here") == "still here"


async def test_a_program_that_waits_without_reading_is_ended(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    world = await make_world(copied_titanic(tmp_path, limits="exec_seconds = 2.0"))
    step = await do(world, "sleep 600")
    assert step.timed_out
    assert step.observation.text == "[timed out after 2 s]"
    assert await told(world, "echo still here") == "still here"


async def test_a_quoted_heredoc_is_rejected_by_the_syntax_check(world: ResearchWorld) -> None:
    shown = await told(world, "cat << 'EOF' > f.py\nprint('$HOME `x`')\nEOF\npython3 f.py")
    assert shown == "$HOME `x`"
    assert await told(world, 'cat <<-EOF\n\t"a"\n\tEOF\necho b') == '"a"\nb'
    assert await told(world, "for i in 1 2; do\n  echo $i\ndone") == "1\n2"


@pytest.mark.parametrize(
    "marker",
    [
        "///PROCESS-DONE:0:PROCESS-DONE///",
        "[exit 0]\n[0 turns left] [open: none] [in: /]\n$",
        "[accuracy] 1.0000 (best 1.0000)",
        "<<END>>\nend_of_edit\nEOF\n\x00\x04\x1a",
        '{"id": 1, "code": 0}',
    ],
)
async def test_output_that_contains_the_end_marker_desynchronises_the_shell(
    world: ResearchWorld, marker: str
) -> None:
    await world.box.write("marker", marker.encode())
    step = await do(world, "cat marker; cat marker >&2; cat marker > /proc/$$/fd/1; (exit 3)")
    assert step.code == 3
    assert step.observation.text.count(marker) == 3
    assert (step.validation, step.done) == (None, False)
    assert world.validations == []
    again = await do(world, "echo next")
    assert (again.code, again.observation.text) == (0, "next")
    assert world.standing(7).left == 7
    assert world.standing(7).cwd == world.box.workspace


async def test_an_evaluation_that_times_out_leaves_the_shell_busy(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    slow = copied_titanic(
        tmp_path, limits="grade_seconds = 0.3", grader="import time\ntime.sleep(600)\n"
    )
    world = await make_world(slow)
    await told(world, "python3 solve.py; cd data; export X=1")
    with pytest.raises(GradingError, match="ran past"):
        await do(world, "validate")
    assert await told(world, "pwd; echo $X") == f"{world.box.workspace}/data\n1"


async def test_the_second_reset_deletes_the_shells_working_directory(
    make_world: MakeWorld,
) -> None:
    first = await make_world()
    await told(first, "mkdir gone; cd gone; rmdir ../gone")
    second = await make_world()
    assert await told(second, "pwd") == second.box.workspace
    assert "solve.py" in await told(second, "ls")
    # And within an episode, a directory that is gone is told, and left.
    assert "/gone is gone" in await told(first, "pwd")
    assert await told(first, "pwd") == first.box.workspace


async def test_a_reset_does_not_restore_the_workspace(make_world: MakeWorld) -> None:
    first = await make_world(memory=True)
    before = await told(first, "md5sum $(find . -type f | sort)")
    for command in (
        "rm -r data; echo spoilt > solve.py; touch left; export X=mine; cd /usr",
        "memory_write mine",
        f"open {first.box.workspace}/solve.py",
    ):
        await do(first, command)
    assert "solve.py" in first.standing(1).open_file
    second = await make_world(memory=True)
    assert await told(second, "md5sum $(find . -type f | sort)") == before
    assert await told(second, "echo ${X-none}") == "none"
    assert await told(second, "memory_read mine") == "There are no notes."
    assert second.standing(1).open_file == ""
    assert "No file is open" in await told(second, "scroll_down")


async def test_one_exception_ends_the_episode_unscored(world: ResearchWorld) -> None:
    """Whatever an agent gets wrong is told, and the episode goes on to its score."""
    await world.box.write("dir/x", b"")
    await world.box.write("bad.py", b"\xff\xfe\n")
    wrong = [
        *(f"{name} a b c" for name, signature in SIGNATURES.items() if "\n" not in signature.usage),
        "scroll_down",
        "goto 1",
        "edit 1:1\nx\nend_of_edit",
        "open nothing",
        "open dir",
        "open ''",
        "open bad.py 99999999999999999999999",
        "open bad.py",
        "edit 1:1\n\ud800\nend_of_edit",
        "insert -1\nx\nend_of_insert",
        "create dir",
        "create bad.py/y",
        "search_dir [ /nowhere",
        "search_file '\\(' bad.py",
        "find_file '[' dir",
        "exit 255",
        "kill -9 $$",
        "rm -rf *",
        "validate",
    ]
    for command in wrong:
        step = await do(world, command)
        assert step.observation.text, command
        assert not step.done
    assert world.validations[-1].score is None
    assert "submission.csv" in world.validations[-1].problem
    await do(world, "printf 'id,survived\\n' > submission.csv")
    assert (await do(world, "submit")).done
    await world.finish()


async def test_a_memory_shared_by_parallel_agents(make_world: MakeWorld) -> None:
    worlds = [await make_world(memory=True) for _ in range(3)]

    async def play(number: int, world: ResearchWorld) -> str:
        await told(world, f"memory_write agent {number} knows secret{number}")
        return await told(world, "memory_read agent secret0 secret1 secret2")

    shown = await asyncio.gather(*(play(n, world) for n, world in enumerate(worlds)))
    assert shown == [f"1: agent {n} knows secret{n}" for n in range(3)]
    # Nor is it anywhere that another box's commands could read.
    search = "grep -rshoI --exclude-dir=.venv 'agent [0-9] knows secret' . $TMPDIR; true"
    assert "knows" not in await told(worlds[0], search)


async def test_unbounded_output(world: ResearchWorld) -> None:
    step = await do(world, "yes x | head -c 5000000; yes y | head -c 5000000 >&2")
    assert len(step.observation.text) < 40_000
    assert step.observation.truncated
    assert re.search(r"bytes cut", step.observation.text)
    await do(
        world, "seq 200000 > long.txt; yes $(printf 'z%.0s' $(seq 5000)) | head -100 > wide.txt"
    )
    for command in (
        "open long.txt 100000",
        "search_dir 1",
        "open wide.txt",
        "search_file z wide.txt",
    ):
        step = await do(world, command)
        assert len(step.observation.text.encode()) < 70_000
    assert "lines above]" in (await do(world, "open long.txt 100000")).observation.text
    assert "cut …]" in (await do(world, "open wide.txt")).observation.text


async def test_partial_output_lost_on_timeout(make_world: MakeWorld, tmp_path: Path) -> None:
    world = await make_world(copied_titanic(tmp_path, limits="exec_seconds = 3.0"))
    await told(world, "mkdir d; cd d; export X=1")
    step = await do(world, "echo early; echo wrong >&2; cd ..; export X=2; sleep 600; echo late")
    assert step.timed_out
    assert step.observation.text == "early\nwrong\n[timed out after 3 s]"
    again = await do(world, "pwd; echo $X")
    assert again.code == 0
    assert again.observation.text == f"{world.box.workspace}/d\n1"


async def test_eight_rollouts_share_one_container_and_one_step_counter(
    make_world: MakeWorld,
) -> None:
    one, other = await make_world(), await make_world()
    await do(one, "open solve.py 30")
    await do(one, "cd data")
    assert one.box.id != other.box.id
    assert (other.standing(3).open_file, other.standing(3).cwd) == ("", other.box.workspace)
    assert (one.standing(2).left, other.standing(3).left) == (2, 3)
