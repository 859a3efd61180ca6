"""Scripted players of the shop, for tests and baselines. Each maps an observation to an answer."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from air.worlds.questions.shop.goals import goal

Player = Callable[[str], str]
"""Returns the answer to an observation."""


def perfect(level: int | None, seed: int) -> Player:
    """Returns the player that buys what the goal of `seed` was made from, with the options it asks for."""
    wanted = goal(level, seed)
    clicks = [wanted.product.asin, *wanted.options.values(), "buy now"]
    replies = iter([f"search[{wanted.product.title}]", *(f"click[{text}]" for text in clicks)])
    return lambda observation: next(replies)


def hasty(seed: int) -> Player:
    """Returns the player that searches for the kind of thing that the instruction names, and buys any of the
    first ten results without looking at it."""
    draw = random.Random(seed)

    def reply(observation: str) -> str:
        if "[SEP] Search" in observation:
            name = re.search(r"I need a (.+?) that is", observation)
            assert name is not None
            return f"search[{name[1]}]"
        numbers = re.findall(r"click\[(b0[0-9a-z]+)\]", observation)
        return f"click[{draw.choice(numbers)}] || click[buy now]"

    return reply


def random_clicks(seed: int) -> Player:
    """Returns the player that takes any of the actions that the page offers; it searches for `black`."""
    draw = random.Random(seed)

    def reply(observation: str) -> str:
        offered = observation.rpartition("Available actions: ")[2].split(", ")
        return draw.choice(offered).replace("<content>", "black")

    return reply
