"""How checkers are loaded and called."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from air.errors import AirError, ConfigError, InfrastructureError, MissingError, RewardTermError
from air.rewards.answers import CHECKERS, Verdict, check

USERS = """
from air.errors import InfrastructureError
from air.rewards.answers import pays

def half(prediction, wanted, bonus=0.0):
    return 0.5 + bonus if prediction == wanted else 0

async def later(turns):
    return {"reward": turns, "twice": 2 * turns}

def broken(prediction):
    raise KeyError("no such thing")

def away(prediction):
    raise InfrastructureError("the server is away")

def endless(prediction):
    return float("inf")

def negative(prediction):
    return -0.5

@pays(lowest=-0.5)
def declared(prediction):
    return -0.5

@pays(lowest=0.5)
def generous(prediction):
    return 1.0

def words(prediction):
    return "good"

def anything(**fields):
    return 1.0

number = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(USERS, "utf-8")
    (tmp_path / "wrong.py").write_text("1 +", "utf-8")
    return tmp_path


async def test_a_function_gets_the_fields_that_it_names(folder: Path) -> None:
    checker = check("mine.py:half", folder=folder)
    assert checker.needs == ("prediction", "wanted")
    assert checker.columns == ("wanted",)
    assert await checker(prediction="a", wanted="a", other=3, turns=2) == Verdict(0.5)


async def test_a_table_has_settings(folder: Path) -> None:
    checker = check({"name": "mine.py:half", "bonus": 0.25}, folder=folder)
    assert (await checker(prediction="a", wanted="a")).reward == 0.75


async def test_a_function_may_be_asynchronous_and_return_metrics(folder: Path) -> None:
    verdict = await check("mine.py:later", folder=folder)(turns=3)
    assert verdict == Verdict(3.0, {"twice": 6.0})


async def test_a_module_can_be_named() -> None:
    checker = check("air.rewards.answers.texts:qa_f1")
    assert (await checker(prediction="a b", answer="b")).reward == 1.0


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("no_such", MissingError, "no such checker"),
        ("", ConfigError, "needs a name"),
        ("away.py:f", MissingError, "no such file"),
        ("mine.py:absent", ConfigError, "absent"),
        ("wrong.py:f", ConfigError, "SyntaxError"),
        ("mine.py:number", ConfigError, "no function"),
        ("mine.py:generous", ConfigError, "lowest reward is 0.5"),
        ("mine.py:anything", ConfigError, "by name"),
        ("no_module_of_this_name:f", MissingError, "cannot be imported"),
    ],
)
def test_a_wrong_name_is_one_line(
    folder: Path, name: str, kind: type[AirError], message: str
) -> None:
    with pytest.raises(kind, match=message) as error:
        check(name, folder=folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "qa_f1", "speed": 3},
        {"name": "qa_f1", "prediction": "x"},
        {"name": "judge", "url": "http://127.0.0.1:1/v1"},
        {"name": "judge", "url": "http://127.0.0.1:1/v1", "model": "m", "speed": 3},
        {"speed": 3},
    ],
)
def test_wrong_settings_are_refused(spec: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        check(spec)


async def test_a_row_without_a_field_is_the_users_fault() -> None:
    with pytest.raises(ConfigError, match="golden_answers"):
        await check("qa_em")(prediction="x", answer="x")


@pytest.mark.parametrize("name", ["broken", "endless", "words"])
async def test_a_function_that_fails_stops_the_run(folder: Path, name: str) -> None:
    with pytest.raises(RewardTermError, match=f"mine.py:{name}"):
        await check(f"mine.py:{name}", folder=folder)(prediction="x")


async def test_a_failure_of_ours_stays_one(folder: Path) -> None:
    with pytest.raises(InfrastructureError, match="is away"):
        await check("mine.py:away", folder=folder)(prediction="x")


async def test_the_event_loop_goes_on_while_an_answer_is_checked() -> None:
    """A comparison that takes seconds blocks no other episode."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    clock = asyncio.create_task(tick())
    verdict = await check("math_equal")(prediction="(x+y+z+w)^{999}", answer="x")
    clock.cancel()
    assert verdict.reward == 0
    assert ticks > 2  # it would be 1 at most if the comparison held the event loop; 42 were seen


@pytest.mark.parametrize("name", sorted(set(CHECKERS) - {"judge"}))
def test_every_checker_says_what_it_pays(name: str) -> None:
    assert "reward is" in " ".join((CHECKERS[name].__doc__ or "").split()).lower()
    assert check(name).needs


def test_checkers_that_need_a_box_say_so() -> None:
    assert [name for name in CHECKERS if name != "judge" and check(name).needs_box] == [
        "code_tests"
    ]


async def test_numbers_of_the_specification() -> None:
    f1 = (await check("qa_f1")(prediction="big red dog", answer="red dog")).metrics
    assert f1 == pytest.approx({"f1": 0.8, "em": 0.0, "precision": 2 / 3, "recall": 1.0})
    paid = await check("infoseek")(prediction="big red dog", answer="red dog", tool_calls=2)
    assert paid.reward == pytest.approx(0.2 + 0.8 * 0.8)
    soft = await check("ok_vqa")(prediction="bus", answers=["bus", "bus", "car"])
    assert soft.metrics["soft_accuracy"] == pytest.approx(2 / 3)
    assert math.isclose(soft.reward, 1.0)


async def test_no_reward_is_below_what_an_episode_without_an_answer_is_paid(folder: Path) -> None:
    declared = check("mine.py:declared", folder=folder)
    assert declared.lowest == (await declared(prediction="")).reward == -0.5
    assert check("agent0").lowest == -1.0
    assert check("mine.py:half", folder=folder).lowest == 0.0
    with pytest.raises(RewardTermError, match=r"pays -0\.5, less than .* @pays\(lowest="):
        await check("mine.py:negative", folder=folder)(prediction="")
