"""Which prompts the steps of a run play."""

from __future__ import annotations

from typing import Any

from air.train.loop.rollout import Positions, Source, prompts


def source(name: str, ratio: float, group_size: int, tasks: str) -> Source:
    """A source whose tasks are letters; nothing is played."""
    env: Any = None
    letters: Any = list(tasks)
    return Source(name, ratio, group_size, env, letters)


def drawn(
    sources: list[Source], steps: range, positions: Positions | None = None
) -> list[list[tuple[str, str]]]:
    """The prompts of these steps, drawn from these positions on."""
    positions = positions or {}
    found: list[Any] = []
    for step in steps:
        batch, positions = prompts(sources, 8, 7, step, positions)
        found.append([(one.name, task) for one, task in batch])
    return found


def test_a_source_gives_its_tasks_in_turn() -> None:
    assert drawn([source("a", 1.0, 4, "xyz")], range(1, 4)) == [
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
    steps = drawn(sources, range(200))
    sizes = {"often": 3, "b": 1}
    for step in steps:
        episodes = [sizes[name] for name, _ in step]
        assert sum(episodes[:-1]) < 8 <= sum(episodes)
    names = [name for step in steps for name, _ in step]
    assert 0.85 < names.count("often") / len(names) < 0.95


def test_a_resumed_run_draws_what_it_would_have_drawn() -> None:
    sources = [source("a", 1.0, 2, "uvw"), source("b", 2.0, 4, "xy")]
    whole = drawn(sources, range(1, 10))
    positions: Positions = {}
    for step in range(1, 6):
        _, positions = prompts(sources, 8, 7, step, positions)
    assert drawn(sources, range(6, 10), positions) == whole[5:]
    assert len({str(step) for step in whole}) > 3


def test_a_source_goes_on_where_it_was_although_the_others_have_changed() -> None:
    _, positions = prompts([source("a", 1.0, 4, "xyz")], 8, 7, 1, {})
    more = [source("new", 1.0, 1, "n"), source("a", 1.0, 4, "xyz"), source("a", 1.0, 1, "k")]
    steps = drawn(more, range(2, 30), positions)
    firsts = {
        name: next(task for step in steps for one, task in step if one == "a" and task in letters)
        for name, letters in (("first a", "xyz"), ("second a", "k"))
    }
    assert firsts == {"first a": "z", "second a": "k"}
