"""The catalogue of an episode server (`air serve openenv` or `air serve ors`): the tasks that the server
offers, and for each split (`train` and `validation`) a list of episodes of these tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from air.errors import UsageError
from air.serve.episodes.offered_tasks import OfferedTask, OfferedWorld
from air.serve.episodes.settings import EpisodesConfig
from air.worlds import sources


class Catalogue:
    """All tasks that an episode server (`air serve openenv` or `air serve ors`) offers, in the order in which
    the server's settings name them. There are two splits, `train` and `validation`; each contains `seeds`
    episodes of each task."""

    def __init__(self, tasks: Sequence[OfferedTask], seeds: int) -> None:
        self.tasks = {task.id: task for task in tasks}
        self._seeds = seeds

    splits = ("train", "validation")

    def count(self) -> int:
        """Returns the number of episodes in one split. The splits `train` and `validation` have equally
        many."""
        return len(self.tasks) * self._seeds

    def entry(self, split: str, index: int) -> tuple[str, int]:
        """Returns the task id and the random seed of the episode at `index` (from 0) in a split (`train` or
        `validation`). The episodes of a split are sorted by seed: all tasks with the first seed, then all
        tasks with the next seed, and so on.

        Raises UsageError if there is no such split or index.
        """
        if split not in self.splits:
            raise UsageError(f"there is no split {split!r}", remedy="known: train, validation")
        if not 0 <= index < self.count():
            raise UsageError(f"there is no index {index}", remedy=f"0 to {self.count() - 1}")
        seed, number = divmod(index, len(self.tasks))
        first = sources.VALIDATION_SEED if split == "validation" else 0
        return list(self.tasks)[number], first + seed

    def task(self, task_id: str) -> OfferedTask:
        """Returns the task with this id. Raises UsageError if the server does not offer this task."""
        if task_id not in self.tasks:
            raise UsageError(
                f"the server does not offer task {task_id!r}",
                remedy=f"offered: {', '.join(self.tasks)}",
            )
        return self.tasks[task_id]


@asynccontextmanager
async def catalogue(config: EpisodesConfig) -> AsyncIterator[Catalogue]:
    """Async context manager: loads the tasks that the settings name, and yields them as a `Catalogue`. If
    tasks run in boxes (containers or processes), a pool of boxes is open during the block.

    Raises UsageError if a task does not exist, or cannot run on this machine.
    """
    worlds = {name: sources.load(name) for name in config.tasks if sources.is_world(name)}
    boxed = [name for name in config.tasks if name not in worlds or worlds[name].in_boxes]
    tasks: dict[str, OfferedTask] = {
        name: OfferedWorld(task, config.max_turns or task.max_turns, config.seconds or task.seconds)
        for name, task in worlds.items()
        if not task.in_boxes
    }
    async with AsyncExitStack() as stack:
        if boxed:
            from air.serve.episodes.research import open_tasks

            tasks |= await stack.enter_async_context(open_tasks(config, boxed))
        yield Catalogue([tasks[name] for name in config.tasks], config.seeds)
