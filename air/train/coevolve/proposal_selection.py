"""Selects the proposals on which the executor of a co-evolution (the model that answers questions) is trained
in a round: those to which its answers agree neither too little nor too much. A proposal is a question that
the other model, the proposer, wrote.

The proposals are read from `answered.jsonl`, with one sampled proposal in each line. `proposed` is the
proposer's own answer, `answers` are the executor's answers, and `tool_calls` is the mean number of tool calls
in an answer:

    {"question", "proposed", "answers", "tool_calls"}     or {"malformed": reason, "text"}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from air.rewards.proposals.agreement import Equality, agreement, equal_answers, p_hat
from air.rewards.proposals.novelty import words
from air.train.config.coevolve_config import GenerationConfig, PaymentConfig

Line = Mapping[str, Any]


def select_rows(
    lines: Sequence[Line],
    config: GenerationConfig,
    payment: PaymentConfig,
    held_out: Set[tuple[str, ...]],
    equality: Equality,
) -> list[dict[str, Any]]:
    """Returns the rows on which the executor (the model that answers questions) is trained: dicts with the
    keys `question`, `answer` (the most frequent answer, the label) and `p_hat`. `lines` are the lines of
    `answered.jsonl`; malformed ones are left out.

    A question is selected if its p̂ is between `config.least` and `config.most`. p̂ is the share of the
    executor's answers that equal the most frequent answer, or 0 in the cases that `config.definition` (if it
    is None, `payment.reward`) and `payment.least_valid` describe. Of questions with the same words, only the
    first that qualifies is used. Questions whose words are an element of `held_out`, the words of the
    held-out questions, are left out. At most `config.rows` rows are returned, the first ones. `equality` is
    the rule by which two answers are equal. Raises InfrastructureError if a comparison of answers fails.
    """
    rows: list[dict[str, Any]] = []
    seen = set(held_out)
    definition = config.definition_with(payment)
    for line in lines:
        if "malformed" in line or words(line["question"]) in seen:
            continue
        found = agreement(line["answers"], equal_answers(equality, line["question"]))
        p = p_hat(found, line["proposed"], definition, payment.least_valid)
        if found.majority is None or not config.least <= p <= config.most:
            continue
        seen.add(words(line["question"]))
        rows.append({"question": line["question"], "answer": found.majority, "p_hat": p})
    return rows[: config.rows]
