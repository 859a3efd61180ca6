"""The small machine, its costs by hand, and programs that earn nothing."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from air import paths, tasks
from air.tasks.check import read_solvers
from air.tasks.data import prepare
from tests.unit.tasks.shipped.programs import grade, message, module, run, workspace

pytestmark = pytest.mark.slow

TASK = tasks.load("cheaper")
FOLDER = paths.shipped("tasks") / "cheaper"
MACHINE = module(FOLDER / "starter" / "machine.py")
ONE_LOOP = read_solvers(TASK)[2].script.partition("<<'END'\n")[2].partition("END\n")[0]


def carry_out(text: str, numbers: list[int]) -> tuple[int, int]:
    found: tuple[int, int] = MACHINE.run(MACHINE.parse(text), numbers)
    return found


def program(place: Path, text: str | bytes) -> Path:
    (place / "program.txt").write_bytes(text.encode() if isinstance(text, str) else text)
    return place


@pytest.mark.parametrize(
    ("text", "numbers", "answer", "cost"),
    [
        ("", [5, 6], 2, 0),
        ("set a 7\nstore 0 a\nhalt\nstore 0 1", [5], 7, 3),
        ("load a 2 # the second\nmul a -3\nsub a 4\nadd a a\nstore 0 a", [5, 6], -44, 5),
        ("load i 0\nset s 0\nmore:\nsame i 0 out\nload x i\nadd s x\nsub i 1\njump more\nout:\n"
         "store 0 s", [5, 6, 7], 18, 2 + 3 * 5 + 1 + 1),
        ("less 1 1 out\nless 1 2 out\nstore 0 9\nout: ", [4], 1, 2),
        ("store 255 3\nload a 255\nstore 0 a", [4], 3, 3),
    ],
)  # fmt: skip
def test_programs_worked_out_by_hand(text: str, numbers: list[int], answer: int, cost: int) -> None:
    assert carry_out(text, numbers) == (answer, cost)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("move a 1", "line 1: unknown instruction 'move'"),
        ("\nset a", "line 2: set takes 2 operands"),
        ("set 1 a", "line 1: '1' is no operand of set"),
        ("set a 12345678901", "'12345678901' is no operand"),
        ("set a 1.5", "'1.5' is no operand"),
        ("set a __import__('os')", "is no operand"),
        ("jump out", "there is no label 'out'"),
        ("a:\na:", "line 2: the label a: is there twice"),
        ("halt\n" * 401, "401 instructions, at most 400"),
        ("add a 1", "fails on a hidden input"),
        ("load a 256", "fails on a hidden input"),
        ("load a -1", "fails on a hidden input"),
        ("store -1 0", "fails on a hidden input"),
        ("set a 2147483649", "fails on a hidden input"),
        ("set a 2147483648\nadd a 1", "fails on a hidden input"),
        ("set a 65536\nmul a a", "fails on a hidden input"),
        ("a:\njump a", "fails on a hidden input"),
        ("set i 0\na:\nadd i 1\nless i 60000 a", "fails on a hidden input"),
        ("store 0 1", "its answer is wrong for a hidden input"),
        (ONE_LOOP.replace("set sum 0\nset at 1", "set sum -200\nset at 1"), None),
        (ONE_LOOP.replace("load best 1", "set best 0"), "its answer is wrong for a hidden input"),
        (
            ONE_LOOP.replace("less n at done", "same n at done"),
            "its answer is wrong for a hidden input",
        ),
        (b"\xff", "no ASCII"),
        ("#" * 20_001, "larger than 20 kB"),
    ],
)
def test_a_program_at_fault_is_told_so(tmp_path: Path, text: str | bytes, said: str | None) -> None:
    """Also programs that are wrong only for rare inputs; one is right after all."""
    said = said or "no fault was found"
    found = message(TASK, program(tmp_path, text))
    assert re.search(said, found), found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("add a 1", "line 1: the register a has no value"),
        ("load a 256", "line 1: there is no such cell"),
        ("store -1 0", "line 1: there is no such cell"),
        ("set a 2147483648\nadd a 1", r"line 2: a number beyond ±2\*\*31"),
        ("a:\njump a", "more than 100000 instructions"),
    ],
)
def test_the_agents_own_machine_says_where_a_program_fails(text: str, said: str) -> None:
    with pytest.raises(MACHINE.BadProgram, match=said):
        carry_out(text, [1])


def test_the_cost_is_the_mean_over_the_hidden_inputs(tmp_path: Path) -> None:
    inputs = json.loads((prepare(TASK).grader / "data" / "test.json").read_text())
    costs = [carry_out(ONE_LOOP, numbers)[1] for numbers in inputs]
    said = grade(TASK, program(tmp_path, ONE_LOOP), split="test")["metrics"]
    assert said == {"cost": pytest.approx(sum(costs) / 50), "largest_cost": max(costs)}


def test_the_awkward_inputs_are_among_the_hidden_ones() -> None:
    draw = module(FOLDER / "data.py").inputs
    for seed in range(5):
        inputs = draw(random.Random(seed))
        assert len(inputs) == 50
        assert any(max(numbers) < 0 for numbers in inputs)
        assert any(len(numbers) == 1 for numbers in inputs)
        assert any(not any(numbers) for numbers in inputs)
        assert all(1 <= len(numbers) <= 30 for numbers in inputs)
    assert draw(random.Random(0)) == draw(random.Random(0)) != draw(random.Random(1))


def test_check_says_what_is_wrong_and_what_it_costs(tmp_path: Path) -> None:
    place = workspace(TASK, tmp_path)
    assert "right; mean cost " in run(place, "check.py").stdout
    for text, said in (("jump a", "no label"), ("store 0 5", "the answer to [-5] is 5")):
        result = run(program(place, text), "check.py")
        assert result.returncode == 1
        assert said in result.stderr
        assert len(result.stderr.splitlines()) == 1
