"""Chooses the place for a Tetris piece: the one with the highest expected reward of the rest of the game.

This expected reward, called the value of a board, is exact under two assumptions: all kinds of pieces are
equally likely, and an episode has no maximum number of moves. There are at most 3,375 boards of 4 x 4 cells;
each value is computed once and cached.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import fmean

from air.worlds.games.tetris import Tetris
from air.worlds.games.tetris_board import LYING, Board, Cells, landings

_MOVE = 0.1
"""The cost of a move: the amount by which the game's reward decreases for each move."""


def best(game: Tetris) -> list[str]:
    """Returns the moves that bring the current piece to the place with the highest value: the expected reward
    of the rest of the game, minus the cost of the moves."""
    assert game.piece is not None
    places = landings(game.board, game.filled, game.piece, game.x, game.y)
    way = max(places, key=lambda way: _after(game.board, places[way]) - _MOVE * len(way))
    return list(way)


def _after(board: Board, settled: int) -> float:
    """Returns the expected reward of the rest of the game just after a piece has settled, before full rows
    are removed. `settled` are the settled cells, with the piece."""
    rest, rows = board.clear(settled)
    if rows:
        return 10.0 * rows
    return 0.0 if board.lost(rest) else _value(board, rest)


@lru_cache(maxsize=100_000)
def _value(board: Board, filled: int) -> float:
    """Returns the expected reward of the rest of the game before the next piece appears: the mean over the
    kinds of pieces. `filled` are the settled cells."""
    return fmean(_of_piece(board, filled, piece) for piece in board.pieces)


def _of_piece(board: Board, filled: int, piece: Cells) -> float:
    """Returns the expected reward of the rest of the game when `piece` appears: the mean, over the columns in
    which the piece can appear, of the expected reward with the best place for the piece. `filled` are the
    settled cells."""
    return fmean(
        max(
            _after(board, settled) - _MOVE * len(way)
            for way, settled in landings(board, filled, piece, column, 0).items()
        )
        for column in range(1 if piece is LYING else 0, board.size)
    )
