"""Runs program.txt on hidden inputs and grades it by its mean cost, where every answer is right.

The program is data: only the machine here carries it out.
"""

import json
import sys
from pathlib import Path
from typing import Any

from grading import DATA, BadArtefact, read_bytes, run
from machine import BadProgram, parse
from machine import run as carry_out


def grade(artefact: Path, split: str, seed: int) -> dict[str, float]:
    inputs = json.loads((DATA / f"{split}.json").read_text())
    text = read_bytes(artefact / "program.txt", 20_000)
    try:
        code = parse(text.decode("ascii"))
    except (BadProgram, UnicodeDecodeError) as error:
        reason = error if isinstance(error, BadProgram) else "it is no ASCII text"
        raise BadArtefact(f"program.txt: {reason}") from None
    costs = [cost(code, numbers) for numbers in inputs]
    return {"cost": sum(costs) / len(costs), "largest_cost": max(costs)}


def cost(code: list[Any], numbers: list[int]) -> int:
    """The cost of one input. What is wrong with it is not told: a program could say so what it read."""
    try:
        answer, cost = carry_out(code, numbers)
    except BadProgram:
        raise BadArtefact("program.txt: it fails on a hidden input") from None
    if answer != largest_sum(numbers):
        raise BadArtefact("program.txt: its answer is wrong for a hidden input")
    return cost


def largest_sum(numbers: list[int]) -> int:
    """The largest sum of one or more neighbours."""
    best = here = numbers[0]
    for number in numbers[1:]:
        here = max(here, 0) + number
        best = max(best, here)
    return best


if __name__ == "__main__":
    sys.exit(run(grade))
