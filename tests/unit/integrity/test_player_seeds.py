"""The seed that an agent's code can read in a grader does not determine the hidden games."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from air import paths, tasks
from air.tasks.splits import SPLIT_SEED
from tests import once
from tests.unit.tasks.shipped.programs import grade

pytestmark = pytest.mark.slow

SEED = 7
GAMES = [("val", SPLIT_SEED), ("test", SPLIT_SEED), ("val", 5)]
"""The part of the hidden data, and the secret seed from which it is drawn."""
LOADS = 100
"""More than any grader loads an artefact in one grading."""
READS_ITS_SEED = f"""import random
known = [random.Random({SEED} + load).getstate() for load in range({LOADS})]
if random.getstate() not in known: raise RuntimeError("the seed is none that everyone knows")
"""
PLAYERS = {
    "battleOfSexes": ("strategy.py", "def move(mine, theirs): return 0"),
    "blotto": ("strategy.py", "def allocate(mine, theirs): return [17, 13, 12, 9, 6, 3]"),
    "cartPole": ("policy.py", "def act(observation): return 0"),
    "gridMaze": ("policy.py", "def act(observation): return random.randrange(4)"),
    "prisonersDilemma": ("strategy.py", "def move(mine, theirs): return 0"),
    "satHeuristic": ("heuristic.py", "def choose(rows): return max(rows, key=sum)[0]"),
}
"""For each task whose grader draws its hidden games from a seed: the artefact's name, and a simple player."""


@pytest.fixture(scope="module", autouse=True)
def _shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Data is prepared once in a test run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIR_CACHE", str(once.cache(tmp_path_factory)))
        yield


def test_every_task_that_draws_games_from_a_seed_is_tested() -> None:
    seeds = re.compile(r'DATA / "\w+\.json"\)\.read_text\(\)\)\[split\]')
    names = set()
    for file in paths.shipped("tasks").glob("[!_]*/grader/grade.py"):
        programs = (file, *tasks.load(file.parents[1].name).shared)
        if any(seeds.search(program.read_text()) for program in programs):
            names.add(file.parents[1].name)
    assert names == set(PLAYERS)


@pytest.mark.parametrize("name", PLAYERS)
def test_equal_seeds_of_the_player_meet_other_games_with_another_secret(
    name: str, tmp_path: Path
) -> None:
    """The player draws the same random numbers in all of them."""
    file, player = PLAYERS[name]
    (tmp_path / file).write_text(f"{READS_ITS_SEED}\n{player}\n")
    games = [
        grade(tasks.load(name), tmp_path, split, SEED, split_seed=secret) for split, secret in GAMES
    ]
    assert all("metrics" in one for one in games), games
    assert len({str(one["metrics"]) for one in games}) == len(games), games
