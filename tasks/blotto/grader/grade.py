"""Plays strategy.py against a league of generals and grades it by the fields that it wins over them.

Exit 0: --out holds {"metrics": {"margin": ...}}. Exit 3: it holds {"message": ...}, for the agent, and
`"remember": false` where the same file might do better on a faster machine.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from opponents import FIELDS, SOLDIERS, Allocation, General, league
from sandbox import BadProgram, Program

HERE = Path(__file__).resolve().parent
BATTLES = 40


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--artefact", type=Path, required=True)
    parser.add_argument("--split", choices=("val", "test"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if os.environ.get("AIR_SECOND_UID"):
        HERE.chmod(0o700)  # the strategy's user must not read its opponents
    seed = json.loads((HERE / "data" / "seeds.json").read_text())[args.split] + args.seed
    try:
        with Program(args.artefact / "strategy.py", "allocate", seed % 1_000_000) as program:
            margins = [play(program, general) for general in league(seed)]
    except BadProgram as error:
        args.out.write_text(json.dumps({"message": str(error), "remember": error.remember}))
        return 3
    metrics = {"margin": sum(margins) / len(margins), "worst_match": min(margins)}
    args.out.write_text(json.dumps({"metrics": metrics}))
    return 0


def play(program: Program, general: General) -> float:
    """One match; the mean of (fields won - fields lost) / fields."""
    ours: list[Allocation] = []
    theirs: list[Allocation] = []
    total = 0
    for battle in range(BATTLES):
        reply = general(theirs, ours)
        given = checked(program.call(ours, theirs, afresh=battle == 0))
        total += sum((a > b) - (a < b) for a, b in zip(given, reply, strict=True))
        ours.append(given)
        theirs.append(reply)
    return total / (BATTLES * FIELDS)


def checked(given: Any) -> Allocation:
    """The allocation, where it is one."""
    if not isinstance(given, list) or len(given) != FIELDS:
        raise BadProgram(f"allocate returned {given!r:.40}, expected a list of {FIELDS} counts")
    if any(type(count) is not int or not 0 <= count <= SOLDIERS for count in given):
        raise BadProgram(f"allocate returned {given!r:.60}, expected integers 0 to {SOLDIERS}")
    if sum(given) != SOLDIERS:
        raise BadProgram(f"allocate sent {sum(given)} soldiers, expected {SOLDIERS}")
    return given


if __name__ == "__main__":
    sys.exit(main())
