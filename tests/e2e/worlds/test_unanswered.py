"""An agent cannot escape from the reward of a bad answer by giving none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from air.testing import replies
from tests.e2e.conftest import played_by
from tests.e2e.worlds.test_worlds import config, only

CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "1 + 1"}}</tool_call>'
WAYS = {
    "a wrong answer": (CALL, "\\boxed{3}"),
    "no turn is left": (CALL, CALL),
    "no reply is an action": ("", ""),
    "the last reply is no action": (CALL, ""),
}


@pytest.mark.parametrize("way", WAYS)
async def test_no_answer_earns_the_lowest_reward(way: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": "2"}) + "\n")
    task = f"rows:{tmp_path}/rows.jsonl#checker=agent0&tools=calculator&turns=2&split=all"
    async with played_by(
        replies(*WAYS[way]), config(task, record_dir=tmp_path / "records")
    ) as play:
        episode = await play()
    (trace,) = episode.traces
    assert episode.ok, trace.errors
    assert trace.reward == -1.0
    end = only(tmp_path / "records").end
    assert end is not None
    assert end.terms is not None
    answered = way == "a wrong answer"
    assert (end.terms["world"], end.terms["unanswered"]) == (
        (-1.0, 0.0) if answered else (0.0, -1.0)
    )


@pytest.mark.parametrize("reply", ["", "\\boxed{3}"])
async def test_a_posed_question_without_an_answer_is_a_wrong_one(
    reply: str, tmp_path: Path
) -> None:
    (tmp_path / "posed").mkdir()
    file = tmp_path / "posed" / "rows.jsonl"
    file.write_text(json.dumps({"question": "1 + 1?", "answer": "2"}) + "\n")
    async with played_by(replies(reply), config(f"posed:{file}")) as play:
        episode = await play()
    assert episode.traces[0].reward == -1.0


SEVEN = "<think>Seven.</think><answer>7</answer>"
TRIES = {
    # turns of the run, replies, and the terms `world`, `unanswered` and `format`
    "a wrong try": (1, [SEVEN], -0.1, 0.0, 0.0),
    "no action": (1, [""], 0.0, -0.1, -0.1),
    "two wrong tries": (2, [SEVEN], -0.2, 0.0, 0.0),
    "a wrong try, then no action": (2, [SEVEN, ""], -0.1, 0.0, -0.1),
    "no action, then a wrong try": (2, ["", SEVEN], -0.1, 0.0, -0.1),
    "no action twice": (2, [""], 0.0, -0.1, -0.2),
    "all wrong tries of the world": (None, [SEVEN], -0.5, 0.0, 0.0),
}


@pytest.mark.parametrize("way", TRIES)
async def test_a_wrong_try_counts_towards_what_no_answer_costs(way: str) -> None:
    """The world allows five tries, and the run may allow fewer turns."""
    turns, said, world, unanswered, form = TRIES[way]
    async with played_by(
        replies(*said, *said[-1:] * 4), config("question:gsm8k5", max_turns=turns)
    ) as play:
        episode = await play()
    assert episode.ok, episode.errors
    (trace,) = episode.traces
    assert {name: term.value for name, term in trace.rewards.items()} == pytest.approx(
        {"world": world, "unanswered": unanswered, "format": form, "time": 0.0}
    )


async def test_a_checker_of_the_user_that_fails_ends_the_run(tmp_path: Path) -> None:
    """Else a reply that makes the checker fail would be no worse than no episode."""
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": "2"}) + "\n")
    checker = tmp_path / "mine.py"
    checker.write_text("def check(prediction, answer):\n    return float(prediction) - 2\n")
    task = f"rows:{tmp_path}/rows.jsonl#checker={checker}:check&tools=calculator&split=all"
    settings = config(task, record_dir=tmp_path / "records")
    async with played_by(replies("\\boxed{two}"), settings) as play:
        assert not (await play()).ok
        again = await play()
    assert not again.ok
    assert "checker" in only_error(again)


def only_error(episode: Any) -> str:
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    return " ".join(str(error) for error in errors)
