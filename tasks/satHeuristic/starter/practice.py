"""Searches formulas drawn from a seed with the heuristic of heuristic.py; prints its mean decisions.

The graded formulas are others of the same three families. Options: [SEED].
"""

import sys

from formulas import colouring, draw, planted, uniform
from heuristic import choose
from search import Search

MOST = 200
FAMILIES = (uniform, colouring, planted)

counts = {family.__name__: [] for family in FAMILIES}
for number, formula in enumerate(draw(int(sys.argv[1]) if sys.argv[1:] else 1)):
    search = Search(formula)
    search.run(choose, MOST)
    counts[FAMILIES[number % len(FAMILIES)].__name__].append(search.decisions)
for name, of in counts.items():
    print(f"{name}: {sum(of) / len(of):.1f}")
together = [count for of in counts.values() for count in of]
print(f"all: {sum(together) / len(together):.2f}")
