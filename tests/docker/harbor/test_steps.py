"""Harbor tasks in several steps, in real containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from air.actions.base import Action
from air.tasks.grading import NOT_GRADED
from tests.docker.harbor.test_grading import HEAD, Make, Play, play

__all__ = ["play"]
pytestmark = pytest.mark.docker
TEST = """\
#!/bin/sh
. /tests/step.sh
if [ "$(cat "$FILE" 2>/dev/null)" = done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
ONLY_IF_SOLVED = """\
#!/bin/sh
set -e
. /tests/step.sh
[ $FILE = one.txt ] || cmp one.txt two.txt
echo 1 > /logs/verifier/reward.txt
"""
SOLVE = {"one": "echo done > one.txt\n", "two": "cp one.txt two.txt\n"}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def task(more: str = "", top: str = "") -> str:
        folder = tmp_path / "task"
        steps = "".join(f'[[steps]]\nname = "{name}"\n{more}' for name in ("one", "two"))
        (folder / "tests").mkdir(parents=True)
        (folder / "tests" / "test.sh").write_text(TEST)
        (folder / "task.toml").write_text(f"{top}{HEAD}{steps}")
        for name in ("one", "two"):
            step = folder / "steps" / name
            (step / "tests").mkdir(parents=True)
            (step / "workdir").mkdir()
            (step / "instruction.md").write_text(f"Step {name}.\n")
            (step / "tests" / "step.sh").write_text(f"FILE={name}.txt\n")
            (step / "workdir" / "setup.sh").write_text(f"echo > set-{name}\n")
        return "harbor:task"

    return task


async def test_each_step_is_told_graded_and_paid_apart(make: Make, play: Play) -> None:
    async with play(make()) as world:
        step = await world.step(Action(script="ls; echo done > one.txt", ending="submit"))
        assert not step.done
        assert "set-one" in step.observation.text
        assert "Step two." in step.observation.text
        assert (
            "reward" not in step.observation.text
        )  # what a step earned is not told before the end
        step = await world.step(Action(script="ls", ending="submit"))
        assert step.done
        assert "set-two" in step.observation.text
        await world.finish()
        assert [v.delta for v in world.validations] == [1.0, -0.5]
        assert world.reward == 0.5


async def test_a_step_below_its_least_reward_is_the_last(make: Make, play: Play) -> None:
    async with play(make("min_reward = 1.0\n")) as world:
        assert (await world.step(Action(script="true", ending="submit"))).done
        await world.finish()
        assert world.reward == 0.0


async def test_the_tasks_collect_commands_run_in_each_step_before_the_steps_own(
    make: Make, play: Play, tmp_path: Path
) -> None:
    task = make(
        '[[steps.verifier.collect]]\ncommand = "echo step >> /logs/artifacts/order"\n',
        top='artifacts = ["one.txt", "two.txt"]\n'
        '[[verifier.collect]]\ncommand = "echo task > /logs/artifacts/order; cp made $(cat name)"\n',
    )
    test = (
        TEST + '[ "$(echo $(cat /logs/artifacts/order))" = "task step" ] || rm /logs/verifier/*\n'
    )
    (tmp_path / "task" / "tests" / "test.sh").write_text(test)
    async with play(task) as world:
        for name in ("one.txt", "two.txt"):
            script = f"echo done > made; echo {name} > name"
            step = await world.step(Action(script=script, ending="submit"))
        assert step.done
        await world.finish()
        assert world.reward == 1.0


async def test_steps_that_the_agent_does_not_reach_count_as_nothing(make: Make, play: Play) -> None:
    async with play(make()) as world:
        await world.step(Action(script="echo done > one.txt"))
        await world.finish()
        assert world.reward == 0.5


@pytest.mark.parametrize(
    "breaking", ["rm -f /bin/bash /usr/bin/bash", "rm -f setup.sh; mkdir setup.sh"]
)
async def test_an_agent_that_breaks_the_setup_of_the_next_step_ends_there(
    make: Make, play: Play, breaking: str
) -> None:
    async with play(make()) as world:
        script = f"echo done > one.txt; {breaking}"
        step = await world.step(Action(script=script, ending="submit"))
        assert step.done
        await world.finish()
        assert world.reward == 0.5


async def test_silent_tests_of_a_later_step_are_shown_to_work_by_all_solutions_before(
    make: Make, play: Play, tmp_path: Path
) -> None:
    task = make()
    tests = tmp_path / "task" / "tests" / "test.sh"
    tests.write_text(ONLY_IF_SOLVED)
    for name in ("one", "two"):
        solution = tmp_path / "task" / "steps" / name / "solution"
        solution.mkdir()
        (solution / "solve.sh").write_text(SOLVE[name])
    async with play(task, range=(-1.0, 1.0)) as world:
        await world.step(Action(script="echo done > one.txt", ending="submit"))
        step = await world.step(Action(script="echo other > two.txt", ending="submit"))
        assert step.done
        await world.finish()
        assert [v.problem for v in world.validations] == ["", NOT_GRADED]
        assert world.reward == 0.0  # the mean of 1 and the lowest reward
