"""Which proposals are kept, and what the report says of a round, on proposals worked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from air.rewards.proposals.agreement import Equality
from air.rewards.proposals.novelty import words
from air.train.coevolve.proposal_selection import select_rows
from air.train.coevolve.report import of_proposals, text
from air.train.config.coevolve_config import CoevolveConfig, GenerationConfig, PaymentConfig


def line(question: str, proposed: str, *answers: str | None, calls: float = 0.0) -> dict[str, Any]:
    return {
        "question": question,
        "proposed": proposed,
        "answers": list(answers),
        "tool_calls": calls,
    }


LINES = [
    line("What is 3 + 4?", "7", "7", "7.0", "8", None),  # p = 0.5
    line("what is 3 + 4 ?", "7", "7", "7", "8", "9"),  # the same words
    line("Name the largest of 3, 9 and 5.", "9", "9", "9", "9", "9"),  # p = 1
    line(
        "Is a rope of two metres long?", "5", "6", "6", "6", "5"
    ),  # p = 0.75, the proposer disagrees
    line("Who knows?", "1", "1", None, None, None),  # too few answers
    {"malformed": "the question is empty", "text": ""},
]


PUBLISHED = PaymentConfig(reward="published")


def test_questions_in_range_are_kept_once_with_the_majoritys_answer() -> None:
    rows = select_rows(LINES, GenerationConfig(), PUBLISHED, set(), "math")
    assert rows == [
        {"question": "What is 3 + 4?", "answer": "7", "p_hat": 0.5},
        {"question": "Is a rope of two metres long?", "answer": "6", "p_hat": 0.75},
    ]
    unanimous = select_rows(LINES, GenerationConfig(least=0.9, most=1.0), PUBLISHED, set(), "math")
    assert [row["answer"] for row in unanimous] == ["9"]
    all_valid = PaymentConfig(reward="published", least_valid=0.0)
    few = select_rows(LINES, GenerationConfig(least=0.2), all_valid, set(), "math")
    assert few[-1] == {"question": "Who knows?", "answer": "1", "p_hat": 0.25}


def test_the_filter_has_the_rewards_definition_unless_it_names_its_own() -> None:
    coded = PaymentConfig(reward="as_coded")
    for generation, payment, answers in (
        (GenerationConfig(), coded, ["7"]),
        (GenerationConfig(definition="as_coded"), PUBLISHED, ["7"]),
        (GenerationConfig(definition="published"), coded, ["7", "6"]),
    ):
        rows = select_rows(LINES, generation, payment, set(), "math")
        assert [row["answer"] for row in rows] == answers


def test_answers_are_compared_by_the_rule_of_the_settings() -> None:
    lines = [line("What is x + x?", "2x", "x*2", "2x", "x", None)]
    cases: list[tuple[Equality, list[str], int]] = [("math", ["2x"], 5), ("forms", [], 2)]
    for equality, answers, histogram_bin in cases:
        rows = select_rows(lines, GenerationConfig(), PaymentConfig(), set(), equality)
        assert [row["answer"] for row in rows] == answers
        found = of_proposals(lines, config(answers={"equality": equality}))
        assert found["histogram"][histogram_bin] == 1
        assert found["frontier_share"] == len(answers)


def test_held_out_questions_are_never_trained_on() -> None:
    held_out = {words("WHAT IS 3+4?")}
    rows = select_rows(LINES, GenerationConfig(), PUBLISHED, held_out, "math")
    assert [row["question"] for row in rows] == ["Is a rope of two metres long?"]


def test_no_more_rows_than_the_cap_are_kept() -> None:
    """The cap counts the kept rows, not the proposals."""
    for rows, kept in ((1, ["7"]), (2, ["7", "6"]), (9, ["7", "6"])):
        chosen = select_rows(LINES, GenerationConfig(rows=rows), PUBLISHED, set(), "math")
        assert [row["answer"] for row in chosen] == kept


def config(**changes: Any) -> CoevolveConfig:
    side = {"model": "m", "run_files": ["configs/agent0/small_executor.toml"]}
    return CoevolveConfig.model_validate(
        {"proposer": side, "executor": side, "held_out": {"data": Path("x.jsonl")}, **changes}
    )


def test_the_report_of_a_round_by_hand() -> None:
    assert of_proposals(LINES, config())["frontier_share"] == pytest.approx(2 / 6)
    found = of_proposals(LINES, config(generation={"definition": "published"}))
    assert found["proposals"] == 6
    assert found["malformed"] == 1
    #                            p = .25     .5, .5    .75      1
    assert found["histogram"] == [0, 0, 1, 0, 0, 2, 0, 1, 0, 1]
    assert found["mean_p"] == pytest.approx(0.6)
    assert found["frontier_share"] == pytest.approx(3 / 6)
    assert found["different"] == 5
    assert found["clusters"] == 4
    assert found["novelty"] == pytest.approx(4 / 5)
    # .5 − 2/5, twice; 0 − 1/5, three times; −1 − 1/128, as the window has 128 proposals.
    expected = (0.1 + 0.1 - 0.2 - 0.2 - 0.2 - 1 - 1 / 128) / 6
    assert found["rewards"]["as_coded"] == pytest.approx(expected)
    # 1 − 2/5, twice; 0 − 1/5; .5 − 1/5; 0 − 1/5; 0.
    assert found["rewards"]["published"] == pytest.approx((0.6 + 0.6 + 0 + 0.3 + 0 + 0) / 6)


def test_the_report_leaves_out_a_p_that_is_unknown() -> None:
    """Whether such large powers are equal is not decided, so p may be 0.5 or 1."""
    unknown = line("What is large?", "1", "10^{10000}", "100^{5000}")
    found = of_proposals([unknown], config())
    assert (sum(found["histogram"]), found["mean_p"], found["unknown"]) == (0, None, 1)
    found = of_proposals([unknown, *LINES], config())
    assert (sum(found["histogram"]), found["mean_p"]) == (5, pytest.approx(0.6))


def test_malformed_proposals_count_by_their_share_of_all_proposals() -> None:
    """Only the rewards of the first 512 well-formed proposals are computed. Half of all are malformed."""
    same = line("What is 3 + 4?", "7", "7", "7.0", "8", None)  # p = 0.5, and a share of 1
    half = [same] * 1024 + [LINES[-1]] * 1024
    rewards = of_proposals(half, config(payment={"repetition": 0.25}))["rewards"]
    assert rewards["as_coded"] == pytest.approx((0.5 - 0.25 - 1 - 0.25 / 128) / 2)
    assert rewards["published"] == pytest.approx((1 - 0.25 + 0) / 2)


def test_the_report_pays_no_calls_to_a_question_that_hardly_anybody_can_answer() -> None:
    """As the proposer's training does."""
    hard = line("Who knows?", "1", "1", None, None, None, calls=4.0)  # p = 0.25
    free = {"repetition": 0.0}
    assert of_proposals([hard], config(payment=free))["rewards"]["published"] == 0.0
    found = of_proposals([hard], config(payment={**free, "least_valid": 0.0}))
    assert found["rewards"]["published"] == pytest.approx(0.5 + 0.2)


def test_a_round_without_a_proposal_that_can_be_read() -> None:
    found = of_proposals([LINES[-1]], config())
    assert (found["mean_p"], found["novelty"], found["frontier_share"]) == (None, None, 0.0)
    assert found["rewards"] == {"as_coded": -1 - 1 / 128, "published": 0.0}
    content = {
        "rounds": [{"round": 0, **found, "kept": 0, "kept_share": 0.0, "held_out": None}],
    }
    assert text(content).splitlines()[1].split()[:6] == ["0", "1", "1", "0.000", "0.000", "–"]


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="least is larger than most"):
        GenerationConfig(least=0.9, most=0.1)
    with pytest.raises(ValueError, match="is not a name in the folder of runs"):
        config(name="../x")
