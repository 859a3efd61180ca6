"""`make bench-worlds`: it plays remote worlds on servers of its own."""

from __future__ import annotations

import asyncio
import importlib
import itertools
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def remote() -> Any:
    return importlib.import_module("bench.worlds.remote")


@pytest.fixture
def bench(remote: Any) -> Any:
    return importlib.import_module("bench.worlds.__main__")


def test_remote_worlds_are_timed_with_episodes_at_once(
    bench: Any, remote: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with remote.serving(["agentgym"], 4) as ids:
        players = {"question:gsm8k": (bench.of_task, "question:gsm8k")}
        players["corridor"] = (remote.play, ids["agentgym"])
        rates = bench.time_worlds(players, 0.05, 1, 4)
    assert list(rates) == ["question:gsm8k", "corridor"]
    for row in rates.values():
        assert list(row) == ["1 at once", "4 at once"]
        assert min(row.values()) > 0
    assert "corridor" in capsys.readouterr().out


async def test_as_many_episodes_are_played_at_once_as_asked(bench: Any) -> None:
    """Each episode waits until all are under way, so fewer at once would never end."""
    under_way = asyncio.Barrier(4)

    async def play(name: str, seeds: Any) -> int:
        await under_way.wait()
        return 5

    async with asyncio.timeout(60):
        assert await bench.rate_at_once(play, "any", 0.0, itertools.count(), 4) > 0


def test_a_game_must_be_fast_alone_and_as_a_world(bench: Any) -> None:
    fast, slow = bench.AIM, bench.AIM - 1
    rates = {
        "quick": {"game": fast, "world, 1": fast, "world, 5": slow},
        "parsed": {"game": fast, "world, 1": slow, "world, 5": fast},
        "played": {"game": slow, "world, 1": fast, "world, 5": fast},
    }
    assert bench.too_slow(rates) == ["parsed (world, 1: 19,999)", "played (game: 19,999)"]


@pytest.mark.parametrize("name", ["rows", "posed"])
async def test_questions_of_a_file_are_played(name: str, bench: Any, tmp_path: Path) -> None:
    task_id = bench.files_of_rows(tmp_path)[name]
    assert await bench.of_task(task_id, itertools.count()) == 1


@pytest.mark.slow  # two servers that import everything
@pytest.mark.parametrize("kind", ["openenv", "ors"])
async def test_an_episode_is_played_on_a_server_of_air(kind: str, remote: Any) -> None:
    with remote.serving([kind], 1) as ids:
        assert await remote.play(ids[kind], itertools.count()) > 1


def test_a_server_that_does_not_start_says_why(remote: Any) -> None:
    message = r"(?s)the server of nothing did not start: .*nothing"
    with pytest.raises(SystemExit, match=message), remote.serving(["nothing"], 1):
        pass
