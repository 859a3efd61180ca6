"""Expected rewards of random players in worlds of rows, posed questions and proposals.

The exact values are enumerated from the rules alone. The mean of what is played must lie within three
standard errors. All seeds are fixed, so that chance decides nothing.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
from starlette.responses import JSONResponse

from air.actions import Action
from air.worlds import sources
from air.worlds.sources import WorldTask
from tests.unit.worlds.proposals.test_proposer import service

DIGITS = [str(digit) for digit in range(10)]


async def played(task: WorldTask, reply: Callable[[], str], episodes: int) -> list[float]:
    """The reward of each episode, whose only action is a reply."""
    rewards = []
    for seed in range(episodes):
        world = task.world()
        await world.reset(seed)
        step = await world.step(Action(answer=reply()))
        assert step.done
        rewards.append(step.reward)
        await world.close()
    return rewards


def agree(rewards: Sequence[float], exact: Sequence[float]) -> None:
    """The mean of `rewards` is within three standard errors of the mean of `exact`, which are the rewards of
    all equally likely cases."""
    error = pstdev(exact) / math.sqrt(len(rewards))
    assert abs(fmean(rewards) - fmean(exact)) <= 3 * error, (fmean(rewards), fmean(exact), error)
    assert 0 < error < 0.04


def write(folder: Path, **more: Any) -> Path:
    """100 sums of two digits; the answers are their last digits. All rows have the fields `more`, too."""
    file = folder / "rows.jsonl"
    rows = [
        {"question": f"The last digit of {a} + {b}?", "answer": str((a + b) % 10), **more}
        for a in range(10)
        for b in range(10)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


async def test_random_digits_for_posed_questions(tmp_path: Path) -> None:
    rng = random.Random(0)
    replies = [*(f"\\boxed{{{digit}}}" for digit in DIGITS), "I pass", "\\boxed{ten}"]
    rewards = await played(
        sources.load(f"posed:{write(tmp_path)}"), lambda: rng.choice(replies), 3000
    )
    agree(rewards, [1.0] + [-1.0] * 11)


async def test_random_choices_for_rows(tmp_path: Path) -> None:
    rng = random.Random(0)
    task = sources.load(f"rows:{write(tmp_path, options=DIGITS)}#checker=choice")
    rewards = await played(task, lambda: f"\\boxed{{{rng.choice('ABCDEFGHIJK')}}}", 3000)
    agree(rewards, [1.0] + [0.0] * 10)


def by_paper(right: int) -> float:
    """The reward if `right` of five answers are the proposer's, and the others are another."""
    return 1 - 2 * abs(max(right, 5 - right) / 5 - 0.5)


def by_code(right: int) -> float:
    return min(right / 5, 1 - right / 5) if right > 2 else 0.0


@pytest.mark.slow
@pytest.mark.parametrize(("definition", "exact"), [("published", by_paper), ("as_coded", by_code)])
async def test_proposals_to_an_executor_that_guesses(
    definition: str, exact: Callable[[int], float], tmp_path: Path
) -> None:
    rng = random.Random(0)

    def guess(_: dict[str, Any]) -> JSONResponse:
        answers = [rng.choice("78") for _ in range(5)]
        return JSONResponse({"results": [{"id": "0", "answers": answers, "tool_calls_mean": 0.0}]})

    file = tmp_path / "proposal.json"
    async with service(guess) as (url, _):
        settings = {"url": url, "k": 5, "reward": definition, "repetition": 0.0}
        file.write_text(json.dumps(settings))
        rewards = await played(
            sources.load(f"proposal:{file}"),
            lambda: "<question>What is 3 + 4?</question> \\boxed{7}",
            200,
        )
    agree(rewards, [exact(guesses.count("7")) for guesses in product("78", repeat=5)])
