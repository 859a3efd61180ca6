"""Which prompts the steps of a run play."""

from __future__ import annotations

from itertools import islice
from typing import Any

from air.train.loop.rollout import Source, prompts


def source(name: str, ratio: float, group_size: int, tasks: str) -> Source:
    """A source whose tasks are letters; nothing is played."""
    env: Any = None
    letters: Any = list(tasks)
    return Source(name, ratio, group_size, env, letters)


def drawn(sources: list[Source], steps: int, **more: int) -> list[list[tuple[str, str]]]:
    chosen: Any = islice(prompts(sources, 8, 7, **more), steps)
    return [[(one.name, task) for one, task in step] for step in chosen]


def test_a_source_gives_its_tasks_in_turn() -> None:
    assert drawn([source("a", 1.0, 4, "xyz")], 3) == [
        [("a", "x"), ("a", "y")],
        [("a", "z"), ("a", "x")],
        [("a", "y"), ("a", "z")],
    ]


def test_a_step_has_enough_episodes_and_sources_come_by_their_ratios() -> None:
    sources = [
        source("often", 9.0, 3, "xy"),
        source("never", 0.0, 1, "z"),
        source("b", 1.0, 1, "z"),
    ]
    steps = drawn(sources, 200)
    sizes = {"often": 3, "b": 1}
    for step in steps:
        episodes = [sizes[name] for name, _ in step]
        assert sum(episodes[:-1]) < 8 <= sum(episodes)
    names = [name for step in steps for name, _ in step]
    assert 0.85 < names.count("often") / len(names) < 0.95


def test_a_resumed_run_draws_what_it_would_have_drawn() -> None:
    sources = [source("a", 1.0, 2, "uvw"), source("b", 2.0, 4, "xy")]
    whole = drawn(sources, 9)
    assert drawn(sources, 4, after=5) == whole[5:]
    assert len({str(step) for step in whole}) > 3
