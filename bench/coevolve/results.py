"""The results of `make coevolve`: measures of each round, a table, and a verdict on three claims.

1. Training the proposer makes more problems useful: the share of proposals in range (0.3 ≤ p̂ ≤ 0.8, where p̂
   is the agreement of the executor's answers) rises from round 0 to the last round.
2. The executor learns more from them: its accuracy on held-out problems rises more than in the arm `random`
   with the same seed.
3. Without a penalty for repetitions, the proposer collapses to copies: in some round of `copies`, both the
   share of different questions and the novelty are less than half of their smallest values in the rounds of
   `free`, with each seed.

A mean over seeds counts as more than 0 if it exceeds two standard errors. A claim whose arms or rounds are
missing, or that has fewer than two seeds, is not tested.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from air import json_lines, paths
from air.rewards.proposals.agreement import same
from air.rewards.proposals.novelty import MOST_TEXTS, clusters
from air.train.coevolve import report
from air.train.coevolve.files import ANSWERED, ROWS
from air.train.coevolve.plan import Plan
from air.train.config.coevolve_config import CoevolveConfig, GenerationConfig
from bench.coevolve.problems import parsed
from bench.learning.seeds import mean_and_error

Line = Mapping[str, Any]
Result = Mapping[str, Any]
"""One arm with one seed: `arm`, `seed`, `finished`, and `rounds`, the measures of each round."""
COLUMNS = {
    "held_out": "held out",
    "in_range": "in range",
    "kept": "kept",
    "right_labels": "right labels",
    "grammatical": "grammatical",
    "different": "different",
    "novelty": "novelty",
    "largest_cluster": "largest cluster",
}


def result(planned: Plan, arm: str, seed: int) -> Result:
    """Returns the measures of all rounds that a co-evolution has finished."""
    rounds = []
    for one in report.report(planned)["rounds"]:
        folder = planned.round_folder(one["round"])
        accuracy = one["held_out"]
        if accuracy is not None and accuracy["episodes"] == planned.config.held_out.episodes:
            lines, rows = _lines(folder / ANSWERED), _lines(folder / ROWS)
            base = {"round": one["round"], "held_out": accuracy["accuracy"]}
            rounds.append(base | measures(lines, rows, planned.config))
    finished = len(rounds) == planned.config.rounds + 1
    return {"arm": arm, "seed": seed, "finished": finished, "rounds": rounds}


def measures(
    lines: Sequence[Line], rows: Sequence[Line], config: CoevolveConfig
) -> dict[str, float | None]:
    """Returns measures of a round's answered proposals `lines` and of the rows that were kept.

    `in_range` is the share of all proposals with p̂ from 0.3 to 0.8, in every arm. `grammatical` is the share
    of all proposals that ask a problem as the demonstrations do. `different` is the share of different
    questions among all proposals. `novelty` is the number of clusters of similar questions divided by the
    number of questions, and `largest_cluster` the share of the largest cluster, both among the first
    well-formed questions. `right_labels` is the share of kept rows whose label is the right answer. A
    question that is not grammatical has no right answer."""
    usual = config.model_copy(update={"generation": GenerationConfig()})
    found = report.of_proposals(lines, usual)
    asked = [line["question"] for line in lines if "malformed" not in line]
    sizes = Counter(clusters(asked[:MOST_TEXTS])).values()
    right = [
        (problem := parsed(row["question"])) is not None and same(row["answer"], problem.answer)
        for row in rows
    ]
    return {
        "in_range": found["frontier_share"],
        "kept": len(rows),
        "right_labels": sum(right) / len(right) if right else None,
        "grammatical": sum(parsed(question) is not None for question in asked) / len(lines),
        "different": found["different"] / len(lines),
        "novelty": found["novelty"],
        "largest_cluster": max(sizes) / sum(sizes) if sizes else None,
    }


def write(file: Path, results: Sequence[Result]) -> None:
    """Writes the results and the conclusions to a JSON file, and prints both."""
    claims = verdict(results)
    content = {"v": 1, "results": results, "claims": claims}
    paths.write_whole(file, f"{json.dumps(content, indent=1)}\n".encode())
    table = Table()
    for column in ("arm", "seed", "round", *COLUMNS.values()):
        table.add_column(column)
    for one in results:
        for each in one["rounds"]:
            cells = [_cell(each[name]) for name in COLUMNS]
            table.add_row(one["arm"], str(one["seed"]), str(each["round"]), *cells)
    Console(width=140).print(table)
    for claim in claims:
        shown = {True: "shown", False: "NOT SHOWN", None: "not tested"}[claim["shown"]]
        print(f"{claim['claim']}: {claim['numbers']}: {shown}")


def verdict(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Returns the three claims, each with its numbers as text, and with whether it is shown (None: not
    tested)."""
    arms: dict[str, dict[int, Result]] = {}
    for one in results:
        if one["finished"] and len(one["rounds"]) > 1:
            arms.setdefault(one["arm"], {})[one["seed"]] = one
    real = arms.get("coevolve", {})
    control = arms.get("random", {})
    free, copies = arms.get("free", {}), arms.get("copies", {})
    rises = {seed: _gain(one, "in_range") for seed, one in real.items()}
    more = {
        seed: _gain(real[seed], "held_out") - _gain(control[seed], "held_out")
        for seed in real.keys() & control.keys()
    }
    ratios = {seed: _collapse(copies[seed], free[seed]) for seed in free.keys() & copies.keys()}
    half = all(ratio < 0.5 for ratio in ratios.values())
    return [
        _mean_claim("the share of proposals in range rises", rises),
        _mean_claim("the held-out accuracy rises more than in `random`", more),
        {
            "claim": "without the penalty for repetitions, the proposer collapses to copies",
            "numbers": _by_seed(ratios, "{:.2f}"),
            "shown": half if len(ratios) > 1 else None,
        },
    ]


def exit_code(file: Path) -> int:
    """Returns 1 if a claim in the JSON file was tested and is not shown, else 0."""
    return int(any(claim["shown"] is False for claim in json.loads(file.read_bytes())["claims"]))


def _mean_claim(claim: str, values: Mapping[int, float]) -> dict[str, Any]:
    """Returns a claim that a measure, with one value for each seed, has a mean above 0."""
    if len(values) < 2:
        return {"claim": claim, "numbers": _by_seed(values, "{:+.3f}"), "shown": None}
    mean, error = mean_and_error(list(values.values()))
    numbers = f"{mean:+.3f} ± {error:.3f} ({_by_seed(values, '{:+.3f}')})"
    return {"claim": claim, "numbers": numbers, "shown": mean > 2 * error}


def _by_seed(values: Mapping[int, float], form: str) -> str:
    return ", ".join(form.format(values[seed]) for seed in sorted(values)) or "no values"


def _gain(one: Result, name: str) -> float:
    return float(one["rounds"][-1][name] - one["rounds"][0][name])


def _collapse(copies: Result, free: Result) -> float:
    """Returns how much `copies` repeats itself in its worst round, compared with `free`: the larger of two
    ratios. They divide the share of different questions, and the novelty, in one round of `copies` by the
    smallest value in the rounds of `free`.

    Round 0 and rounds without a well-formed question do not count. The last round alone would not do: a
    proposer that has collapsed to one question leaves it when the executor has learnt to answer it."""
    rounds = [
        [each for each in arm["rounds"][1:] if each["novelty"] is not None]
        for arm in (copies, free)
    ]
    names = ("different", "novelty")
    least = {name: min((each[name] for each in rounds[1]), default=0.0) for name in names}
    if not rounds[0] or not all(least.values()):
        return 1.0
    return min(float(max(each[name] / least[name] for name in names)) for each in rounds[0])


def _lines(file: Path) -> list[Line]:
    return [value for _, value in json_lines.read(file, complete=True)] if file.is_file() else []


def _cell(value: float | None) -> str:
    return "–" if value is None else str(value) if isinstance(value, int) else f"{value:.3f}"
