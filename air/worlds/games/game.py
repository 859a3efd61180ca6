"""The interface of games: an episode as plain synchronous Python, without text of a model and without limits.

`air.worlds.games.world` makes a world of a game, and `air.worlds.games.gym` makes a gymnasium environment.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple, Protocol

from air.worlds.sources import VALIDATION_SEED

_HELD_OUT_SHARE = 5
"""One of this many instances is held out for evaluation."""


class Outcome(NamedTuple):
    """The result of one move."""

    reward: float
    effective: bool
    """Whether the move changed the state of the game."""
    valid: bool = True
    """Whether the rules allow the move."""
    counted: bool = True
    """Whether the move uses up one of the episode's moves."""
    problem: str = ""
    """The reason, in words for the player, why the move is not valid; empty if the move is valid."""


class Game(Protocol):
    """The interface of a game. `reset` starts an episode, which only the seed decides. No state is global."""

    moves: tuple[str, ...]
    """All moves, as a player writes them. The letters' case does not matter."""
    won: bool
    over: bool
    """Whether the episode has ended, by a win or otherwise. No move may follow."""

    def reset(self, seed: int) -> None:
        """Starts the episode that `seed` determines."""
        ...

    def step(self, move: str) -> Outcome:
        """Carries out a move. Raises RuntimeError if the game is over or has not begun."""
        ...

    def text(self) -> str:
        """Returns the state as text, as a player sees it."""
        ...

    def grid(self) -> list[list[int]]:
        """Returns the state as rows of whole numbers from 0 to 9, for players that are not language models.
        The shape is the same in every episode."""
        ...

    def shortest(self) -> int | None:
        """Returns the number of moves of the shortest solution from the start of this episode; 0 before the
        start; None if the game cannot know it."""
        ...


def evaluates(seed: int) -> bool:
    """Returns whether `seed` is a seed for evaluation, whose instance must be a held-out one."""
    return seed >= VALIDATION_SEED


def held_out(instance: str) -> bool:
    """Returns whether an instance, such as the text of a board, is held out. The answer depends on the
    instance alone, so an instance that a training seed draws is never used in an evaluation."""
    return zlib.crc32(instance.encode()) % _HELD_OUT_SHARE == 0
