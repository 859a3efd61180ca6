"""Games as environments of gymnasium: its own checker, the world's episodes, the limit, and the text."""

from __future__ import annotations

import pytest

gymnasium = pytest.importorskip("gymnasium", reason="the extra `games` is not installed")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from air.worlds.games import SOURCE, game_kind  # noqa: E402
from air.worlds.games.gym import GameEnv  # noqa: E402
from air.worlds.games.players import SolverPlayer  # noqa: E402


@pytest.mark.parametrize("name", SOURCE.names())
def test_gymnasiums_checker_passes(name: str) -> None:
    env = gymnasium.make("air.worlds.games.gym:air/Game-v0", name=name, render_mode="ansi")
    check_env(env.unwrapped)


def test_an_episode_is_that_of_the_worlds_seed() -> None:
    env, game = GameEnv("sokoban6", render_mode="ansi"), game_kind("sokoban6").make()
    game.reset(7)
    grid, info = env.reset(seed=7)
    assert env.render() == game.text()
    assert grid.shape == (6, 6)
    assert info["shortest"] == game.shortest()
    total, ended = 0.0, False
    for move in SolverPlayer().moves(game):
        assert not ended
        grid, reward, ended, truncated, info = env.step(game.moves.index(move))
        game.step(move)
        assert grid.tolist() == game.grid()
        assert not truncated
        total += reward
    assert ended
    assert info["success"]
    shortest = game.shortest()
    assert shortest is not None
    assert total == pytest.approx(11 - 0.1 * shortest)


def test_the_limit_of_moves_truncates() -> None:
    env = GameEnv("sokoban6-total4")
    env.reset(seed=1)
    ends = [env.step(number % 2)[2:4] for number in range(4)]
    assert ends == [(False, False)] * 3 + [(False, True)]


def test_episodes_without_a_seed_are_drawn_by_the_environments_own_generator() -> None:
    def boards() -> list[str]:
        env = GameEnv("sokoban6", render_mode="ansi")
        env.reset(seed=3)
        shown = []
        for _ in range(4):
            env.reset()
            shown.append(str(env.render()))
        return shown

    assert boards() == boards()
    assert len(set(boards())) > 1
