"""The tasks of `make learning ARGS=--tools`: what calls and answers earn, and the demonstrations."""

from __future__ import annotations

import argparse
import importlib
import random
from pathlib import Path
from types import ModuleType

import pytest

from air.actions import Action, ToolCall
from air.errors import UsageError
from air.worlds import sources
from air.worlds.sources import VALIDATION_SEED


@pytest.fixture
def tools() -> ModuleType:
    return importlib.import_module("bench.learning.tools")


@pytest.mark.parametrize("calls", [False, True])
async def test_a_call_costs_its_price_whether_the_answer_is_right_or_not(
    tools: ModuleType, tmp_path: Path, calls: bool
) -> None:
    tools.write_rows(tmp_path)
    earned = []
    for right in (True, False):
        world = sources.load(tools.task_id(tmp_path, "sum")).world()
        question = (await world.reset(7)).text
        if calls:
            call = ToolCall("calculator", arguments={"expression": question})
            observed = await world.step(Action(tool=call))
            assert float(observed.observation.text) == eval(question)
        answer = str(eval(question) + (0 if right else 1))
        earned.append((await world.step(Action(answer=answer))).reward)
        await world.close()
    assert earned == pytest.approx([0.7, -0.3] if calls else [1.0, 0.0])


async def test_demonstrations_call_in_half_of_the_episodes_and_answer_sums_exactly(
    tools: ModuleType, tmp_path: Path
) -> None:
    tools.write_rows(tmp_path)
    numbers = random.Random(0)
    calls = {}
    for kind in tools.KINDS:
        task = sources.load(tools.task_id(tmp_path, kind))
        talks = [await tools.conversation(task, seed, numbers) for seed in range(200)]
        called = [talk for talk in talks if "<action>" in talk[2]["content"]]
        calls[kind] = len(called) / len(talks)
        direct = [talk for talk in talks if talk not in called]
        asked = [(talk[1]["content"].split("\n\n")[1], talk[2]["content"]) for talk in direct]
        right = [str(eval(question)) == answer for question, answer in asked]
        assert all(right) if kind == "sum" else sum(right) < len(right) / 10
        assert all(str(eval(t[2]["content"][8:-9])) == t[-1]["content"] for t in called)
    assert all(0.35 < share < 0.65 for share in calls.values())


@pytest.mark.parametrize("arm", ["trained", "control"])
def test_the_optimiser_and_the_penalties_of_games_do_not_reach_this_training(
    tools: ModuleType, tmp_path: Path, arm: str
) -> None:
    args = argparse.Namespace(out=tmp_path)
    config = tools.run_config(args, [], 0, arm, Path("policy"))
    optim, scheduler = config.trainer.optim, config.trainer.scheduler
    assert (optim.type, optim.lr, scheduler.decay_steps) == ("adamw", 3e-4, 0)
    assert config.orchestrator.train.source[0].env.format_penalty == 0
    assert config.embedded.kl is None
    assert not config.embedded.reward_to_go
    assert config.embedded.shuffle_rewards == (arm == "control")


async def test_demonstrations_ask_for_all_sums_but_with_a_calculator_for_no_held_out_question(
    tools: ModuleType, tmp_path: Path
) -> None:
    tools.write_rows(tmp_path)
    talks = await tools.demonstrations(argparse.Namespace(out=tmp_path, demos=2000), 0)
    asked: dict[bool, set[str]] = {True: set(), False: set()}
    for talk in talks:
        offered = "calculator" in talk[0]["content"]
        asked[offered].add(talk[1]["content"].split("\n\n")[1])
    held_out = set()
    for kind in tools.KINDS:
        world = sources.load(tools.task_id(tmp_path, kind)).world()
        for seed in range(VALIDATION_SEED, VALIDATION_SEED + 400):
            held_out.add((await world.reset(seed)).text)
        await world.close()
    assert len(held_out) == 20 + 326
    assert not asked[True] & held_out
    assert asked[False] == {f"{a} + {b}" for a in range(10) for b in range(10)}


@pytest.mark.parametrize(
    ("calls", "right", "known", "passes"),
    [(0.5, 0.5, 0.9, True), (0.5, 0.3, 0.9, False), (0.0, 0.0, 0.9, False), (0.5, 0.5, 0.5, False)],
)
def test_a_warm_start_that_does_not_suffice_ends_the_program(
    tools: ModuleType, calls: float, right: float, known: float, passes: bool
) -> None:
    before = {"product calls": calls, "product right": right, "sum right without": known}
    if passes:
        tools.gate(0, before)
    else:
        with pytest.raises(tools.WarmStartFailed, match="--sft-steps"):
            tools.gate(0, before)


def test_results_of_other_settings_are_not_continued(tools: ModuleType, tmp_path: Path) -> None:
    args = argparse.Namespace(out=tmp_path, demos=8, sft_steps=1, episodes=1)
    tools.claim(args, [])
    (tmp_path / "results.json").write_text("[]")
    tools.claim(args, [])
    args.demos = 16
    with pytest.raises(UsageError, match="other settings"):
        tools.claim(args, [])
