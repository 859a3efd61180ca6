"""Runs program.txt on hidden inputs and grades it by its mean cost, where every answer is right.

The program is data: only the machine here carries it out. Exit 0: --out holds {"metrics": {"cost": ...}}.
Exit 3: it holds {"message": ...}, for the agent.
"""

import argparse
import json
import sys
from pathlib import Path

from machine import BadProgram, parse, run

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--artefact", type=Path, required=True)
    parser.add_argument("--split", choices=("val", "test"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    inputs = json.loads((HERE / "data" / f"{args.split}.json").read_text())
    try:
        costs = graded((args.artefact / "program.txt").read_bytes(), inputs)
    except BadProgram as error:
        args.out.write_text(json.dumps({"message": f"program.txt: {error}"}))
        return 3
    metrics = {"cost": sum(costs) / len(costs), "largest_cost": max(costs)}
    args.out.write_text(json.dumps({"metrics": metrics}))
    return 0


def graded(text: bytes, inputs: list[list[int]]) -> list[int]:
    """The cost of every input.

    Raises:
        BadProgram: it is no program, made a fault, or gave a wrong answer.
    """
    if len(text) > 20_000:
        raise BadProgram("larger than 20 kB")
    try:
        code = parse(text.decode("ascii"))
    except UnicodeDecodeError:
        raise BadProgram("it is no ASCII text") from None
    outcomes = [run(code, numbers) for numbers in inputs]
    wrong = sum(
        answer != largest_sum(numbers)
        for numbers, (answer, _) in zip(inputs, outcomes, strict=True)
    )
    if wrong:
        raise BadProgram(f"its answer is wrong for {wrong} of {len(inputs)} inputs")
    return [cost for _, cost in outcomes]


def largest_sum(numbers: list[int]) -> int:
    """The largest sum of one or more neighbours."""
    best = here = numbers[0]
    for number in numbers[1:]:
        here = max(here, 0) + number
        best = max(best, here)
    return best


if __name__ == "__main__":
    sys.exit(main())
