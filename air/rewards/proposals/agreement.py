"""How far k answers to one question agree: the share p̂ of the largest class of equal answers.

    p = |largest class| / k          answers that cannot be read count in k, and are in no class

`p_hat` turns p into the number that rewards and filters use, by the name of a definition:

    as_coded     0 if the largest class disagrees with the proposer's answer, or p ≤ 0.1; else p
    published    p

From Agent0 (arXiv 2511.16043; project aiming-lab/Agent0, whose code has three definitions of p).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Definition = Literal["as_coded", "published"]
"""The names of the definitions of p̂, and of the rewards of proposals."""
LEAST_P = 0.1
"""`as_coded`: a share of at most this is 0."""
LONGEST_ANSWER = 1000
"""An answer with more characters cannot be read."""
MOST_REPRESENTATIVES = 64
"""The largest number of different answers that are compared with each other."""
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_FRACTION = re.compile(r"([+-]?)\\[dt]?frac\{(-?\d+)\}\{(-?\d+)\}|([+-]?\d+)/(\d+)")
_LONGEST_NUMBER = 100
"""A number with more characters stays a text."""
_WRAPPERS = (("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), (r"\text{", "}"), (r"\mathrm{", "}"))


@dataclass(frozen=True)
class Agreement:
    """What k answers to a question say about it."""

    k: int
    valid: int
    """The number of answers that could be read."""
    classes: Sequence[Sequence[str]]
    """The readable answers by equality. The largest class is first; of equally large ones, that with the
    earlier answer."""

    @property
    def majority(self) -> str | None:
        """The first answer of the largest class; None if no answer can be read."""
        return self.classes[0][0] if self.classes else None

    @property
    def share(self) -> float:
        """p: the largest class's share of all k answers."""
        return len(self.classes[0]) / self.k if self.classes else 0.0


Equal = Callable[[str, str], bool]
"""Whether two answers are equal. It may depend on the order; both are tried."""


def agreement(answers: Sequence[str | None], equal: Equal | None = None) -> Agreement:
    """Returns the classes of k answers; None is an answer that cannot be read. Raises ValueError if k is 0.

    Answers of one canonical form are equal; this takes linear time. `equal` then compares one representative
    of each form with one of each class, in both orders; at most `MOST_REPRESENTATIVES` forms take part.
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
    equal: Equal | None = None,
) -> float:
    """Returns p̂ by one of the definitions. `proposed` is the proposer's own answer; with None, `as_coded`
    disagrees."""
    if definition == "published":
        return found.share
    if found.majority is None or proposed is None or found.share <= LEAST_P:
        return 0.0
    return found.share if same(found.majority, proposed, equal) else 0.0


def same(one: str, other: str, equal: Equal | None = None) -> bool:
    """Whether two answers are equal: by their canonical forms, or else by `equal`, in both orders."""
    form = canonical(one)
    if not form:
        return False
    if form == canonical(other):
        return True
    return equal is not None and (equal(one, other) or equal(other, one))


def canonical(answer: str) -> str:
    """Returns a text that answers share which are written differently and obviously equal: `1,000`, `$1000$`
    and `1000.0`; `0.5`, `1/2` and `\\frac{1}{2}`. Returns an empty text if the answer cannot be read."""
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
