"""Generates solvable Sokoban rooms: a random floor plan, searched backwards from the solved room.

The backward search is breadth-first, so it knows for every visited state the exact number of moves of the
shortest solution. The start is drawn from the states whose number of moves is in the wanted range. The
numbers of floor plans and of visited states are limited. If no plan has a suitable start, the room without
inner walls is used; `Rooms.problem` checks beforehand whether this room has a suitable start.

A cell is a number: row times width plus column. A state is an integer: its lowest 8 bits are the player's
cell, and bit 8 + c is set if there is a box on cell c.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from air.worlds.games.game import evaluates, held_out

_MASKS = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)
"""The shapes of floor that the random walk of `floor_plan` clears, one at each step. A shape is a tuple of
offsets of rows and columns from the walk's cell."""
_TURN = 0.35
"""The probability that the random walk of `floor_plan` draws a new direction before a step."""
_PLANS = 50
"""The maximum number of floor plans that are tried for one seed."""
_STATES = 60_000
"""The maximum number of states that one backward search visits."""
_PLAYER = 0xFF


@dataclass(frozen=True)
class Room:
    """A room at the start of an episode."""

    text: str
    """The rows of the room, in Sokoban's symbols."""
    shortest: int
    """The number of moves of the room's shortest solution."""


@dataclass(frozen=True)
class Rooms:
    """The parameters of generated rooms: size in cells (with the outer walls), number of boxes, and range of
    the shortest solution's length in moves."""

    rows: int
    columns: int
    boxes: int
    least: int
    """The smallest number of moves of a room's shortest solution."""
    most: int

    def make(self, seed: int) -> Room:
        """Returns the room that `seed` determines."""
        return _make(self, seed)

    def problem(self) -> str:
        """Checks these parameters. Returns the reason, as a phrase, why they are refused; empty if they are
        accepted. They are refused if a room without inner walls has no suitable start for training seeds, or
        none for evaluation seeds, because this room is used if no random one is suitable."""
        if all(open_room(self, side) for side in (False, True)):
            return ""
        return (
            f"a room of {self.rows} x {self.columns} cells, walls included, has too few starts with"
            f" {self.boxes} boxes that take {self.least} to {self.most} moves"
        )


@lru_cache(maxsize=4096)  # the episodes of a group have the same seed
def _make(rooms: Rooms, seed: int) -> Room:
    rng = random.Random(seed)
    side = evaluates(seed)
    for _ in range(_PLANS):
        floor = floor_plan(rng, rooms.rows, rooms.columns)
        if len(floor) < 2 * rooms.boxes + 1:
            continue
        targets = rng.sample(floor, rooms.boxes)
        starts = _starts(rooms, floor, targets)
        for _ in range(min(len(starts), 50)):
            state, moves = starts[rng.randrange(len(starts))]
            text = _text(rooms, floor, targets, state)
            if held_out(text) == side:
                return Room(text, moves)
    room = open_room(rooms, side)
    assert room is not None, "the source refuses rooms of which the open one has no start"
    return room


@lru_cache(maxsize=256)
def open_room(rooms: Rooms, side: bool) -> Room | None:
    """Returns a room without inner walls that satisfies the parameters `rooms`; None if there is no such
    room. If `side` is true, the room is one that is held out for evaluation, else a room for training."""
    inside = itertools.product(range(1, rooms.rows - 1), range(1, rooms.columns - 1))
    floor = [row * rooms.columns + column for row, column in inside]
    for targets in itertools.combinations(floor, rooms.boxes):
        for state, moves in _starts(rooms, floor, list(targets)):
            text = _text(rooms, floor, list(targets), state)
            if held_out(text) == side:
                return Room(text, moves)
    return None


def floor_plan(rng: random.Random, rows: int, columns: int) -> list[int]:
    """Returns the floor cells of a random room with `rows` rows and `columns` columns, in ascending order:
    the cells that a random walk has cleared. The outermost rows and columns stay walls."""
    floor = set()
    directions = ((1, 0), (0, 1), (-1, 0), (0, -1))
    down, right = rng.choice(directions)
    row, column = rng.randint(1, rows - 2), rng.randint(1, columns - 2)
    for _ in range(int(1.7 * (rows + columns))):
        if rng.random() < _TURN:
            down, right = rng.choice(directions)
        row = min(max(row + down, 1), rows - 2)
        column = min(max(column + right, 1), columns - 2)
        for below, beside in rng.choice(_MASKS):
            if 0 < row + below < rows - 1 and 0 < column + beside < columns - 1:
                floor.add((row + below) * columns + column + beside)
    return sorted(floor)


def _starts(rooms: Rooms, floor: list[int], targets: list[int]) -> list[tuple[int, int]]:
    """Returns the suitable start states for the cells `floor` and the target cells `targets`, as pairs
    (state, number of moves of its shortest solution). A state is suitable if no box is on a target, and if
    this number is between `rooms.least` and `rooms.most`."""
    solved = sum(1 << cell for cell in targets)
    return [
        (state, moves)
        for moves, states in enumerate(reverse_play(floor, targets, rooms.columns, rooms.most))
        if moves >= rooms.least
        for state in states
        if not (state >> 8) & solved
    ]


def reverse_play(
    floor: list[int], targets: list[int], columns: int, most: int
) -> Iterator[list[int]]:
    """Searches backwards from the solved states of a room. Yields, for n = 0, 1, … `most`, the list of states
    whose shortest solution has n moves. Each state appears once. Ends earlier if there are no further states,
    or if more than `_STATES` were visited. `floor` has the cells without a wall, `targets` those on which the
    boxes must stand, and `columns` is the width of the room."""
    cells = set(floor)
    solved = sum(1 << cell for cell in targets)
    layer = [solved << 8 | cell for cell in floor if not solved >> cell & 1]
    seen = set(layer)
    for _ in range(most + 1):
        if not layer:
            return
        yield layer
        if len(seen) > _STATES:
            return
        before: list[int] = []
        for state in layer:
            player, boxes = state & _PLAYER, state >> 8
            for step in (-columns, columns, -1, 1):
                origin = player - step
                if origin not in cells or boxes >> origin & 1:
                    continue
                walked = boxes << 8 | origin
                if walked not in seen:
                    seen.add(walked)
                    before.append(walked)
                if (
                    boxes >> (player + step) & 1
                ):  # the step may have pushed this box off the player's cell
                    pushed = (boxes ^ (1 << player + step) ^ (1 << player)) << 8 | origin
                    if pushed not in seen:
                        seen.add(pushed)
                        before.append(pushed)
        layer = before


def _text(rooms: Rooms, floor: list[int], targets: list[int], state: int) -> str:
    cells = ["#"] * (rooms.rows * rooms.columns)
    for cell in floor:
        cells[cell] = "X" if state >> 8 >> cell & 1 else "_"
    for cell in targets:
        cells[cell] = "O"
    player = state & _PLAYER
    cells[player] = "S" if cells[player] == "O" else "P"
    return "\n".join(
        "".join(cells[start : start + rooms.columns])
        for start in range(0, len(cells), rooms.columns)
    )
