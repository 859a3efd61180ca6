"""Searches hidden formulas with the heuristic of heuristic.py and grades it by its mean decisions.

Exit 0: --out holds {"metrics": {"decisions": ...}}. Exit 3: it holds {"message": ...}, for the agent, and
`"remember": false` where the same file might do better on a faster machine.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from formulas import draw
from sandbox import BadProgram, Program
from search import Row, Search

HERE = Path(__file__).resolve().parent
MOST = 200
"""Decisions after which a search is given up; it then counts as many."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--artefact", type=Path, required=True)
    parser.add_argument("--split", choices=("val", "test"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if os.environ.get("AIR_SECOND_UID"):
        HERE.chmod(0o700)  # the heuristic's user must not read the seeds of the formulas
    seed = json.loads((HERE / "data" / "seeds.json").read_text())[args.split]
    try:
        with Program(args.artefact / "heuristic.py", "choose", args.seed) as program:
            searches = [search(program, formula) for formula in draw(seed)]
    except BadProgram as error:
        args.out.write_text(json.dumps({"message": str(error), "remember": error.remember}))
        return 3
    metrics = {
        "decisions": sum(decisions for decisions, _ in searches) / len(searches),
        "finished": sum(finished for _, finished in searches) / len(searches),
    }
    args.out.write_text(json.dumps({"metrics": metrics}))
    return 0


def search(program: Program, formula: list[list[int]]) -> tuple[int, bool]:
    """The decisions of one search, and whether it came to an end."""
    run = Search(formula)

    def choose(rows: list[Row]) -> int:
        literal = program.call(rows, afresh=run.decisions == 1)
        if type(literal) is not int or abs(literal) not in {row[0] for row in rows}:
            raise BadProgram(f"choose returned {literal!r:.40}, expected a free variable v or -v")
        return literal

    finished = run.run(choose, MOST) is not None
    return run.decisions, finished


if __name__ == "__main__":
    sys.exit(main())
