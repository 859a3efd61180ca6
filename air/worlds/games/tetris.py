"""Tetris on a small board without gravity: a piece moves only when the player moves it, and cannot be
rotated.

A piece settles when it can move no further down after a move. Rewards: -0.1 for each move, +10 for each
full row. The first full row wins and ends the game. A piece that settles in the top row loses the game.
"""

from __future__ import annotations

import random
from functools import lru_cache

from air.worlds.games.game import Outcome
from air.worlds.games.tetris_board import LYING, STEPS, Board, Cells, Drawn, winnable

SYMBOLS = {"_": "empty", "#": "filled", "X": "the piece that you move"}
_EVENNESS = 5
"""The draw of pieces favours kinds that were drawn less often so far. The larger this number, the weaker that
preference, and the closer the draw is to uniform."""
_DRAWS = 1000
"""The maximum number of random sequences of pieces that are drawn in search of a winnable one."""
_SAMPLE, _LEAST = 200, 10
"""`problem` refuses a game if fewer than `_LEAST` of `_SAMPLE` random sequences of pieces can be won. So the
search for a winnable sequence, with at most `_DRAWS` draws, practically never fails."""
_STEPS = {move.lower(): step for move, step in STEPS.items()}


class Tetris:
    """A game of Tetris on a board with the parameters `board`. The pieces of each episode are drawn so that a
    player who knew all of them in advance could win in at most `most` moves (None: in any number)."""

    moves: tuple[str, ...] = ("Left", "Right", "Down")

    def __init__(self, board: Board, most: int | None = None) -> None:
        self.board = board
        self.most = board.longest if most is None else most
        self.won = False
        self.over = True

    def reset(self, seed: int) -> None:
        """Starts the episode that `seed` determines."""
        rng = random.Random(seed)
        self.filled = _first(self.board, rng)
        """The settled cells, as a bit set (see `tetris_board`)."""
        self.pieces = _draw(self.board, self.filled, self.most, rng)
        """The pieces to come, each with the column in which it appears. There are more than an episode can
        use."""
        self._next()
        self.won = self.over = False

    def _next(self) -> None:
        """Takes the first piece from `pieces` and puts it into the top row, as the piece that the player
        moves."""
        self.piece: Cells | None
        """The piece that the player moves; None when the game is over."""
        self.piece, self.x = self.pieces.pop(0)
        self.y = 0

    def step(self, move: str) -> Outcome:
        """Carries out a move such as `Left`, and returns its result: the reward, and whether the move was
        valid and had an effect. Raises RuntimeError if the game is over or has not begun."""
        if self.over:
            raise RuntimeError("the game is over")
        step = _STEPS.get(move.lower())
        if step is None:
            return Outcome(0.0, False, valid=False, counted=False, problem=f"no move: {move}")
        board, piece = self.board, self.piece
        assert piece is not None
        moved = board.free(piece, self.x + step[0], self.y + step[1], self.filled)
        if moved:
            self.x += step[0]
            self.y += step[1]
        if board.free(piece, self.x, self.y + 1, self.filled):
            return Outcome(-0.1, effective=moved)
        self.filled, rows = board.clear(self.filled | board.bits(piece, self.x, self.y))
        self.won = rows > 0
        self.over = self.won or board.lost(self.filled)
        self.piece = None
        if not self.over:
            self._next()
        return Outcome(-0.1 + 10 * rows, effective=True)

    def _symbols(self) -> str:
        size, filled = self.board.size, self.filled
        cells = ["#" if filled >> n & 1 else "_" for n in range(size * size)]
        if self.piece is not None:
            for right, below in self.piece:
                if self.y + below >= 0:
                    cells[(self.y + below) * size + self.x + right] = "X"
        return "".join(cells)

    def text(self) -> str:
        """Returns the board as text, one line for each row, in the symbols of `SYMBOLS`."""
        size, cells = self.board.size, self._symbols()
        return "\n".join(cells[n : n + size] for n in range(0, size * size, size))

    def grid(self) -> list[list[int]]:
        """Returns the rows of the board as numbers: 0 is empty, 1 is settled, 2 is the piece that the
        player moves."""
        return [["_#X".index(symbol) for symbol in row] for row in self.text().split("\n")]

    def shortest(self) -> int | None:
        """Returns None, because the shortest solution depends on future pieces, which the player cannot
        see."""
        return None


@lru_cache(maxsize=64)
def problem(board: Board, most: int) -> str:
    """Checks the limit that every game on `board` must be winnable in at most `most` moves. Returns "" if the
    limit is possible, else the reason why not, as a phrase. An episode draws random sequences of pieces until
    one can be won in so many moves. If too few can, this would often find none, so the limit is refused."""
    if most >= board.longest:
        return ""
    rng = random.Random(0)
    for filled in board.starts():
        sequences = [_sequence(board, rng) for _ in range(_SAMPLE)]
        if sum(winnable(board, filled, pieces, most) for pieces in sequences) < _LEAST:
            return f"too few games can be won in {most} moves"
    return ""


def _first(board: Board, rng: random.Random) -> int:
    """Returns the set of settled cells at the start of an episode, as a bit set: one of `board.starts()`,
    drawn with `rng`."""
    starts = board.starts()
    return starts[0] if board.gaps is None else starts[rng.randrange(len(starts))]


def _draw(board: Board, filled: int, most: int, rng: random.Random) -> list[Drawn]:
    """Draws a random sequence of pieces with which a game on `board` can be won in at most `most` moves, and
    returns it: each piece with the column in which it appears. `filled` is the set of settled cells at the
    start. Raises AssertionError if none of `_DRAWS` sequences can be won."""
    always = board.always_winnable and most >= board.longest
    for _ in range(_DRAWS):
        pieces = _sequence(board, rng)
        if always or winnable(board, filled, pieces, most):
            return pieces
    raise AssertionError("the source refuses boards for which `problem` gives a reason")


def _sequence(board: Board, rng: random.Random) -> list[Drawn]:
    counts = [0] * len(board.pieces)
    drawn = []
    for _ in range(board.size * board.size):
        weights = [_EVENNESS + max(counts) - count for count in counts]
        number = rng.choices(range(len(weights)), weights)[0]
        counts[number] += 1
        piece = board.pieces[number]
        drawn.append((piece, rng.randrange(1 if piece is LYING else 0, board.size)))
    return drawn
