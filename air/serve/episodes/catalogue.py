"""The catalogue of an episode server (`air serve openenv` or `air serve ors`): the tasks that the server
offers, and a list of their episodes for each split."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from air.errors import UsageError
from air.serve.episodes.offered_tasks import Offer, WorldOffer
from air.serve.episodes.settings import EpisodesConfig
from air.worlds import sources


class Catalogue:
    """All tasks that an episode server (for OpenEnv and ORS clients) offers, in the order in which the
    server's settings name them."""

    def __init__(self, offers: Sequence[Offer], seeds: int) -> None:
        self.offers = {offer.id: offer for offer in offers}
        self._seeds = seeds

    splits = ("train", "validation")

    def count(self) -> int:
        """Returns the number of episodes in the list of a split (`train` or `validation`); both lists have
        the same length."""
        return len(self.offers) * self._seeds

    def entry(self, split: str, index: int) -> tuple[str, int]:
        """Returns the task id and the seed of the episode number `index` (from 0) in the list of a split
        (`train` or `validation`). The list goes through all tasks with the first seed, then through all tasks
        with the next seed, and so on.

        Raises UsageError if there is no such split or index.
        """
        if split not in self.splits:
            raise UsageError(f"there is no split {split!r}", remedy="known: train, validation")
        if not 0 <= index < self.count():
            raise UsageError(f"there is no index {index}", remedy=f"0 to {self.count() - 1}")
        seed, number = divmod(index, len(self.offers))
        first = sources.VALIDATION_SEED if split == "validation" else 0
        return list(self.offers)[number], first + seed

    def offer(self, task: str) -> Offer:
        """Returns the offered task with this id. Raises UsageError if the server does not offer it."""
        if task not in self.offers:
            raise UsageError(
                f"the server does not offer task {task!r}",
                remedy=f"offered: {', '.join(self.offers)}",
            )
        return self.offers[task]


@asynccontextmanager
async def catalogue(config: EpisodesConfig) -> AsyncIterator[Catalogue]:
    """Async context manager: loads the tasks that the settings name, opens their pools of boxes if they need
    boxes, and yields the catalogue.

    Raises UsageError if a task does not exist, or cannot run on this machine.
    """
    worlds = {name: sources.load(name) for name in config.tasks if sources.is_world(name)}
    boxed = [name for name in config.tasks if name not in worlds or worlds[name].in_boxes]
    offers: dict[str, Offer] = {
        name: WorldOffer(task, config.max_turns or task.max_turns, config.seconds or task.seconds)
        for name, task in worlds.items()
        if not task.in_boxes
    }
    async with AsyncExitStack() as stack:
        if boxed:
            from air.serve.episodes.research import offered

            offers |= await stack.enter_async_context(offered(config, boxed))
        yield Catalogue([offers[name] for name in config.tasks], config.seeds)
