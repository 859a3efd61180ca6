"""Plays strategy.py against a league of generals and grades it by the fields that it wins over them."""

import json
import sys
from pathlib import Path
from typing import Any

from grading import DATA, BadArtefact, described, run
from opponents import FIELDS, SOLDIERS, Allocation, General, league
from runner import Runner

BATTLES = 40


def grade(artefact: Path, split: str, seed: int) -> dict[str, float]:
    hidden = seed + json.loads((DATA / "seeds.json").read_text())[split]
    with Runner(artefact / "strategy.py", "allocate", seed=seed) as runner:
        margins = [play(runner, general) for general in league(hidden)]
    return {"margin": sum(margins) / len(margins), "worst_match": min(margins)}


def play(runner: Runner, general: General) -> float:
    """One match; the mean of (fields won - fields lost) / fields."""
    ours: list[Allocation] = []
    theirs: list[Allocation] = []
    total = 0
    runner.load()
    for _ in range(BATTLES):
        reply = general(theirs, ours)
        given = checked(runner.call(ours, theirs))
        total += sum((a > b) - (a < b) for a, b in zip(given, reply, strict=True))
        ours.append(given)
        theirs.append(reply)
    return total / (BATTLES * FIELDS)


def checked(given: Any) -> Allocation:
    """The allocation, if it is one."""
    if not isinstance(given, list) or len(given) != FIELDS:
        raise BadArtefact(
            f"allocate returned {described(given)}, expected a list of {FIELDS} counts"
        )
    if any(type(count) is not int or not 0 <= count <= SOLDIERS for count in given):
        raise BadArtefact(f"allocate returned counts that are not integers from 0 to {SOLDIERS}")
    if sum(given) != SOLDIERS:
        raise BadArtefact(f"allocate sent more or fewer soldiers than {SOLDIERS}")
    return given


if __name__ == "__main__":
    sys.exit(run(grade))
