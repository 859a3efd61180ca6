"""Sokoban: push every box onto a target.

Rewards: -0.1 for each move, +1 for a box that is pushed onto a target, -1 for a box that is pushed off a
target, and +10 when all boxes are on targets, which ends the game.
"""

from __future__ import annotations

from air.worlds.games.game import Outcome
from air.worlds.games.sokoban_rooms import Rooms

SYMBOLS = {
    "#": "wall",
    "_": "empty floor",
    "O": "target",
    "√": "box on a target",
    "X": "box",
    "P": "you",
    "S": "you on a target",
}
_CODES = {symbol: code for code, symbol in enumerate("#_O√XPS")}
_BLOCKED = Outcome(-0.1, effective=False)
_WALKED = Outcome(-0.1, effective=True)


class Sokoban:
    """A game of Sokoban. `rooms` are the parameters of the generated rooms."""

    moves: tuple[str, ...] = ("Up", "Down", "Left", "Right")

    def __init__(self, rooms: Rooms) -> None:
        self.rooms = rooms
        self.won = False
        self.over = True
        self._shortest: int | None = 0
        line = rooms.columns + 1  # one more for the end of the line
        self._steps = {"up": -line, "down": line, "left": -1, "right": 1}

    def reset(self, seed: int) -> None:
        """Starts the episode that `seed` determines."""
        room = self.rooms.make(seed)
        self.load(room.text)
        self._shortest = room.shortest

    def load(self, text: str) -> None:
        """Starts an episode in the room that `text` shows, one line for each row, in the symbols of
        `SYMBOLS`."""
        self._cells = list(text)
        self._targets = frozenset(n for n, symbol in enumerate(text) if symbol in "OS√")
        self._player = next(n for n, symbol in enumerate(text) if symbol in "PS")
        self._off = text.count("X")
        self._shortest = None
        self.won = self.over = False

    def step(self, move: str) -> Outcome:
        """Carries out a move such as `Left`, and returns its result: the reward, and whether the move was
        valid and had an effect. Raises RuntimeError if the game is over or has not begun."""
        if self.over:
            raise RuntimeError("the game is over")
        step = self._steps.get(move.lower())
        if step is None:
            return Outcome(0.0, False, valid=False, counted=False, problem=f"no move: {move}")
        cells, here = self._cells, self._player
        there = here + step
        ahead = cells[there]
        if ahead == "#":
            return _BLOCKED
        outcome = _WALKED
        if ahead in "X√":
            if cells[there + step] not in "_O":
                return _BLOCKED
            outcome = self._push(there, there + step)
        cells[here] = "O" if here in self._targets else "_"
        cells[there] = "S" if there in self._targets else "P"
        self._player = there
        return outcome

    def _push(self, origin: int, place: int) -> Outcome:
        reward = -0.1
        if origin in self._targets:
            reward -= 1
            self._off += 1
        if place in self._targets:
            reward += 1
            self._off -= 1
        self._cells[place] = "√" if place in self._targets else "X"
        if not self._off:
            reward += 10
            self.won = self.over = True
        return Outcome(reward, effective=True)

    def text(self) -> str:
        """Returns the room as text, one line for each row, in the symbols of `SYMBOLS`."""
        return "".join(self._cells)

    def grid(self) -> list[list[int]]:
        """Returns the rows of the room as numbers: each symbol's index in `# _ O √ X P S`."""
        return [[_CODES[symbol] for symbol in row] for row in self.text().split("\n")]

    def shortest(self) -> int | None:
        """Returns the number of moves of the shortest solution from the start of the episode: 0 before the
        first `reset`, None after `load`."""
        return self._shortest
