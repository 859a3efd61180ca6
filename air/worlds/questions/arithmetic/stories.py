"""Word problems of level 5, called stories: a quantity is changed by four to seven events in turn."""

from __future__ import annotations

import random

from air.worlds.questions.arithmetic.expressions import Expression, NotWhole, Operation, solve
from air.worlds.questions.arithmetic.templates import ITEMS, NAMES

_GREATEST = 20_000
_EVENTS: tuple[tuple[str, str, tuple[int, int]], ...] = (
    ("+", "Then {name} finds {n} more.", (3, 60)),
    ("+", "A friend brings {n} {item}.", (3, 60)),
    ("-", "{name} gives {n} of them to {other}.", (2, 50)),
    ("-", "{n} {item} get lost.", (1, 30)),
    ("*", "By trading, {name} multiplies the number of {item} by {n}.", (2, 4)),
    (
        "/",
        "{name} shares all {item} equally with some friends, {n} people in all, and keeps one share.",
        (2, 6),
    ),
)


def story(draw: random.Random) -> tuple[str, Expression, list[int]]:
    """Draws a story. Returns its text, its expression tree, and a list of numbers that identifies the story:
    the start value and, for each event, the event's index in `_EVENTS` and the number in its sentence."""
    name, other = draw.sample(NAMES, 2)
    item = draw.choice(ITEMS)
    start = draw.randint(10, 90)
    sentences = [f"{name} has {start} {item}."]
    expression: Expression = start
    numbers = [start]
    length = draw.randint(4, 7)
    while len(sentences) <= length:
        kind = draw.randrange(len(_EVENTS))
        sign, text, (least, greatest) = _EVENTS[kind]
        number = draw.randint(least, greatest)
        longer = Operation(sign, expression, number)
        try:
            value, _ = solve(longer)
        except NotWhole:
            continue
        if value > _GREATEST:
            continue
        expression = longer
        numbers += [kind, number]
        sentences.append(text.format(name=name, other=other, item=item, n=number))
    sentences.append(f"How many {item} does {name} have in the end?")
    return " ".join(sentences), expression, numbers
