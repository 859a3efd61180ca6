"""The boards and pieces of Tetris, and the places where a piece can settle.

A cell is a pair (x, y) with x from the left and y from the top. A set of settled cells is an integer used
as a bit set: bit y * size + x is set if the cell (x, y) is settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

Cells = tuple[tuple[int, int], ...]

SQUARE: Cells = ((0, 0),)
UPRIGHT: Cells = ((0, 0), (0, -1))
"""Two cells, one above the other. When the piece appears, only its lower cell is on the board."""
LYING: Cells = ((0, 0), (-1, 0))
"""Two cells, side by side. The position of the piece is that of its right cell."""
PIECES: dict[int, tuple[Cells, ...]] = {1: (SQUARE,), 2: (UPRIGHT, LYING)}
"""The pieces, as tuples of cells, that can occur in a game, by the game's `Board.kind`."""
_LONGEST = {
    (3, 1): (4, 7, 9),
    (3, 2): (4, 7, 9),
    (4, 1): (6, 11, 15, 18),
    (4, 2): (9, 11, 15, 20),
}
"""The values of `Board.longest`, by the board's size and kind. Each tuple has one value for each number of
gaps in the lowest row, from 1 gap on, and at the end the value for the empty board. A test verifies the
values by trying all sequences of pieces."""
STEPS = {"Down": (0, 1), "Left": (-1, 0), "Right": (1, 0)}
"""How each move shifts a piece: the numbers of columns to the right and of rows down."""


@dataclass(frozen=True)
class Board:
    """The parameters of a game of Tetris: the board's size, the kind of pieces, and the settled cells at
    the start."""

    size: int = 4
    """The number of rows, and also of columns."""
    kind: int = 1
    """1: pieces of one cell. 2: pieces of two cells, upright or lying."""
    gaps: int | None = None
    """The number of empty cells in the lowest row at the start; None: the whole board is empty."""

    @property
    def pieces(self) -> tuple[Cells, ...]:
        """The kinds of pieces of this game."""
        return PIECES[self.kind]

    @property
    def always_winnable(self) -> bool:
        """Whether the game can be won with every sequence of its pieces. A test proves this by trying all
        sequences."""
        return self.size > 3 or self.kind == 1

    @property
    def longest(self) -> int:
        """The largest number of moves that a game can need. Every sequence of pieces with which the game can
        be won at all can be won in so many moves by a player who knows the sequence in advance."""
        return _LONGEST[self.size, self.kind][self.gaps - 1 if self.gaps else -1]

    def starts(self) -> list[int]:
        """Returns the possible sets of settled cells at the start of an episode: only the empty set or, if
        `gaps` is set, the lowest row except for `gaps` adjacent cells, for each place of these cells."""
        if self.gaps is None:
            return [0]
        row, gaps = (1 << self.size) - 1, (1 << self.gaps) - 1
        lowest = (self.size - 1) * self.size
        return [(row ^ gaps << n) << lowest for n in range(self.size - self.gaps + 1)]

    def free(self, cells: Cells, x: int, y: int, filled: int) -> bool:
        """Returns whether the piece `cells` fits at the position (x, y): every cell of the piece is inside
        the side walls, above the floor, and not in `filled`, the settled cells. Cells above the board are
        allowed."""
        for right, below in cells:
            column, row = x + right, y + below
            if not 0 <= column < self.size or row >= self.size:
                return False
            if row >= 0 and filled >> (row * self.size + column) & 1:
                return False
        return True

    def bits(self, cells: Cells, x: int, y: int) -> int:
        """Returns the cells of the board that the piece `cells` covers at the position (x, y), as a bit set.
        Cells above the board are left out."""
        return sum(
            1 << (y + below) * self.size + x + right for right, below in cells if y + below >= 0
        )

    def lost(self, filled: int) -> bool:
        """Returns whether a cell of the top row is settled, so that the game is lost."""
        return filled & ((1 << self.size) - 1) != 0

    def clear(self, filled: int) -> tuple[int, int]:
        """Removes the full rows from `filled`, the settled cells. Returns the settled cells afterwards, in
        which the rows above have moved down, and the number of full rows."""
        full = (1 << self.size) - 1
        rows = [filled >> row * self.size & full for row in range(self.size)]
        rest = [row for row in rows if row != full]
        gone = self.size - len(rest)
        return sum(row << (gone + n) * self.size for n, row in enumerate(rest)), gone


Way = tuple[str, ...]
"""A sequence of moves after which a piece settles."""
Drawn = tuple[Cells, int]
"""A piece, and the column in which it appears."""


def landings(board: Board, filled: int, piece: Cells, x: int, y: int) -> dict[Way, int]:
    """Returns the places where the piece `piece`, which is now at the position (x, y), can settle on `board`.
    `filled` is the set of settled cells. In the result, each key is a shortest sequence of moves to a place.
    Its value is the set of settled cells afterwards, with the cells of the piece and of any full rows."""
    ways: dict[tuple[int, int], Way] = {(x, y): ()}
    todo = [(x, y)]
    places: dict[int, Way] = {}
    for here in todo:
        for move, (right, below) in STEPS.items():
            place = here[0] + right, here[1] + below
            if not board.free(piece, *place, filled):
                place = here
            way = (*ways[here], move)
            if not board.free(piece, place[0], place[1] + 1, filled):
                places.setdefault(filled | board.bits(piece, *place), way)
            elif place not in ways:
                ways[place] = way
                todo.append(place)
    return {way: settled for settled, way in places.items()}


def winnable(board: Board, filled: int, pieces: Sequence[Drawn], most: int) -> bool:
    """Returns whether a player who knows the whole sequence `pieces` in advance can fill a row of `board` in
    at most `most` moves. `filled` is the set of settled cells at the start."""
    boards = {filled: 0}  # the fewest moves to each set of settled cells
    for piece, column in pieces:
        after: dict[int, int] = {}
        for settled, before in boards.items():
            for place, more in settlings(board, settled, piece, column):
                moves = before + more
                if moves > most:
                    continue
                rest, rows = board.clear(place)
                if rows:
                    return True
                if not board.lost(rest):
                    after[rest] = min(moves, after.get(rest, moves))
        boards = after
    return False


@lru_cache(maxsize=100_000)
def settlings(board: Board, filled: int, piece: Cells, column: int) -> tuple[tuple[int, int], ...]:
    """Returns the places where the piece `piece`, which appears in the column `column` of `board`, can
    settle. `filled` is the set of settled cells. The result has one pair for each place: the set of settled
    cells afterwards, and the fewest moves to the place."""
    ways = landings(board, filled, piece, column, 0)
    return tuple((settled, len(way)) for way, settled in ways.items())
