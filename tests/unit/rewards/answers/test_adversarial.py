"""Answers that try to earn a reward, or to hang the checker: `tests/data/answers.jsonl`, one a line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from air.rewards.answers import CHECKERS, check, mathematics

FILE = Path(__file__).parents[3] / "data" / "answers.jsonl"
ROWS = [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]
WITHOUT_ROWS = {"code_tests", "judge"}
"""Checkers whose tests need a box or an endpoint."""
CATEGORIES = ("unicode digits", "nested boxes", "units", "intervals", "refusals", "thoughts")
"""Kinds of answers of which the file must have many. The other categories only say what a row is about."""


@pytest.mark.parametrize("number", range(len(ROWS)), ids=lambda n: f"line{n + 1}")
async def test_the_verdict_is_as_expected(number: int) -> None:
    row = {key: value for key, value in ROWS[number].items() if key != "category"}
    name, reward, reason = row.pop("checker"), row.pop("reward"), row.pop("reason")
    verdict = await check(name)(**row)
    assert verdict.reward == pytest.approx(reward, abs=1e-12), reason


def test_values_never_show_that_equal_answers_differ() -> None:
    """The clusters of answers rely on it."""
    pairs = {
        (row["answer"], row["prediction"])
        for row in ROWS
        if row["checker"] == "math_equal" and row["reward"] == 1 and isinstance(row["answer"], str)
    }
    found = [(mathematics.values(one), mathematics.values(other)) for one, other in sorted(pairs)]
    assert sum(None not in (one.numbers, other.numbers) for one, other in found) >= 40
    assert not any(one.differ(other) for one, other in found)


def test_every_checker_has_answers_and_every_answer_a_reason() -> None:
    assert {row["checker"] for row in ROWS} == set(CHECKERS) - WITHOUT_ROWS
    assert all(row["reason"] for row in ROWS)
    assert len(ROWS) >= 200


def test_every_answer_has_a_category_and_the_main_ones_have_ten_answers() -> None:
    assert all(row["category"] for row in ROWS)
    counts = Counter(row["category"] for row in ROWS)
    assert {name: counts[name] for name in CATEGORIES if counts[name] < 10} == {}
