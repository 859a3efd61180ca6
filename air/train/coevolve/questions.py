"""What is recorded of a round's proposals, and which of them the executor is trained on.

A line of `answered.jsonl` is one sampled proposal:

    {"question", "proposed", "answers", "tool_calls"}     or {"malformed": why}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from air.rewards.proposals.agreement import Agreement, agreement, p_hat
from air.rewards.proposals.novelty import words
from air.train.config.coevolve_config import GenerationConfig, PaymentConfig

Line = Mapping[str, Any]


def p_of(found: Agreement, line: Line, definition: Any, payment: PaymentConfig) -> float:
    """Returns p̂ of an answered proposal; 0 if too few of its answers can be read."""
    if found.valid < payment.least_valid * found.k:
        return 0.0
    return p_hat(found, line["proposed"], definition)


def kept(
    lines: Sequence[Line],
    config: GenerationConfig,
    payment: PaymentConfig,
    held_out: Set[tuple[str, ...]],
) -> list[dict[str, Any]]:
    """Returns the rows on which the executor is trained: of the proposals whose p̂ is in range, each question
    once, with the majority's answer as its label. Questions with the words of a held-out one are left out."""
    rows: list[dict[str, Any]] = []
    seen = set(held_out)
    for line in lines:
        if "malformed" in line or words(line["question"]) in seen:
            continue
        found = agreement(line["answers"])
        p = p_of(found, line, config.definition, payment)
        if found.majority is None or not config.least <= p <= config.most:
            continue
        seen.add(words(line["question"]))
        rows.append({"question": line["question"], "answer": found.majority, "p_hat": p})
    return rows
