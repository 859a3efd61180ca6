"""The problems of `make coevolve`: sums, differences, largest numbers and reversed digits, in five sizes; and
the demonstrations from which the two policies learn to answer and to write them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from air import paths
from air.config import read_toml
from air.tools import ToolSet, load
from air.worlds.proposals.posed import WITH_TOOLS
from air.worlds.proposals.whole_reply import WholeReply

PROPOSE = read_toml(paths.shipped("configs") / "agent0" / "small.toml")["payment"]["instructions"]
WITH_CALCULATOR = WholeReply(ToolSet(load("calculator")).schemas, answers=True)
"""The action format of an executor with a calculator."""
KINDS = ("sum", "difference", "largest", "reverse")
SIZES = (1, 2, 3, 4, 5)
DIGITS = {1: (1, 1), 2: (2, 1), 3: (2, 2), 4: (3, 2), 5: (3, 3)}
"""The numbers of digits of both numbers in a sum or difference, by size. The other kinds have one number more
than their size."""
EASY = 1
"""The size of the sums and differences that the executor knows by heart: it calls no calculator for them."""
ANSWERED = (0.40, 0.15, 0.15, 0.15, 0.15)
"""The shares of the sizes in the demonstrations of the executor."""
PROPOSED = (0.95, 0.02, 0.01, 0.01, 0.01)
"""The shares of the sizes in the demonstrations of the proposer: nearly all problems are easy, but it has
seen all sizes, so that its training can find each of them. If a tenth of the proposals is in range, the
executor learns nearly as much without a trained proposer: Adam makes large steps of few useful rows."""
_ARITHMETIC = re.compile(r"What is (\d{1,3}) ([+-]) (\d{1,3})\?")
_LARGEST = re.compile(r"Largest of (\d{1,2}(?:, \d{1,2}){1,5})\?")
_REVERSE = re.compile(r"Reverse (\d(?: \d){1,5})\.")
Messages = list[dict[str, str]]
Talk = Callable[[random.Random], tuple[str, Messages]]
"""Returns a problem's question, and a conversation about it."""


@dataclass(frozen=True)
class Problem:
    """A problem of arithmetic or lists."""

    question: str
    answer: str
    expression: str
    """What a calculator computes, for sums and differences. Empty for lists."""


def arithmetic(a: int, sign: str, b: int) -> Problem:
    """Returns the sum (`sign` is +) or the difference (−) of two numbers as a problem."""
    expression = f"{a} {sign} {b}"
    return Problem(f"What is {expression}?", str(a + b if sign == "+" else a - b), expression)


def largest(numbers: Sequence[int]) -> Problem:
    """Returns the problem to find the largest of some numbers. The question is short: with more equal words,
    two such questions would count as similar (`air.rewards.proposals.novelty`)."""
    listed = ", ".join(map(str, numbers))
    return Problem(f"Largest of {listed}?", str(max(numbers)), "")


def reverse(digits: Sequence[int]) -> Problem:
    """Returns the problem to write some digits in the opposite order."""
    forwards, backwards = (" ".join(map(str, each)) for each in (digits, digits[::-1]))
    return Problem(f"Reverse {forwards}.", backwards, "")


def problem(rng: random.Random, kind: str, size: int) -> Problem:
    """Returns a random problem of one of `KINDS` and one of `SIZES`."""
    if kind == "largest":
        return largest([rng.randint(0, 99) for _ in range(size + 1)])
    if kind == "reverse":
        return reverse([rng.randint(1, 9) for _ in range(size + 1)])
    a, b = (rng.randint(10 ** (n - 1) if n > 1 else 0, 10**n - 1) for n in DIGITS[size])
    if kind == "difference":
        return arithmetic(max(a, b), "-", min(a, b))
    return arithmetic(a, "+", b) if rng.random() < 0.5 else arithmetic(b, "+", a)


def parsed(question: str) -> Problem | None:
    """Returns the problem that a question asks, with its right answer. None if `problem` cannot return this
    question, apart from the sizes of its numbers."""
    found = None
    if match := _ARITHMETIC.fullmatch(question):
        a, sign, b = int(match[1]), match[2], int(match[3])
        found = arithmetic(a, sign, b) if sign == "+" or a >= b else None
    elif match := _LARGEST.fullmatch(question):
        found = largest([int(number) for number in match[1].split(", ")])
    elif match := _REVERSE.fullmatch(question):
        found = reverse([int(digit) for digit in match[1].split(" ")])
    # Numbers with leading zeros are read, but written otherwise.
    return found if found is not None and found.question == question else None


def questions(seed: str, sizes: Sequence[int], each: int) -> dict[str, str]:
    """Returns different random questions with their answers: `each` of every kind and size."""
    rng = random.Random(seed)
    drawn: dict[str, str] = {}
    for kind in KINDS:
        for size in sizes:
            enough = len(drawn) + each
            while len(drawn) < enough:
                one = problem(rng, kind, size)
                drawn[one.question] = one.answer
    return drawn


def held_out() -> dict[str, str]:
    """Returns the 400 questions, with their answers, on which the executor is evaluated: 100 of each kind, 25
    of each size but the smallest. They are the same for all seeds."""
    return questions("held out", SIZES[1:], 25)


def _drawn(rng: random.Random, shares: Sequence[float]) -> tuple[Problem, int]:
    """Returns a random problem, and its size."""
    (size,) = rng.choices(SIZES, shares)
    return problem(rng, rng.choice(KINDS), size), size


def answering(rng: random.Random) -> tuple[str, Messages]:
    """Returns a demonstration for the executor: a problem, and the conversation about it. For sums and
    differences that are not easy, the executor calls the calculator in half of the cases. In the other half,
    it gives the right answer at once, which so small a policy cannot learn: its own such answers are mostly
    wrong, and differ from each other."""
    one, size = _drawn(rng, ANSWERED)
    texts = [f"{WITH_TOOLS}\n\n{one.question}", f"\\boxed{{{one.answer}}}"]
    if one.expression and size > EASY and rng.random() < 0.5:
        call = {"name": "calculator", "arguments": {"expression": one.expression}}
        texts[1:1] = [json.dumps(call), f"{one.answer}\n[1 turns left]"]
    return one.question, _messages(WITH_CALCULATOR, *texts)


def proposing(rng: random.Random) -> tuple[str, Messages]:
    """Returns a demonstration for the proposer: a problem, and the conversation in which it is written."""
    one, _ = _drawn(rng, PROPOSED)
    reply = f"<question>{one.question}</question> \\boxed{{{one.answer}}}"
    return one.question, _messages(WholeReply(), PROPOSE, reply)


def demonstrations(talk: Talk, seed: str, count: int, excluded: Set[str]) -> list[Messages]:
    """Returns `count` conversations that `talk` makes, none of them about a question in `excluded`."""
    rng = random.Random(seed)
    talks: list[Messages] = []
    while len(talks) < count:
        question, messages = talk(rng)
        if question not in excluded:
            talks.append(messages)
    return talks


def _messages(form: WholeReply, *texts: str) -> Messages:
    """Returns a conversation of these texts, in turn those of the user and the assistant."""
    turns = [
        {"role": ("user", "assistant")[number % 2], "content": text}
        for number, text in enumerate(texts)
    ]
    return [{"role": "system", "content": form.instructions}, *turns]
