"""Draws formulas in conjunctive normal form of three families; equal seeds give equal formulas.

A formula is a list of clauses, a clause a list of literals: v is the variable v (from 1), -v its negation.
"""

import random

EACH = 8
"""Formulas of each family."""


def draw(seed: int) -> list[list[list[int]]]:
    """The formulas of a split, the families in turn."""
    rng = random.Random(seed)
    kinds = (uniform, colouring, planted)
    return [_renamed(rng, kind(rng)) for _ in range(EACH) for kind in kinds]


def uniform(rng: random.Random, variables: int = 75, ratio: float = 4.26) -> list[list[int]]:
    """Random 3-SAT where about half of the formulas can be satisfied (the ratio of clauses to variables
    of the phase transition: Crawford and Auton, "Experimental results on the crossover point in random
    3-SAT", 1996)."""
    return [
        [v * rng.choice((-1, 1)) for v in rng.sample(range(1, variables + 1), 3)]
        for _ in range(round(variables * ratio))
    ]


def colouring(rng: random.Random, nodes: int = 50, degree: float = 4.6) -> list[list[int]]:
    """Whether a random graph can be coloured with three colours, near where it begins to be impossible
    (mean degree 4.69); variable 3n + c + 1 says that node n has colour c."""
    edges: set[tuple[int, int]] = set()
    while len(edges) < nodes * degree / 2:
        one, other = sorted(rng.sample(range(nodes), 2))
        edges.add((one, other))
    clauses = [[3 * node + colour + 1 for colour in range(3)] for node in range(nodes)]
    for one, other in sorted(edges):
        clauses += [[-(3 * one + colour + 1), -(3 * other + colour + 1)] for colour in range(3)]
    return clauses


def planted(rng: random.Random, variables: int = 110, ratio: float = 4.3) -> list[list[int]]:
    """3-SAT around a hidden solution, whose literals are a little more frequent than the others."""
    solution = [v * rng.choice((-1, 1)) for v in range(1, variables + 1)]
    clauses: list[list[int]] = []
    while len(clauses) < round(variables * ratio):
        three = rng.sample(solution, 3)
        right = rng.choice((1, 1, 1, 2, 2, 2, 3))
        clauses.append([three[0], *(x if at < right else -x for at, x in enumerate(three[1:], 1))])
    return clauses


def _renamed(rng: random.Random, clauses: list[list[int]]) -> list[list[int]]:
    """The same formula with its variables numbered anew and everything in another order."""
    names = sorted({abs(literal) for clause in clauses for literal in clause})
    new = dict(zip(names, rng.sample(range(1, len(names) + 1), len(names)), strict=True))
    renamed = [[new[abs(x)] * (1 if x > 0 else -1) for x in clause] for clause in clauses]
    for clause in renamed:
        rng.shuffle(clause)
    rng.shuffle(renamed)
    return renamed
