"""The interface of games: an episode as plain synchronous Python, without text of a model and without limits.

`air.worlds.games.world` makes a world of a game, and `air.worlds.games.gym` makes a gymnasium environment.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple, Protocol

from air.worlds.sources import VALIDATION_SEED

_HELD_OUT_SHARE = 5
"""One instance of this many is held out."""


class Outcome(NamedTuple):
    """The result of one move."""

    reward: float
    effective: bool
    """Whether the move changed the state of the game."""
    valid: bool = True
    """Whether the move is one that the rules allow."""
    counted: bool = True
    """Whether the move uses up one of the episode's moves."""
    problem: str = ""
    """Why the move is not valid, in words for the player; empty if it is."""


class Game(Protocol):
    """One game. `reset` starts an episode, which the seed decides alone. A game has no global state."""

    moves: tuple[str, ...]
    """All moves, as a player writes them. The letters' case does not matter."""
    won: bool
    over: bool
    """Whether the episode has ended, won or not. No move may follow."""

    def reset(self, seed: int) -> None:
        """Starts the episode of a seed."""
        ...

    def step(self, move: str) -> Outcome:
        """Carries out a move. Raises RuntimeError if the game is over or has not begun."""
        ...

    def text(self) -> str:
        """Returns the state as text, as a player sees it."""
        ...

    def grid(self) -> list[list[int]]:
        """Returns the state as rows of small whole numbers from 0 to 9, for players that are no language
        models. The shape is the same in every episode."""
        ...

    def shortest(self) -> int | None:
        """Returns the number of moves of the shortest way to win this episode from its start, 0 before
        the start; None if the game never knows."""
        ...


def evaluates(seed: int) -> bool:
    """Returns whether the episode of a seed evaluates, so that its instance must be a held-out one."""
    return seed >= VALIDATION_SEED


def held_out(instance: str) -> bool:
    """Returns whether an instance, such as the text of a board, belongs to the held-out ones. The answer
    depends on nothing else, so that an instance that a training seed draws is never evaluated on."""
    return zlib.crc32(instance.encode()) % _HELD_OUT_SHARE == 0
