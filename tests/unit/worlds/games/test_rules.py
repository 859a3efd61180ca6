"""The rules of each game: rewards worked out by hand, ends, and what is no move."""

from __future__ import annotations

import pytest

from air.worlds.games.blocksworld import Blocksworld
from air.worlds.games.game import Game
from air.worlds.games.sokoban import Sokoban
from air.worlds.games.sokoban_rooms import Rooms
from air.worlds.games.tetris import Tetris
from air.worlds.games.tetris_board import LYING, SQUARE, UPRIGHT, Board


def sokoban(*rows: str) -> Sokoban:
    game = Sokoban(Rooms(len(rows), len(rows[0]), 1, 1, 10))
    game.load("\n".join(rows))
    return game


def rewards(game: Game, *moves: str) -> list[float]:
    return [pytest.approx(game.step(move).reward) for move in moves]


def test_sokoban_pays_the_solving_push() -> None:
    game = sokoban("######", "#PX_O#", "######")
    assert rewards(game, "Right", "right") == [-0.1, 10.9]
    assert game.won
    assert game.over
    assert game.text() == "######\n#__P√#\n######"


def test_sokoban_pays_and_takes_back_single_boxes() -> None:
    game = sokoban("#######", "#PXO__#", "#__XO_#", "#######")
    assert rewards(game, "Right") == [0.9]
    assert game.text().split("\n")[1] == "#_P√__#"
    assert rewards(game, "Right") == [-1.1]
    assert game.text().split("\n")[1] == "#__SX_#"
    assert not game.over


def test_a_box_pushed_from_target_to_target_pays_nothing() -> None:
    game = sokoban("#######", "#P√O__#", "#__X__#", "#######")
    assert rewards(game, "Right") == [-0.1]


@pytest.mark.parametrize(
    ("row", "why"), [("#PX#__#", "a wall"), ("#PXX__#", "a box"), ("#P#X__#", "the player's wall")]
)
def test_a_blocked_move_costs_and_changes_nothing(row: str, why: str) -> None:
    game = sokoban("#######", row, "#____O#", "#######")
    before = game.text()
    outcome = game.step("Right")
    assert (outcome.reward, outcome.effective, outcome.valid) == (-0.1, False, True), why
    assert game.text() == before


def tetris(
    pieces: list[tuple[tuple[tuple[int, int], ...], int]], filled: int = 0, size: int = 4
) -> Tetris:
    game = Tetris(Board(size, 2))
    game.reset(0)
    game.filled = filled
    game.pieces = pieces[1:]
    game.piece, game.x = pieces[0]
    game.y = 0
    return game


def test_tetris_pays_a_row() -> None:
    game = tetris([(SQUARE, 3), (SQUARE, 0)], filled=0b0111 << 12)
    assert rewards(game, "Down", "Down", "Down") == [-0.1, -0.1, 9.9]
    assert game.won
    assert game.over
    assert game.text() == "____\n____\n____\n____"


def test_tetris_pays_two_rows_at_once() -> None:
    game = tetris([(UPRIGHT, 3)], filled=0b0111_0111 << 8)
    assert game.text() == "___X\n____\n###_\n###_"
    assert rewards(game, "Down", "Down", "Down") == [-0.1, -0.1, 19.9]


def test_a_piece_in_the_top_row_loses() -> None:
    game = tetris([(SQUARE, 1)], filled=0b0010_0010_0010)
    game.filled <<= 4
    outcome = game.step("Down")
    assert (outcome.reward, outcome.effective) == (-0.1, True)
    assert game.over
    assert not game.won


def test_a_piece_lies_still_only_after_a_move() -> None:
    """Beside a column that reaches the row below the top one, a piece can still go aside."""
    game = tetris([(SQUARE, 1), (SQUARE, 0)], filled=0b0010_0010_0010 << 4)
    assert rewards(game, "Right", "Down", "Down") == [-0.1, -0.1, -0.1]
    assert not game.over
    assert game.text() == "____\n_#__\n_#X_\n_#__"


def test_pieces_stay_on_the_board() -> None:
    game = tetris([(LYING, 1), (SQUARE, 0)])
    assert game.text().startswith("XX__")
    assert [game.step("Left").effective, game.step("Right").effective] == [False, True]
    assert game.text().startswith("_XX_")
    assert rewards(game, "Right", "Right") == [-0.1, -0.1]
    assert game.text().startswith("__XX")


def test_blocksworld_pays_as_it_says() -> None:
    game = Blocksworld()
    game.reset(0)
    game.state, game.goal = (0, 1, 0), (0, 3, 0)
    cases = {
        "jump": (-5, False),
        "move 1": (-5, False),
        "(move 1 to 0)": (-1, False),  # block 2 stands on it
        "(move 3 to 1)": (-1, False),  # block 2 stands there
        "(move 3 to 3)": (-1, False),
        "(move 4 to 0)": (-1, False),
        "(move 0 to 1)": (-1, False),
        "(move 2 to 5)": (-1, False),
        "(move 3 to 0)": (-1, True),
        "Move 2 to 0": (-1, True),
    }
    for move, (reward, valid) in cases.items():
        outcome = game.step(move)
        assert (outcome.reward, outcome.valid) == (reward, valid), move
        assert bool(outcome.problem) is not valid
    assert rewards(game, "(move 2 to 3)") == [10]
    assert game.won


def test_blocksworld_shows_state_and_goal() -> None:
    texts = {}
    for view in ("text", "1d", "2d"):
        game = Blocksworld(view)
        game.reset(0)
        game.state, game.goal = (3, 0, 2), (0, 0, 1)
        texts[view] = game.text()
    assert texts == {
        "text": "Now: Block 1 is on block 3. Block 2 is on the table. Block 3 is on block 2.\n"
        "Goal: Block 1 is on the table. Block 2 is on the table. Block 3 is on block 1.",
        "1d": "Now: [3, 0, 2]\nGoal: [0, 0, 1]",
        "2d": "Now:\n1 _ _\n3 _ _\n2 _ _\nGoal:\n3 _ _\n1 2 _",
    }


@pytest.mark.parametrize("game", [sokoban("#####", "#PXO#", "#####"), Tetris(Board())])
def test_a_word_that_is_no_move_changes_nothing(game: Game) -> None:
    if game.over:
        game.reset(0)
    before = game.text()
    outcome = game.step("Jump")
    assert (outcome.reward, outcome.valid, outcome.counted) == (0.0, False, False)
    assert game.text() == before


@pytest.mark.parametrize("game", [Sokoban(Rooms(6, 6, 1, 1, 10)), Tetris(Board()), Blocksworld()])
def test_no_move_before_the_start(game: Game) -> None:
    with pytest.raises(RuntimeError, match="over"):
        game.step(game.moves[0])
