"""Games as worlds: limits, rewards apart from penalties, feedback, facts; and names as tasks."""

from __future__ import annotations

import asyncio
import re

import pytest

from air.actions.base import Action
from air.errors import ConfigError, MissingError
from air.worlds.games import SOURCE, GameWorld
from air.worlds.games.players import RandomPlayer, SolverPlayer, play, reply
from air.worlds.games.sokoban import Sokoban
from air.worlds.sources import load


def world_of(name: str) -> GameWorld:
    world = SOURCE.load(name).world()
    assert isinstance(world, GameWorld)
    return world


async def solved_in(moves: int) -> tuple[GameWorld, str]:
    """A world in a room that takes `moves` moves, and these moves as an answer."""
    world = world_of("sokoban6")
    for seed in range(1000):
        await world.reset(seed)
        if world.game.shortest() == moves:
            return world, " || ".join(SolverPlayer().moves(world.game))
    raise AssertionError("no seed")


async def test_an_episode_of_two_replies() -> None:
    world, answer = await solved_in(7)
    first = await world.step(Action(answer=answer))  # of whose seven moves five are played
    assert not first.done
    lines = first.observation.text.split("\n")
    assert lines[0] == f"Reward: {first.reward:g}"
    assert lines[1] == "######"
    assert lines[-1] == "Moves left: 5"
    last = await world.step(reply(world, SolverPlayer()))
    assert last.done
    assert last.observation.text.endswith("You have won.")
    assert first.reward + last.reward == pytest.approx(11 - 0.7)
    assert await world.close() == {
        "success": 1.0,
        "num_actions": 7.0,
        "action_is_valid": 1.0,
        "action_is_effective": 1.0,
        "penalty": 0.0,
        "shortest": 7.0,
    }


async def test_an_invalid_move_costs_once_a_turn_and_is_told() -> None:
    world = world_of("sokoban6")
    await world.reset(0)
    step = await world.step(Action(answer="Jump || Up || fly"))
    lines = step.observation.text.split("\n")
    assert lines[0] == "Reward: -0.1"
    assert lines[1:3] == ["Invalid: no move: Jump.", "Invalid: no move: fly."]
    assert step.reward == -0.2
    assert world.facts()["penalty"] == -0.1
    assert world.facts()["num_actions"] == 1
    assert world.facts()["action_is_valid"] == pytest.approx(1 / 3)
    assert lines[-1] == "Moves left: 9"


@pytest.mark.parametrize(
    "action", [Action(answer=" || "), Action(script="ls"), Action(ending="submit")]
)
async def test_a_reply_without_a_move_costs_the_penalty(action: Action) -> None:
    world = world_of("tetris1")
    await world.reset(0)
    step = await world.step(action)
    assert step.reward == -0.1
    assert step.observation.text.startswith("Reward: 0\nInvalid: your reply has no move.\n")
    assert not step.done


async def test_illegal_moves_of_blocksworld_count() -> None:
    world = world_of("blocksworld-text")
    await world.reset(0)
    step = await world.step(Action(answer="(move 1 to 1) || nonsense"))
    assert step.reward == pytest.approx(-1 - 5 - 0.1)
    assert world.facts()["num_actions"] == 2
    assert step.observation.text.endswith("Moves left: 18")


async def test_long_nonsense_is_told_briefly() -> None:
    world = world_of("blocksworld-1d")
    await world.reset(0)
    step = await world.step(Action(answer="very long\n" * 1000))
    assert len(step.observation.text) < 200


async def test_the_last_move_ends_the_episode() -> None:
    world = world_of("sokoban8-turns3-moves4-total9")
    await world.reset(1)
    away = Action(answer="Up || Down || Up || Down || Up")
    dones = [(await world.step(away)).done for _ in range(3)]
    assert dones == [False, False, True]
    assert world.facts()["num_actions"] == 9
    after = await world.step(away)
    assert (after.done, after.reward) == (True, 0.0)
    assert world.facts()["num_actions"] == 9


async def test_nothing_is_played_before_reset_or_after_close() -> None:
    world = world_of("sokoban6")
    assert (await world.step(Action(answer="Up"))).done
    await world.reset(0)
    await world.close()
    assert (await world.step(Action(answer="Up"))).done
    assert (await world.close())["num_actions"] == 0


@pytest.mark.parametrize("name", SOURCE.names())
async def test_the_prompt_describes_what_is_shown(name: str) -> None:
    """Every symbol of a board is explained, every explained symbol comes, and the limits are the world's."""
    task = load(f"game:{name}")
    world = world_of(name)
    shown, sizes = set(), set()
    for seed in range(30):
        for player in (SolverPlayer(), RandomPlayer(seed)):
            await world.reset(seed)
            for _ in range(world.limits.total):
                if world.game.over:
                    break
                shown |= set(world.game.text())
                sizes.add(tuple(map(len, world.game.text().split("\n"))))
                for move in player.moves(world.game)[:1]:
                    world.game.step(move)
            shown |= set(world.game.text())
    legend = re.search(r"Symbols: (.*)\.\n", task.instructions)
    if legend is None:
        assert name.startswith("blocksworld")
        assert set("".join(shown)) & {"1", "2", "3"}
        assert "There are 3 blocks" in task.instructions
    else:
        assert {meaning[0] for meaning in legend[1].split(", ")} | {"\n"} == shown
        rows, columns = map(int, re.findall(r"(\d+) rows and (\d+) columns", task.instructions)[0])
        assert sizes == {(columns,) * rows}
    limits = world.limits
    assert f"up to {limits.per_turn} moves" in task.instructions
    assert f"{limits.total} moves in {limits.turns} replies" in task.instructions
    assert task.max_turns == limits.turns
    assert set(world.facts()) <= set(task.facts)


def test_limits_are_the_published_ones() -> None:
    limits = {name: world_of(name).limits for name in SOURCE.names()}
    for name, found in limits.items():
        family = re.match("[a-z]+", name)
        assert family is not None
        expected = {"sokoban": (6, 5, 10), "tetris": (11, 5, 40), "blocksworld": (11, 5, 20)}
        assert (found.turns, found.per_turn, found.total) == expected[family[0]]
        assert found.penalty == 0.1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sokoban4", "a room of 4 x 4 cells, walls included, has too few starts"),
        ("sokoban99", "4 to 12 rows"),
        (
            "sokoban6-level4",
            "level 4 needs 11 moves, and an episode has 10 moves (turns: 6, moves per turn: 5, total: 10)"
            " — set `-total20` or higher",
        ),
        ("sokoban6-level4-turns2", "set `-total20` and `-turns4` or higher"),
        ("sokoban6-level3-turns1", "level 3 needs 7 moves, and an episode has 5 moves (turns: 1"),
        ("sokoban6-boxes4-total3", "or set `-turns`, `-moves` or `-total` higher"),
        ("blocksworld-1d-level3-turns2-moves1", "level 3 needs 3 moves, and an episode has 2"),
        ("tetris1-turns1", "too few games can be won in 5 moves"),
        ("tetris1-level1-total2", "set `-total6` or higher"),
        ("sokoban6-level2-depth5", "exclude each other"),
        ("sokoban6-boxes9", "`boxes` must be from 1 to 4"),
        ("sokoban6-boxes1-boxes2", "named twice"),
        ("sokoban6-big", "malformed"),
        (
            "sokoban6-gaps3",
            "there is no option `gaps` — known: boxes, level, depth, turns, moves, total",
        ),
        ("tetris1-size9", "`size` must be from 3 to 4"),
        ("blocksworld-text-blocks9", "`blocks` must be from 2 to 4"),
    ],
)
def test_a_wrong_option_is_named(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^game:{name}: ") as error:
        SOURCE.load(name)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "name", ["", "chess", "tetris3", "blocksworld", "sokoban", "sokoban6x", "sokoban6 "]
)
def test_an_unknown_game_is_missing(name: str) -> None:
    with pytest.raises(MissingError, match="known: sokoban4x5"):
        SOURCE.load(name)


def test_the_prompt_names_the_moves_that_the_turns_allow() -> None:
    rules = SOURCE.load("sokoban6-turns4-moves1").instructions
    assert "One reply plays one move, and the game has 4 moves." in rules


def test_digests_tell_tasks_apart() -> None:
    names = [*SOURCE.names(), "sokoban6-level1", "sokoban6-total9", "sokoban6-boxes2"]
    assert len({SOURCE.load(name).digest for name in names}) == len(names)
    assert SOURCE.load("sokoban6").digest == SOURCE.load("sokoban6").digest


async def test_sixty_four_at_once_play_as_one_alone() -> None:
    worlds = [world_of("sokoban6") for _ in range(64)]
    returns = await asyncio.gather(*(play(w, RandomPlayer(n), n) for n, w in enumerate(worlds)))
    alone = [await play(worlds[0], RandomPlayer(n), n) for n in range(64)]
    assert returns == alone


async def test_a_room_that_cannot_be_solved_any_more_is_played_to_its_end() -> None:
    world = world_of("sokoban6")
    await world.reset(0)
    assert isinstance(world.game, Sokoban)
    world.game.load("######\n#X_PO#\n######\n######\n######\n######")
    total = 0.0
    for _ in range(6):
        step = await world.step(reply(world, SolverPlayer()))
        total += step.reward
    assert total == pytest.approx(-0.6)
    assert not world.game.won
