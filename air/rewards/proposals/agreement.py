"""The agreement of k answers to one question: p̂ is derived from the share p of the largest class of equal
answers.

    p = |largest class| / k          unreadable answers count in k, and are in no class

The function `p_hat` is air's only definition of p̂, the number that rewards, filters and reports use.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Definition = Literal["as_coded", "published"]
"""The two definitions of p̂ and of the reward of a proposal: as in Agent0's code, or as in Agent0's paper."""
LEAST_P = 0.1
"""The threshold of the definition `as_coded`: p̂ is 0 if p is at most this number."""
LONGEST_ANSWER = 1000
"""The maximum length of an answer in characters. A longer answer counts as unreadable."""
MOST_REPRESENTATIVES = 64
"""The maximum number of different answers that `agreement` compares by calling its argument `equal`, which
may be slow."""
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_FRACTION = re.compile(r"([+-]?)\\[dt]?frac\{(-?\d+)\}\{(-?\d+)\}|([+-]?\d+)/(\d+)")
_LONGEST_NUMBER = 100
"""The maximum length in characters of a text that is parsed as a number. A longer text is compared as
text."""
_WRAPPERS = (("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), (r"\text{", "}"), (r"\mathrm{", "}"))


@dataclass(frozen=True)
class Agreement:
    """The k answers to one question, grouped into classes of equal answers."""

    k: int
    valid: int
    """The number of readable answers."""
    classes: Sequence[Sequence[str]]
    """The classes of equal readable answers, largest first. Of equally large classes, the one with the
    earliest answer is first."""

    @property
    def majority(self) -> str | None:
        """The first answer of the largest class; None if no answer is readable."""
        return self.classes[0][0] if self.classes else None

    @property
    def share(self) -> float:
        """p: the size of the largest class divided by k."""
        return len(self.classes[0]) / self.k if self.classes else 0.0

    def suffices(self, least_valid: float) -> bool:
        """Returns whether the share of readable answers is at least `least_valid`."""
        return self.valid >= least_valid * self.k


Equal = Callable[[str, str], bool]
"""A function that returns whether two answers are equal. It need not be symmetric: both orders are tried."""


def agreement(answers: Sequence[str | None], equal: Equal | None = None) -> Agreement:
    """Groups `answers`, the k answers to one question, into classes of equal answers. An answer of None is
    unreadable. Raises ValueError if k is 0.

    Answers with the same canonical form are equal. If `equal` is given, answers with different forms can be
    equal, too: one answer of each form is compared with one answer of each class, in both orders. Only the
    first `MOST_REPRESENTATIVES` forms are compared in this way.
    """
    if not answers:
        raise ValueError("there is no answer")
    by_form: dict[str, list[tuple[int, str]]] = {}
    for place, answer in enumerate(answers):
        form = canonical(answer) if answer is not None else ""
        if form and answer is not None:
            by_form.setdefault(form, []).append((place, answer))
    merged = _merged(list(by_form.values()), equal) if equal else list(by_form.values())
    classes = [sorted(members) for members in merged]
    classes.sort(key=lambda members: (-len(members), members[0][0]))
    valid = sum(map(len, classes))
    return Agreement(len(answers), valid, [[text for _, text in each] for each in classes])


def _merged(forms: Sequence[list[tuple[int, str]]], equal: Equal) -> list[list[tuple[int, str]]]:
    classes: list[list[tuple[int, str]]] = []
    for number, members in enumerate(forms):
        answer = members[0][1]
        own = None
        if number < MOST_REPRESENTATIVES:
            heads = ((one, one[0][1]) for one in classes)
            own = next((o for o, head in heads if equal(head, answer) or equal(answer, head)), None)
        if own is None:
            classes.append(list(members))
        else:
            own += members
    return classes


def p_hat(
    found: Agreement,
    proposed: str | None,
    definition: Definition,
    least_valid: float = 0.0,
    equal: Equal | None = None,
) -> float:
    """Returns p̂, the number from 0 to 1 by which rewards and filters measure how far the k answers to a
    question agree. With p = |largest class| / k:

        as_coded     0 if p ≤ 0.1, or if the largest class disagrees with `proposed`; else p
        published    p

    The largest class disagrees if no answer is readable, if `proposed` (the proposer's own answer) is None,
    or if `same` (which gets `equal`) says that `proposed` differs from the majority's answer. By both
    definitions, p̂ is 0 if fewer than `least_valid` · k answers are readable; Agent0 has no such limit.

    Source: Agent0. `published` is the self-consistency of its paper (arXiv 2511.16043). `as_coded` is what
    its curriculum trainer computes (project aiming-lab/Agent0, whose code has two more definitions).
    """
    if not found.suffices(least_valid):
        return 0.0
    if definition == "published":
        return found.share
    if found.majority is None or proposed is None or found.share <= LEAST_P:
        return 0.0
    return found.share if same(found.majority, proposed, equal) else 0.0


def same(one: str, other: str, equal: Equal | None = None) -> bool:
    """Returns whether two answers are equal: by their canonical forms or, if these differ, by `equal` in
    both orders."""
    form = canonical(one)
    if not form:
        return False
    if form == canonical(other):
        return True
    return equal is not None and (equal(one, other) or equal(other, one))


def canonical(answer: str) -> str:
    """Returns the canonical form of an answer, which is the same for obviously equal answers such as
    `1,000`, `$1000$` and `1000.0`, or `0.5`, `1/2` and `\\frac{1}{2}`. Returns an empty text if the answer
    is unreadable."""
    if len(answer) > LONGEST_ANSWER:
        return ""
    text = " ".join(unicodedata.normalize("NFKC", answer).replace("−", "-").split())
    text = _unwrapped(text.rstrip(".").rstrip())
    number = _number(text.replace(" ", ""))
    return str(number) if number is not None else text.casefold()


def _unwrapped(text: str) -> str:
    changed = True
    while changed:
        changed = False
        for start, end in _WRAPPERS:
            if text.startswith(start) and text.endswith(end) and len(text) > len(start + end):
                text, changed = text[len(start) : -len(end)].strip(), True
    return text


def _number(text: str) -> Fraction | None:
    if len(text) > _LONGEST_NUMBER or not text.isascii():
        return None
    if _NUMBER.fullmatch(text):
        return Fraction(text.rstrip("."))
    if _THOUSANDS.fullmatch(text):
        return Fraction(text.replace(",", ""))
    if match := _FRACTION.fullmatch(text):
        sign, above, below, top, bottom = match.groups()
        upper, lower = int(above or top), int(below or bottom)
        if lower:
            return Fraction(upper, lower) * (-1 if sign == "-" else 1)
    return None
