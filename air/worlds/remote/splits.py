"""Checks that training and evaluation do not take tasks from the same split of a remote server."""

from __future__ import annotations

from collections.abc import Iterable

from air.worlds import sources
from air.worlds.remote.source import RemoteSource

_KINDS = ("openenv", "ors")


def check_splits(training: Iterable[str], evaluation: Iterable[str]) -> None:
    """Checks the task ids of a run for training and for evaluation. Raises ValueError if both take tasks from
    the same split of a remote server. In that case, evaluations would use tasks of the training, because the
    task is chosen by the seed modulo the number of tasks. Raises ConfigError if a remote task id is
    malformed.

    A task of OpenEnv without `split` is not checked, because its server chooses the task.
    """
    trained = [_split_of(task_id) for task_id in training]
    for task_id in evaluation:
        place = _split_of(task_id)
        if place is not None and place in trained:
            raise ValueError(
                f"orchestrator.eval plays {task_id}, but its split {place[-1]!r} is used in "
                "orchestrator.train, too: name another split of the server for evaluations, such as "
                "#split=validation"
            )


def _split_of(task_id: str) -> tuple[str, ...] | None:
    """Returns a tuple that identifies the server and the split from which a remote task takes its data (see
    `RemoteSource.split`); None if the task is not remote, or its settings name no split."""
    kind, _, name = task_id.partition(":")
    if kind not in _KINDS:
        return None
    source = sources.source(kind)
    assert isinstance(source, RemoteSource)
    return source.split(name)
