"""The templates of generated SQL questions, by level.

The placeholders in braces are: `{P}`, `{C}` and `{E}` for the parent, child and event table, whose
properties follow a dot (`{C.label}`, see `schemas.Table`); `{pk}` and `{ck}` for the foreign keys to the
parent and to the child table; other letters for random values (see `questions._words`).

The gold query is the reference, whose result is the right answer. The queries in `wrong` are likely mistakes,
and the queries in `same` are equivalent to the gold query. A question is asked only about a database on which
every wrong query has another result than the gold query, and every equivalent query has the same result. The
second condition excludes databases in which a tie makes the answer ambiguous, for example two highest values.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Template:
    """The template of a SQL question: the question's text, the gold (reference) query, wrong queries, and
    queries that are equivalent to the gold query. All have placeholders in braces."""

    question: str
    gold: str
    wrong: tuple[str, ...]
    same: tuple[str, ...] = ()


# fmt: off
_ONE = (
    Template(
        "What is the {C.label} of each of the {C.many} whose {C.category} is '{v}'?",
        "SELECT {C.label} FROM {C} WHERE {C.category} = '{v}'",
        ("SELECT {C.label} FROM {C}", "SELECT {C.label} FROM {C} WHERE {C.category} <> '{v}'", "SELECT * FROM {C} WHERE {C.category} = '{v}'"),
    ),
    Template(
        "How many {C.many} have {C.number} above {x}?",
        "SELECT COUNT(*) FROM {C} WHERE {C.number} > {x}",
        ("SELECT COUNT(*) FROM {C} WHERE {C.number} >= {x}", "SELECT COUNT(*) FROM {C} WHERE {C.number} < {x}", "SELECT COUNT(*) FROM {C}", "SELECT COUNT(*) FROM {P} WHERE {P.number} > {x}"),
    ),
    Template(
        "What is the highest {C.number} among the {C.many} whose {C.category} is '{v}'?",
        "SELECT MAX({C.number}) FROM {C} WHERE {C.category} = '{v}'",
        ("SELECT MIN({C.number}) FROM {C} WHERE {C.category} = '{v}'", "SELECT MAX({C.number}) FROM {C}", "SELECT {C.number} FROM {C} WHERE {C.category} = '{v}'"),
    ),
    Template(
        "List the different values of {P.category} among the {P.many} whose {P.number} is at least {y}. Give each value once.",
        "SELECT DISTINCT {P.category} FROM {P} WHERE {P.number} >= {y}",
        ("SELECT {P.category} FROM {P} WHERE {P.number} >= {y}", "SELECT DISTINCT {P.category} FROM {P} WHERE {P.number} < {y}"),
    ),
)
_TWO = (
    Template(
        "For each {C.category}, how many {C.many} with {C.number} above {x} are there? Give the {C.category} and the number; leave out those that have none.",
        "SELECT {C.category}, COUNT(*) FROM {C} WHERE {C.number} > {x} GROUP BY {C.category}",
        ("SELECT {C.category}, COUNT(*) FROM {C} GROUP BY {C.category}", "SELECT {C.category}, COUNT(*) FROM {C} WHERE {C.number} >= {x} GROUP BY {C.category}", "SELECT COUNT(*) FROM {C} WHERE {C.number} > {x} GROUP BY {C.category}"),
    ),
    Template(
        "Which {k} of the {C.many} whose {C.category} is '{v}' have the highest {C.number}? Give the {C.label} of each.",
        "SELECT {C.label} FROM {C} WHERE {C.category} = '{v}' ORDER BY {C.number} DESC LIMIT {k}",
        ("SELECT {C.label} FROM {C} ORDER BY {C.number} DESC LIMIT {k}", "SELECT {C.label} FROM {C} WHERE {C.category} = '{v}' ORDER BY {C.number} LIMIT {k}", "SELECT {C.label} FROM {C} WHERE {C.category} = '{v}'"),
        ("SELECT {C.label} FROM {C} WHERE {C.category} = '{v}' ORDER BY {C.number} DESC, id LIMIT {k}", "SELECT {C.label} FROM {C} WHERE {C.category} = '{v}' ORDER BY {C.number} DESC, id DESC LIMIT {k}"),
    ),
    Template(
        "What is the average {E.number} of the {E.many} whose {E.category} is '{w}'?",
        "SELECT AVG({E.number}) FROM {E} WHERE {E.category} = '{w}'",
        ("SELECT AVG({E.number}) FROM {E}", "SELECT SUM({E.number}) FROM {E} WHERE {E.category} = '{w}'", "SELECT AVG(DISTINCT {E.number}) FROM {E}"),
        ("SELECT SUM({E.number}) * 1.0 / COUNT(*) FROM {E} WHERE {E.category} = '{w}'",),
    ),
    Template(
        "Which values of {C.category} occur in more than {n} {C.many}?",
        "SELECT {C.category} FROM {C} GROUP BY {C.category} HAVING COUNT(*) > {n}",
        ("SELECT {C.category} FROM {C} GROUP BY {C.category} HAVING COUNT(*) < {n}", "SELECT {C.category} FROM {C} GROUP BY {C.category}", "SELECT {C.category} FROM {C} GROUP BY {C.category} HAVING COUNT(*) >= {n}"),
    ),
)
_THREE = (
    Template(
        "For each {P.one} whose {P.category} is '{u}', list its {C.many}: give the {P.label} of the {P.one} and the {C.label} of the {C.one}, one pair a row.",
        "SELECT p.{P.label}, c.{C.label} FROM {P} p JOIN {C} c ON c.{pk} = p.id WHERE p.{P.category} = '{u}'",
        ("SELECT p.{P.label}, c.{C.label} FROM {P} p, {C} c WHERE p.{P.category} = '{u}'", "SELECT p.{P.label}, c.{C.label} FROM {P} p JOIN {C} c ON c.{pk} = p.id", "SELECT p.{P.label}, c.{C.label} FROM {P} p JOIN {C} c ON c.id = p.id WHERE p.{P.category} = '{u}'"),
    ),
    Template(
        "How many {C.many} with {C.number} above {x} does each {P.one} have? Give the {P.label} and the number, also of those that have none.",
        "SELECT p.{P.label}, COUNT(c.id) FROM {P} p LEFT JOIN {C} c ON c.{pk} = p.id AND c.{C.number} > {x} GROUP BY p.id",
        ("SELECT p.{P.label}, COUNT(*) FROM {P} p JOIN {C} c ON c.{pk} = p.id WHERE c.{C.number} > {x} GROUP BY p.id", "SELECT p.{P.label}, COUNT(*) FROM {P} p LEFT JOIN {C} c ON c.{pk} = p.id AND c.{C.number} > {x} GROUP BY p.id", "SELECT p.{P.label}, COUNT(c.id) FROM {P} p LEFT JOIN {C} c ON c.{pk} = p.id GROUP BY p.id"),
    ),
    Template(
        "Which {P.many} have no {C.one} whose {C.category} is '{v}'? Give the {P.label} of each.",
        "SELECT {P.label} FROM {P} WHERE id NOT IN (SELECT {pk} FROM {C} WHERE {C.category} = '{v}')",
        ("SELECT {P.label} FROM {P} WHERE id IN (SELECT {pk} FROM {C} WHERE {C.category} = '{v}')", "SELECT {P.label} FROM {P} WHERE id NOT IN (SELECT {pk} FROM {C})", "SELECT {P.label} FROM {P} WHERE id IN (SELECT {pk} FROM {C} WHERE {C.category} <> '{v}')"),
    ),
    Template(
        "Which {C.many} whose {C.category} is '{v}' have {C.number} above the average of all {C.many}? Give the {C.label} of each.",
        "SELECT {C.label} FROM {C} WHERE {C.category} = '{v}' AND {C.number} > (SELECT AVG({C.number}) FROM {C})",
        ("SELECT {C.label} FROM {C} WHERE {C.number} > (SELECT AVG({C.number}) FROM {C})", "SELECT {C.label} FROM {C} WHERE {C.category} = '{v}'", "SELECT {C.label} FROM {C} WHERE {C.category} = '{v}' AND {C.number} < (SELECT AVG({C.number}) FROM {C})", "SELECT {C.label} FROM {C} WHERE {C.category} = '{v}' AND {C.number} > (SELECT AVG({C.number}) FROM {C} WHERE {C.category} = '{v}')"),
    ),
)
_FOUR = (
    Template(
        "What is the total {E.number} of the {E.many} of each {P.one}, counting only {E.many} whose {E.category} is '{w}'? Give the {P.label} and the total; leave out those without any.",
        "SELECT p.{P.label}, SUM(e.{E.number}) FROM {P} p JOIN {C} c ON c.{pk} = p.id JOIN {E} e ON e.{ck} = c.id WHERE e.{E.category} = '{w}' GROUP BY p.id",
        ("SELECT p.{P.label}, SUM(e.{E.number}) FROM {P} p JOIN {C} c ON c.{pk} = p.id JOIN {E} e ON e.{ck} = c.id GROUP BY p.id", "SELECT p.{P.label}, COUNT(*) FROM {P} p JOIN {C} c ON c.{pk} = p.id JOIN {E} e ON e.{ck} = c.id WHERE e.{E.category} = '{w}' GROUP BY p.id", "SELECT p.{P.label}, SUM(c.{C.number}) FROM {P} p JOIN {C} c ON c.{pk} = p.id JOIN {E} e ON e.{ck} = c.id WHERE e.{E.category} = '{w}' GROUP BY p.id"),
    ),
    Template(
        "For each {C.category} of the {C.many} with {C.number} above {x}, which of them has the lowest {C.number}? Give the {C.category} and the {C.label}.",
        "SELECT c.{C.category}, c.{C.label} FROM {C} c WHERE c.{C.number} = (SELECT MIN(o.{C.number}) FROM {C} o WHERE o.{C.category} = c.{C.category} AND o.{C.number} > {x})",
        ("SELECT c.{C.category}, c.{C.label} FROM {C} c WHERE c.{C.number} = (SELECT MIN(o.{C.number}) FROM {C} o WHERE o.{C.category} = c.{C.category})", "SELECT c.{C.category}, c.{C.label} FROM {C} c WHERE c.{C.number} = (SELECT MAX(o.{C.number}) FROM {C} o WHERE o.{C.category} = c.{C.category})", "SELECT {C.category}, {C.label} FROM {C} WHERE {C.number} > {x}"),
        ("SELECT {C.category}, {C.label} FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY {C.category} ORDER BY {C.number}, id) AS place FROM {C} WHERE {C.number} > {x}) WHERE place = 1",),
    ),
    Template(
        "Which {C.many} have more {E.many} than the {C.many} have on average? Count all {C.many}, also those without any. Give the {C.label} of each whose {C.category} is '{v}'.",
        "SELECT c.{C.label} FROM {C} c WHERE c.{C.category} = '{v}' AND (SELECT COUNT(*) FROM {E} e WHERE e.{ck} = c.id) > (SELECT COUNT(*) FROM {E}) * 1.0 / (SELECT COUNT(*) FROM {C})",
        ("SELECT c.{C.label} FROM {C} c WHERE c.{C.category} = '{v}' AND (SELECT COUNT(*) FROM {E} e WHERE e.{ck} = c.id) > 0", "SELECT c.{C.label} FROM {C} c WHERE (SELECT COUNT(*) FROM {E} e WHERE e.{ck} = c.id) > (SELECT COUNT(*) FROM {E}) * 1.0 / (SELECT COUNT(*) FROM {C})", "SELECT c.{C.label} FROM {C} c WHERE c.{C.category} = '{v}'"),
    ),
    Template(
        "Which {P.many} have a total {E.number} above {s} in the {E.many} of their {C.many}? Give the {P.label} of each.",
        "SELECT p.{P.label} FROM {P} p JOIN {C} c ON c.{pk} = p.id JOIN {E} e ON e.{ck} = c.id GROUP BY p.id HAVING SUM(e.{E.number}) > {s}",
        ("SELECT p.{P.label} FROM {P} p JOIN {C} c ON c.{pk} = p.id JOIN {E} e ON e.{ck} = c.id GROUP BY p.id HAVING SUM(e.{E.number}) < {s}", "SELECT p.{P.label} FROM {P} p JOIN {C} c ON c.{pk} = p.id JOIN {E} e ON e.{ck} = c.id GROUP BY p.id", "SELECT p.{P.label} FROM {P} p JOIN {C} c ON c.{pk} = p.id JOIN {E} e ON e.{ck} = c.id GROUP BY p.id HAVING COUNT(*) > 3", "SELECT p.{P.label} FROM {P} p JOIN {C} c ON c.{pk} = p.id GROUP BY p.id HAVING SUM(c.{C.number}) > {s}"),
    ),
)
# fmt: on
TEMPLATES: dict[int, tuple[Template, ...]] = {1: _ONE, 2: _TWO, 3: _THREE, 4: _FOUR}
"""The templates of each level. Level 1: one table; 2: groups and orders; 3: two tables; 4: three tables and
nested queries."""
