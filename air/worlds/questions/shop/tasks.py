"""Loads the task `shop`, in which an agent buys a product in a simulated shop."""

from __future__ import annotations

from air.worlds.questions.episodes import (
    BlockingEpisodeWorld,
    Name,
    answering,
    digest,
    source_digest,
)
from air.worlds.questions.shop.episode import (
    FACTS,
    INSTRUCTIONS,
    MOST_TURNS,
    PENALTY,
    ShopEpisode,
)
from air.worlds.questions.shop.goals import LEVELS
from air.worlds.questions.shop.players import perfect
from air.worlds.questions.threads import threads
from air.worlds.sources import WorldTask

TURNS = {"shop": MOST_TURNS}
"""The maximum number of turns in an episode, by the kind of task: only `shop`."""
FILES = ""
"""A description, for error messages, of the user's data that the task `shop` accepts. It is empty, because
`shop` accepts no data. The task `agentgym:webshop@URL` uses a real WebShop server."""
__all__ = ["FILES", "LEVELS", "TURNS", "load"]


def load(name: Name) -> WorldTask:
    """Returns the shop task with the parsed task id `name`, such as `question:shop-level2`."""
    return WorldTask(
        id=name.task_id,
        make=lambda: BlockingEpisodeWorld(lambda: ShopEpisode(name.level), threads),
        instructions=INSTRUCTIONS,
        digest=digest(source_digest(__file__), name.level),
        replays=True,
        max_turns=MOST_TURNS,
        format_penalty=PENALTY,
        facts=FACTS,
        player=lambda world, seed: answering(perfect(name.level, seed)),
    )
