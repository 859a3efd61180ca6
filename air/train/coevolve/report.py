"""Writes the report of a co-evolution (training in rounds of a model that writes questions and a model that
answers them), `report.json` and `report.txt`, from the files in its folder."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from air import json_lines, paths
from air.rewards.proposals.agreement import Agreement, Definition, agreement, equal_answers, p_hat
from air.rewards.proposals.novelty import MOST_TEXTS, clusters
from air.rewards.proposals.proposer_reward import REWARDS, Proposal, Weights, malformed_reward
from air.train.coevolve.files import (
    ANSWERED,
    JSON_FILE,
    PROPOSER,
    ROWS,
    TEXT_FILE,
    read_answered,
)
from air.train.coevolve.plan import Plan
from air.train.config.coevolve_config import CoevolveConfig
from air.train.loop import run_folder
from air.train.matrix.intervals import interval

BINS = 10
"""The number of bars in the histogram of p, the share of equal answers to a question. Bar n (from 0) counts
the questions with n/10 ≤ p < (n + 1)/10; the last bar also counts p = 1."""
_MEAN_REWARD = re.compile(r"reward|train/agg/all/[^/]+/reward/mean")
"""Matches the name of the mean reward of a step in `metrics.jsonl`: that of the embedded engine or, with the
name of an agent, that of prime-rl (which has it only in some of its lines)."""


def report(plan: Plan) -> dict[str, Any]:
    """Returns the content of `report.json` as a dict. Its list `rounds` has an entry for each round whose
    proposals (questions) the executor has answered. `plan` has the settings of the co-evolution and the path
    of its folder."""
    rounds = []
    for number in range(plan.config.rounds + 1):
        if (plan.round_folder(number) / ANSWERED).is_file():
            rounds.append({"round": number, **_round(plan, number)})
    return {"v": 1, "name": plan.config.name, "seed": plan.config.seed, "rounds": rounds}


def _round(plan: Plan, number: int) -> dict[str, Any]:
    folder = plan.round_folder(number)
    lines = read_answered(folder)
    rows = sum(1 for _ in json_lines.read(folder / ROWS)) if (folder / ROWS).is_file() else None
    played = [one.success or 0.0 for one in plan.held_out(number, "").episodes()]
    accuracy = interval([played]) if played else None
    steps = folder / PROPOSER / run_folder.METRICS_FILE
    metrics = [row for _, row in json_lines.read(steps)] if steps.is_file() else []
    return {
        **of_proposals(lines, plan.config),
        "kept": rows,
        "kept_share": None if rows is None or not lines else rows / len(lines),
        "held_out": None
        if accuracy is None
        else {
            "accuracy": accuracy.value,
            "low": accuracy.low,
            "high": accuracy.high,
            "episodes": len(played),
        },
        "proposer_reward_by_step": [*_rewards_by_step(metrics).values()],
    }


def _rewards_by_step(metrics: Sequence[Mapping[str, Any]]) -> dict[int, Any]:
    """Returns the mean reward of each step of a training. `metrics` are the lines of its `metrics.jsonl`. If
    prime-rl was interrupted, a step can be there twice; the later line counts."""
    return {row["step"]: row[key] for row in metrics for key in row if _MEAN_REWARD.fullmatch(key)}


def of_proposals(lines: Sequence[Mapping[str, Any]], config: CoevolveConfig) -> dict[str, Any]:
    """Returns a dict with statistics of a round's proposals (questions that the proposer wrote). `lines` are
    the lines of `answered.jsonl`, which have the proposals and the executor's answers. p of a question is the
    share of its answers that equal the most frequent one; p̂ is p, or 0 in the cases that the settings
    describe.

    `histogram` (the numbers of questions in ten ranges of p) and `mean_p` leave out the questions whose p is
    unknown, because comparisons of their answers had no result. `frontier_share` is the share of all
    proposals, including malformed ones, whose p̂ is within the range for the executor's training. `rewards`
    has the mean reward of all proposals by each definition, `as_coded` and `published`. The mean reward of
    the well-formed proposals is estimated from the first 512 of them. Similarity to other proposals, which
    lowers rewards, is computed among these 512. A malformed
    proposal is similar to no other, and loses what it loses in the training (1/`payment.window`).
    """
    read = [line for line in lines if "malformed" not in line]
    found = [_agreement(line, config) for line in read]
    numbers = clusters([line["question"] for line in read[:MOST_TEXTS]])
    known = [one.share for one in found if one.decided]
    histogram = [0] * BINS
    for share in known:
        histogram[min(BINS - 1, int(share * BINS + 1e-9))] += 1
    least, most = config.generation.least, config.generation.most
    definition = config.generation.definition_with(config.payment)
    least_valid = config.payment.least_valid
    ps = [
        p_hat(one, line["proposed"], definition, least_valid)
        for one, line in zip(found, read, strict=True)
    ]
    frontier = sum(least <= p <= most for p in ps)
    return {
        "proposals": len(lines),
        "malformed": len(lines) - len(read),
        "histogram": histogram,
        "tool_calls": fmean(line["tool_calls"] for line in read) if read else None,
        "unknown": len(found) - len(known),
        "mean_p": fmean(known) if known else None,
        "frontier_share": frontier / len(lines) if lines else None,
        "different": len({line["question"] for line in read}),
        "clusters": len(set(numbers)),
        "novelty": len(set(numbers)) / len(numbers) if numbers else None,
        "rewards": {
            name: _mean_reward(name, lines, numbers, config) for name in ("as_coded", "published")
        },
    }


def _agreement(line: Mapping[str, Any], config: CoevolveConfig) -> Agreement:
    equal = equal_answers(config.answers.equality, line["question"])
    return agreement(line["answers"], equal)


def _mean_reward(
    name: Definition,
    lines: Sequence[Mapping[str, Any]],
    numbers: Sequence[int],
    config: CoevolveConfig,
) -> float | None:
    """Estimates the mean reward of a round's proposals (questions that the proposer wrote) by the definition
    `name`. `lines` are the lines of `answered.jsonl`, one for each proposal. Returns None if there is no
    line.

    `numbers` has one cluster number for each of the first well-formed proposals, in their order. Similar
    proposals have the same number, and a large cluster lowers their rewards. The mean reward of these
    proposals stands for that of all well-formed ones.
    """
    payment = config.payment
    weights = Weights(payment.uncertainty, payment.tool, payment.repetition)
    malformed = malformed_reward(name, payment.window, weights)
    read = [line for line in lines if "malformed" not in line]
    rewards = []
    for line, own in zip(read, numbers, strict=False):
        found = _agreement(line, config)
        p = p_hat(found, line["proposed"], name, payment.least_valid)
        share = numbers.count(own) / len(numbers)
        calls = line["tool_calls"] if found.suffices(payment.least_valid) else 0.0
        proposal = Proposal(True, p, share, executor_calls=calls)
        rewards.append(REWARDS[name](proposal, weights))
    if not rewards:
        return malformed if lines else None
    share = len(read) / len(lines)
    return share * fmean(rewards) + (1 - share) * malformed


def write(plan: Plan) -> dict[str, Any]:
    """Writes `report.json` and `report.txt` into the co-evolution's folder, and returns the content of
    `report.json`."""
    content = report(plan)
    paths.write_whole(plan.folder / JSON_FILE, f"{json.dumps(content, indent=1)}\n".encode())
    paths.write_whole(plan.folder / TEXT_FILE, f"{text(content)}\n".encode())
    return content


_COLUMNS = (
    *("round", "proposals", "malformed", "frontier", "kept", "mean p", "novelty", "calls"),
    *("as coded", "published", "held out", "histogram of p (0 … 1)"),
)


def text(content: Mapping[str, Any]) -> str:
    """Returns the report as a plain-text table, with one line for each round. `content` is the content of
    `report.json`."""
    rows = [_COLUMNS, *(_cells(one) for one in content["rounds"])]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    held_out = one["held_out"]
    accuracy = "–"
    if held_out is not None:
        accuracy = f"{held_out['accuracy']:.3f}"
        if held_out["low"] is not None:
            accuracy += f" [{held_out['low']:.2f}, {held_out['high']:.2f}]"
    return (
        str(one["round"]),
        str(one["proposals"]),
        str(one["malformed"]),
        _number(one["frontier_share"]),
        _number(one["kept_share"]),
        _number(one["mean_p"]),
        _number(one["novelty"]),
        _number(one["tool_calls"]),
        _number(one["rewards"]["as_coded"]),
        _number(one["rewards"]["published"]),
        accuracy,
        " ".join(map(str, one["histogram"])),
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
