"""Generates the data of the 3-SAT task of MLGym (a collection of research tasks), because MLGym does not
publish this data: Boolean formulas whose clauses have three variables each.

The number and size of the formulas are inferred from what is published. The task's `evaluate.py` reads
`dataset.pkl`, and solves all formulas except the first three. The task's baseline solved 24000 formulas in 16
seconds. It takes about as long for 24000 random formulas with eight variables and 34 clauses. With this ratio
of clauses to variables, about half of all large random formulas can be satisfied.
"""

from __future__ import annotations

import pickle
from pathlib import Path

FORMULAS = 24_000
"""The number of formulas that the evaluation solves."""
_UNUSED = 3
"""The number of formulas at the beginning of the file that the evaluation does not use."""
VARIABLES = 8
CLAUSES = 34


def formulas(dest: Path, seed: int, count: int = FORMULAS) -> None:
    """Writes `dataset.pkl` with `count` formulas, and three unused ones before them, into the folder `dest`.

    Each formula is a tuple (index, number of variables, number of clauses, clauses, whether it can be
    satisfied, None). A clause is a list of three literals: the numbers of its variables, negative if negated.
    """
    import numpy

    dest.mkdir(parents=True, exist_ok=True)
    rng = numpy.random.default_rng(seed)
    shape = (_UNUSED + count, CLAUSES)
    variables = rng.random((*shape, VARIABLES)).argsort(axis=-1)[..., :3]
    negated = rng.integers(0, 2, (*shape, 3))
    # One bit for each assignment of all variables: whether the literal, clause or formula is true under it.
    assignments = numpy.arange(2**VARIABLES)
    positive = (assignments >> numpy.arange(VARIABLES)[:, None]) & 1
    literals = numpy.packbits(numpy.stack([positive, 1 - positive]).astype(bool), axis=-1)
    clauses = numpy.bitwise_or.reduce(literals[negated, variables], axis=2)
    satisfied = numpy.bitwise_and.reduce(clauses, axis=1).any(axis=-1)
    numbers = ((variables + 1) * (1 - 2 * negated)).tolist()
    rows = [
        (index, VARIABLES, CLAUSES, clauses, possible, None)
        for index, (clauses, possible) in enumerate(zip(numbers, satisfied.tolist(), strict=True))
    ]
    with (dest / "dataset.pkl").open("wb") as file:
        pickle.dump(rows, file)
