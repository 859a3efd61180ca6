"""Scripted players for the shop: functions that play an episode instead of a model, for tests and baselines.
A player maps an observation to an answer."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from air.worlds.questions.shop.goals import goal

Player = Callable[[str], str]
"""A function that returns the player's answer to an observation."""


def perfect(level: int | None, seed: int) -> Player:
    """Returns a player that plays the episode of `seed` perfectly: it buys the product from which the goal
    was generated, with the requested options. `level` is the level of the task (None: drawn from the
    seed)."""
    wanted = goal(level, seed)
    clicks = [wanted.product.asin, *wanted.options.values(), "buy now"]
    replies = iter([f"search[{wanted.product.title}]", *(f"click[{text}]" for text in clicks)])
    return lambda observation: next(replies)


def hasty(seed: int) -> Player:
    """Returns a player that searches for the kind of product that the instruction names, and buys one of the
    first ten results, chosen at random with `seed`, without reading its page."""
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
    """Returns a player that chooses one of the available actions at random, with `seed`. If it chooses a
    search, it searches for `black`."""
    draw = random.Random(seed)

    def reply(observation: str) -> str:
        offered = observation.rpartition("Available actions: ")[2].split(", ")
        return draw.choice(offered).replace("<content>", "black")

    return reply
