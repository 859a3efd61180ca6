"""Searches hidden formulas with the heuristic of heuristic.py and grades it by its mean decisions."""

import json
import sys
from pathlib import Path

from formulas import draw
from grading import DATA, BadArtefact, described, run
from runner import Runner
from search import Row, Search

MOST = 200
"""Decisions after which a search is given up; it then counts as many."""


def grade(artefact: Path, split: str, seed: int) -> dict[str, float]:
    formulas = draw(json.loads((DATA / "seeds.json").read_text())[split])
    with Runner(artefact / "heuristic.py", "choose", seed=seed) as runner:
        searches = [search(runner, formula) for formula in formulas]
    return {
        "decisions": sum(decisions for decisions, _ in searches) / len(searches),
        "finished": sum(finished for _, finished in searches) / len(searches),
    }


def search(runner: Runner, formula: list[list[int]]) -> tuple[int, bool]:
    """The decisions of one search, and whether it came to an end."""

    solving = Search(formula)

    def choose(rows: list[Row]) -> int:
        if solving.decisions == 1:
            runner.load()
        literal = runner.call(rows)
        if type(literal) is not int or abs(literal) not in {row[0] for row in rows}:
            answer = described(literal)
            raise BadArtefact(f"choose returned {answer}, expected a free variable v or -v")
        return literal

    finished = solving.run(choose, MOST) is not None
    return solving.decisions, finished


if __name__ == "__main__":
    sys.exit(run(grade))
