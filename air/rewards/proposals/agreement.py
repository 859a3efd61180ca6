"""Computes p̂, which measures how far the k answers of a model (the executor) to one question agree. p̂ is
derived from the share p of the largest class of equal answers.

    p = |largest class| / k          unreadable answers count in k, and are in no class

Answers are equal by a rule (`Equality`): with `forms` if they have the same canonical form, with `math` also
if the checker of mathematical answers says so. This equality is not transitive: 50% equals both 50 and 0.5.
So every class has a head, its most frequent form, and a form joins the first class whose head it equals. The
order of the answers does not change the classes.

Comparisons are limited, because answers may be hostile. If a comparison without a result could change the
largest class or its size, p is unknown, and p̂ is 0.

The function `p_hat` is air's only definition of p̂, the number that rewards, filters and reports use.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from typing import Literal

from air.errors import ConfigError
from air.rewards.answers import mathematics, runner

Definition = Literal["as_coded", "published"]
"""The two definitions of p̂ (how far a model's answers to a question agree) and of the reward of a proposal
(a question that a model wrote): as in Agent0's code, or as in Agent0's paper."""
LEAST_P = 0.1
"""The threshold in the definition `as_coded` of p̂: p̂ is 0 if p, the share of the answers to a question that
equal the most frequent answer, is at most this number."""
LONGEST_ANSWER = 1000
"""The maximum length of an answer in characters. A longer answer counts as unreadable."""
MOST_REPRESENTATIVES = 64
"""The maximum number of different answers that `agreement` compares by calling its argument `equal`, which
may be slow."""
MOST_UNDECIDED = 4
"""The number of comparisons without a result after which `agreement` does not call its argument `equal` any
more for the same question. Such a comparison takes as long as its limit allows."""
MOST_SECONDS = 60.0
"""The CPU time, in seconds, after which the comparisons of the answers to one question end (see `MathEqual`).
Ten different expressions need about two seconds."""
STOP: ContextVar[threading.Event | None] = ContextVar("stop_comparisons", default=None)
"""A context variable with an event that another thread sets to end the comparisons of this context: the next
`MathEqual` raises ComparisonsStopped. None: nothing ends them."""
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_FRACTION = re.compile(r"([+-]?)\\[dt]?frac\{(-?\d+)\}\{(-?\d+)\}|([+-]?\d+)/(\d+)")
_LONGEST_NUMBER = 100
"""The maximum length in characters of a text that is parsed as a number. A longer text is compared as
text."""
_WRAPPERS = (("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), (r"\text{", "}"), (r"\mathrm{", "}"))


Equality = Literal["math", "forms"]
"""The rule by which answers are equal: `forms`, if they have the same canonical form (as `0.5` and `1/2`), or
`math`, also if the checker of mathematical answers says so (as for `2x` and `x*2`)."""
Equal = Callable[[str, str], bool | None]
"""A function that returns whether two answers are equal, or None if it cannot decide within its limits. It
need not be symmetric, because both orders are tried, and need not be transitive."""


@dataclass(frozen=True)
class Agreement:
    """The k answers of a model to one question, grouped into classes of equal answers."""

    k: int
    valid: int
    """The number of readable answers."""
    classes: Sequence[Sequence[str]]
    """The classes of equal readable answers, largest first. Of equally large classes, the one with the
    earliest answer is first. Equal answers may be in different classes if these are together smaller than the
    largest class."""
    majority: str | None
    """The answer that stands for the largest class: the first of the answers with the class's most frequent
    canonical form. None if no answer is readable."""
    decided: bool = True
    """Whether the largest class and its size are known. They are not if comparisons of answers had no result,
    and another outcome of these could change them."""
    equal: Equal | None = None
    """The function by which answers with different canonical forms were compared."""

    @property
    def share(self) -> float:
        """The share p of the largest class of equal answers among all k answers; 0 if no answer is
        readable."""
        return len(self.classes[0]) / self.k if self.classes else 0.0

    def suffices(self, least_valid: float) -> bool:
        """Returns whether p (the share of the largest class) is known, and the share of readable answers is
        at least `least_valid`."""
        return self.decided and self.valid >= least_valid * self.k


def check_equality(equality: Equality) -> None:
    """Raises MissingError if a package that the rule `equality` needs is not installed."""
    if equality == "math":
        runner.check_installed()


class ComparisonsStopped(Exception):
    """Raised by `MathEqual` instead of comparing two answers or evaluating one, if another thread has set the
    event in the context variable `STOP`."""


class MathEqual:
    """A function object that compares answers to one question by the checker of mathematical answers. After
    its comparisons have used `most_seconds` of CPU time in total, it returns None for all others."""

    def __init__(self, question: str, most_seconds: float = MOST_SECONDS) -> None:
        self._question, self._most, self._used = question, most_seconds, 0.0
        self._values: dict[str, runner.Values] = {}

    def __call__(self, one: str, other: str) -> bool | None:
        """Returns whether two answers are equal; None if this cannot be decided within the limits. Raises
        InfrastructureError if a comparison fails for a reason other than the answers, and ComparisonsStopped
        if the event in `STOP` is set."""
        _check_stop()
        if self._used >= self._most:
            return None
        if self._differ(one, other):
            return False
        outcome = _measured(self._question, one, other)
        self._used += outcome.seconds
        return outcome.equal

    def _differ(self, one: str, other: str) -> bool:
        """Returns whether the values of two answers show that they are not equal. The values of each answer
        are computed once, so that only answers with the same values need a comparison of the pair."""
        for answer in (one, other):
            if answer not in self._values:
                _check_stop()
                self._values[answer] = _values(self._question, answer)
                self._used += self._values[answer].seconds
        return self._values[one].differ(self._values[other])


def _check_stop() -> None:
    stop = STOP.get()
    if stop is not None and stop.is_set():
        raise ComparisonsStopped


def equal_answers(equality: Equality, question: str) -> Equal | None:
    """Returns a function that compares two answers to `question` whose canonical forms differ, by the rule
    `equality`; None for the rule `forms`, by which such answers are never equal. The function has a time
    limit for all its comparisons (see `MathEqual`), so use it for the answers to one question only."""
    return MathEqual(question) if equality == "math" else None


@lru_cache(maxsize=65_536)  # a report compares the same answers again and again
def _measured(question: str, one: str, other: str) -> runner.Outcome:
    try:
        return mathematics.measured(one, other, question)
    except ConfigError:  # the first answer, which no user has written, has nothing in it
        return runner.Outcome(False)


@lru_cache(maxsize=65_536)
def _values(question: str, answer: str) -> runner.Values:
    return mathematics.values(answer, question)


def agreement(answers: Sequence[str | None], equal: Equal | None = None) -> Agreement:
    """Groups `answers`, the k answers to one question, into classes of equal answers. An answer of None is
    unreadable. Raises ValueError if k is 0, and the errors of `equal`.

    Answers with the same canonical form are equal. With the function `equal` (see `equal_answers`), answers
    with different forms can be equal, too. First, the most frequent form is compared with all other forms, in
    both orders. Then the most frequent of the forms that are still in no class is compared with the rest, and
    so on, until the rest is smaller than the largest class. Only the `MOST_REPRESENTATIVES` most frequent
    forms are compared, and none after `MOST_UNDECIDED` comparisons that `equal` could not decide.
    """
    if not answers:
        raise ValueError("there is no answer")
    by_form: dict[str, list[tuple[int, str]]] = {}
    for place, answer in enumerate(answers):
        form = canonical(answer) if answer is not None else ""
        if form and answer is not None:
            by_form.setdefault(form, []).append((place, answer))
    forms = [by_form[form] for form in sorted(by_form, key=lambda f: (-len(by_form[f]), f))]
    merged, decided = _merged(forms, equal) if equal else ([[form] for form in forms], True)
    classes = [(each[0][0][1], sorted(chain.from_iterable(each))) for each in merged]
    classes.sort(key=lambda one: (-len(one[1]), one[1][0][0]))
    return Agreement(
        k=len(answers),
        valid=sum(len(members) for _, members in classes),
        classes=[[text for _, text in members] for _, members in classes],
        majority=classes[0][0] if classes else None,
        decided=decided,
        equal=equal,
    )


_Form = list[tuple[int, str]]
"""All answers with the same canonical form, each as a pair: its place among all answers, and its text."""


def _merged(forms: Sequence[_Form], equal: Equal) -> tuple[list[list[_Form]], bool]:
    """Returns a pair: classes of equal `forms`, and whether the largest class and its size are known (not if
    comparisons without a result could change them). A form is the list of all answers with the same canonical
    form. The first form of a class is its head, with which the others were compared."""
    undecided = 0

    def equal_to(head: str, answer: str) -> bool | None:
        nonlocal undecided
        results = []
        for one, other in ((head, answer), (answer, head)):
            results.append(equal(one, other) if undecided < MOST_UNDECIDED else None)
            undecided += results[-1] is None
            if results[-1]:
                return True
        return None if None in results else False

    rest = list(forms[:MOST_REPRESENTATIVES])
    classes: list[list[_Form]] = []
    sizes: list[tuple[int, int]] = []  # of each class: as known, and at most
    while rest and _size(rest) >= max((size for size, _ in sizes), default=0):
        head, *others = rest
        results = [equal_to(_first(head), _first(form)) for form in others]
        pairs = list(zip(others, results, strict=True))
        classes.append([head, *(form for form, result in pairs if result)])
        size = _size(classes[-1])
        sizes.append((size, size + _size([form for form, result in pairs if result is None])))
        rest = [form for form, result in pairs if not result]
    largest = max((size for size, _ in sizes), default=0)
    decided = all(size == most or most < largest for size, most in sizes)
    return [*classes, *([form] for form in [*rest, *forms[MOST_REPRESENTATIVES:]])], decided


def _size(forms: Sequence[_Form]) -> int:
    return sum(map(len, forms))


def _first(form: list[tuple[int, str]]) -> str:
    """Returns the answer that represents a form (the answers with the same canonical form) in comparisons:
    the first in the order of strings, so that the order of the answers has no effect."""
    return min(text for _, text in form)


def p_hat(
    found: Agreement,
    proposed: str | None,
    definition: Definition,
    least_valid: float = 0.0,
) -> float:
    """Returns p̂, a number from 0 to 1 by which rewards and filters measure how far the k answers to a
    question agree. `found` has these answers in classes of equal answers. With p = |largest class| / k:

        as_coded     0 if p ≤ 0.1, or if the largest class disagrees with `proposed`; else p
        published    p

    The largest class disagrees if no answer is readable, if `proposed` (the proposer's own answer) is None,
    or if `proposed` does not equal the answer of the largest class, by the rule with which `found` was made.
    By both definitions, p̂ is 0 if fewer than `least_valid` · k answers are readable, or if comparisons
    without a result leave p unknown (see `Agreement.decided`): otherwise a proposer could earn by questions
    whose answers cannot be compared. Agent0 has no such limits.

    Source: Agent0. `published` is the self-consistency of its paper (arXiv 2511.16043). `as_coded` is what
    its curriculum trainer computes (project aiming-lab/Agent0, whose code has two more definitions).
    """
    if not found.suffices(least_valid):
        return 0.0
    if definition == "published":
        return found.share
    if found.majority is None or proposed is None or found.share <= LEAST_P:
        return 0.0
    return found.share if same(found.majority, proposed, found.equal) else 0.0


def same(one: str, other: str, equal: Equal | None = None) -> bool:
    """Returns whether two answers are equal: they have the same canonical form or, if their forms differ, the
    function `equal` says so in at least one of both orders. Unreadable answers are never equal."""
    form, other_form = canonical(one), canonical(other)
    if not (form and other_form):
        return False
    if form == other_form:
        return True
    return equal is not None and bool(equal(one, other) or equal(other, one))


def canonical(answer: str) -> str:
    """Returns the canonical form of an answer: a string that is the same for obviously equal answers such as
    `1,000`, `$1000$` and `1000.0`, or `0.5`, `1/2` and `\\frac{1}{2}`. Returns an empty string if the answer
    is unreadable, which means blank or longer than `LONGEST_ANSWER`."""
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
