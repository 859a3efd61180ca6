"""Answers that try to earn a reward, or to hang the checker: `tests/data/answers.jsonl`, one a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from air.rewards.answers import CHECKERS, check

FILE = Path(__file__).parents[3] / "data" / "answers.jsonl"
ROWS = [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]
WITHOUT_ROWS = {"code_tests", "judge"}
"""Checkers whose tests need a box or an endpoint."""


@pytest.mark.parametrize("number", range(len(ROWS)), ids=lambda n: f"line{n + 1}")
async def test_the_verdict_is_as_expected(number: int) -> None:
    row = dict(ROWS[number])
    name, reward, reason = row.pop("checker"), row.pop("reward"), row.pop("reason")
    verdict = await check(name)(**row)
    assert verdict.reward == pytest.approx(reward, abs=1e-12), reason


def test_every_checker_has_answers_and_every_answer_a_reason() -> None:
    assert {row["checker"] for row in ROWS} == set(CHECKERS) - WITHOUT_ROWS
    assert all(row["reason"] for row in ROWS)
    assert len(ROWS) >= 200
