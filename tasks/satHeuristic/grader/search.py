"""A plain DPLL search for a satisfying assignment that counts its decisions.

A formula is a list of clauses, a clause a list of literals: v is the variable v (from 1), -v its negation.
The search propagates units, asks for a literal where nothing is left to propagate (one decision), tries
it, then its negation, which is no decision. It learns no clauses and never restarts.
"""

from collections.abc import Callable

Row = list[int]
"""`[variable, pos2, neg2, pos3, neg3, conflicts]` of one free variable: in how many of the clauses that
are not yet satisfied it occurs, plainly (pos) and negated (neg), where two or at least three literals
are still free; and in how many clauses that turned false it occurred so far in this formula."""


class Search:
    """One search through one formula."""

    def __init__(self, clauses: list[list[int]]) -> None:
        self._clauses = clauses
        self._value: dict[int, bool] = {}
        self._true = [0] * len(clauses)
        self._free = [len(clause) for clause in clauses]
        self._within: dict[int, list[int]] = {}
        for number, clause in enumerate(clauses):
            for literal in clause:
                self._within.setdefault(literal, []).append(number)
        self._variables = sorted({abs(literal) for literal in self._within})
        self._conflicts = dict.fromkeys(self._variables, 0)
        self.decisions = 0
        """Literals that were asked for."""

    def run(self, choose: Callable[[list[Row]], int], most: int) -> bool | None:
        """Whether the formula is satisfiable; None if that takes more than `most` decisions."""
        units = [clause[0] for clause in self._clauses if len(clause) == 1]
        stack: list[
            tuple[int, list[int]]
        ] = []  # a literal still to be tried, and what to undo before
        trail: list[int] = []
        while True:
            if self._propagate(units, trail):
                rows = self.rows()
                if not rows:
                    return True
                if self.decisions == most:
                    return None
                self.decisions += 1
                literal = choose(rows)
                stack.append((-literal, trail))
                units, trail = [literal], []
                continue
            self._undo(trail)
            if not stack:
                return False
            literal, trail = stack.pop()
            units = [literal]

    def rows(self) -> list[Row]:
        """The free variables that occur in a clause not yet satisfied, in ascending order."""
        rows = {v: [v, 0, 0, 0, 0, self._conflicts[v]] for v in self._variables}
        for number, clause in enumerate(self._clauses):
            if self._true[number]:
                continue
            column = 1 if self._free[number] == 2 else 3
            for literal in clause:
                if abs(literal) not in self._value:
                    rows[abs(literal)][column + (literal < 0)] += 1
        return [row for row in rows.values() if any(row[1:5])]

    def _propagate(self, units: list[int], trail: list[int]) -> bool:
        """Sets the literals and all that follows, and notes them in `trail`; False on a conflict."""
        waiting = list(units)
        while waiting:
            literal = waiting.pop()
            if abs(literal) in self._value:
                if self._value[abs(literal)] != (literal > 0):
                    return False
                continue
            self._value[abs(literal)] = literal > 0
            trail.append(literal)
            for number in self._within.get(literal, ()):
                self._true[number] += 1
            fine = True
            for number in self._within.get(-literal, ()):
                self._free[number] -= 1
                if self._true[number] or self._free[number] > 1:
                    continue
                if self._free[number] == 0:
                    fine = False
                    for false in self._clauses[number]:
                        self._conflicts[abs(false)] += 1
                else:
                    waiting.append(self._unit(number))
            if not fine:
                return False
        return True

    def _unit(self, number: int) -> int:
        return next(x for x in self._clauses[number] if abs(x) not in self._value)

    def _undo(self, trail: list[int]) -> None:
        for literal in trail:
            del self._value[abs(literal)]
            for number in self._within.get(literal, ()):
                self._true[number] -= 1
            for number in self._within.get(-literal, ()):
                self._free[number] += 1
