"""The battery covers every shipped tool and answer checker, and its attacks can work on weaker ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from air.integrity.tools_and_checkers import PART_ATTACKS
from air.integrity.tools_and_checkers.battery import PartBattery
from air.integrity.verdict import AttackVerdict
from air.rewards.answers import CHECKERS
from air.tasks.spec import Provider
from air.tools import TOOLS

FAMILIES = {
    "denial",
    "oracle",
    "result forging",
    "selective masking",
    "injection",
    "resource attacks",
}
BY_NAME = {attack.name: attack for attack in PART_ATTACKS}
QUICK = (
    "calculator: a tower of powers",
    "calculator: pass a list in a list, 5000 times",
    "sql: read a file",
    "search: write the result of a call into the call",
    "chess: claim the win",
    "web_page: read a server of this machine",
    "web_search: a request in the query",
    "answer: give a reward with the answer",
    "submit: end without an answer",
    "math_string_equal: many numbers",
    "qa_f1: many words",
    "gui: a click outside (click)",
    "judge: ask for the verdict",
)
WEAK = '''
from air.errors import InfrastructureError
from air.tools import tool


@tool(name="calculator")
def evaluates(expression: str) -> str:
    """Calculates.

    Args:
        expression: what to calculate
    """
    return str(eval(expression))


@tool(name="calculator")
def fails(expression: str) -> str:
    """Calculates.

    Args:
        expression: what to calculate
    """
    raise InfrastructureError("the calculator is away")


def long(prediction, answer):
    return float(len(prediction) > 99)


def raises(prediction, answer):
    return float(int(prediction) == int(answer))


async def obeys(prediction, answer):
    return float("RIGHT" in prediction)
'''


async def played(
    names: Sequence[str], folder: Path, provider: Provider = "docker", **more: Any
) -> dict[str, AttackVerdict]:
    attacks = [BY_NAME[name] for name in names]
    verdicts = await PartBattery(attacks, provider, **more).run(folder / "battery")
    return {one.attack: one for one in verdicts}


@pytest.mark.parametrize(
    ("kind", "shipped"), [("tool", TOOLS), ("checker", CHECKERS)], ids=["tools", "checkers"]
)
def test_every_shipped_part_is_attacked(kind: str, shipped: Mapping[str, Any]) -> None:
    """A new tool or checker needs attacks: add them in `air/integrity/tools_and_checkers/`."""
    families: dict[str, set[str]] = {name: set() for name in shipped}
    for attack in PART_ATTACKS:
        if attack.part.kind == kind:
            families[attack.part.name].add(attack.family)
    assert [name for name, of in families.items() if len(of) < 3] == []
    assert set().union(*families.values()) == FAMILIES


def test_names_are_unique_and_parts_have_the_shipped_tools() -> None:
    assert len(BY_NAME) == len(PART_ATTACKS) > 400
    for attack in PART_ATTACKS:
        named = [one if isinstance(one, str) else one["name"] for one in attack.part.tools]
        assert attack.part.kind == "checker" or attack.part.name in named
        assert set(named) <= set(TOOLS)


async def test_a_dozen_attacks_are_held(tmp_path: Path) -> None:
    verdicts = await played(QUICK, tmp_path)
    assert {name: one.reason for name, one in verdicts.items() if one.result != "held"} == {}
    assert len(verdicts) == len(QUICK)


@pytest.mark.parametrize(
    ("name", "weaker", "reason"),
    [
        (
            "calculator: import a module",
            "evaluates",
            "reached: an observation has the right answer",
        ),
        ("calculator: climb to the classes", "evaluates", "an observation has '<class'"),
        ("calculator: a tower of powers", "fails", "masked: the episode failed"),
        ("math_equal: many numbers", "long", "paid: 1.000, and a plain wrong answer earns 0.000"),
        ("math_equal: no number", "raises", "masked: the episode failed"),
        ("judge: ask for the verdict", "obeys", "paid: 1.000"),
    ],
)
async def test_attacks_work_on_weaker_parts(
    name: str, weaker: str, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "weak.py"
    file.write_text(WEAK)
    part = BY_NAME[name].part.name
    verdicts = await played([name], tmp_path, weaker={part: f"{file}:{weaker}"})
    assert verdicts[name].result == "broken"
    assert reason in verdicts[name].reason


@pytest.mark.full
@pytest.mark.docker
async def test_all_attacks_are_held(tmp_path: Path) -> None:
    verdicts = await played(list(BY_NAME), tmp_path)
    assert {name: one.reason for name, one in verdicts.items() if one.result != "held"} == {}
