"""Defines the interface of games. A game is synchronous Python code that depends neither on language models
nor on limits of an episode.

`air.worlds.games.world` adapts a game to the interface of worlds, the environments for language-model agents.
`air.worlds.games.gym` adapts a game to a gymnasium environment.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple, Protocol

from air.worlds.sources import VALIDATION_SEED

_HELD_OUT_SHARE = 5
"""About one in this many instances of a game, such as its start positions, is held out for evaluation."""


class Outcome(NamedTuple):
    """The result of one move."""

    reward: float
    effective: bool
    """Whether the move changed the state of the game."""
    valid: bool = True
    """Whether the rules allow the move."""
    counted: bool = True
    """Whether the move counts towards the maximum number of moves of an episode."""
    problem: str = ""
    """The reason, in words for the player, why the move is not valid; empty if the move is valid."""


class Game(Protocol):
    """The interface of a game. `reset` starts an episode, which the seed determines completely. A game uses
    no global state, such as Python's global random generator."""

    moves: tuple[str, ...]
    """All moves, as a player writes them. Upper and lower case are equivalent."""
    won: bool
    over: bool
    """Whether the episode has ended, won or not. No further move is allowed then."""

    def reset(self, seed: int) -> None:
        """Starts the episode that `seed` determines."""
        ...

    def step(self, move: str) -> Outcome:
        """Carries out a move and returns its result: the reward, and whether the move was valid and had an
        effect. Raises RuntimeError if the game is over or has not begun."""
        ...

    def text(self) -> str:
        """Returns the state as text, as a player sees it."""
        ...

    def grid(self) -> list[list[int]]:
        """Returns the state as rows of integers from 0 to 9, for players that are not language models. The
        shape is the same in every episode."""
        ...

    def shortest(self) -> int | None:
        """Returns the number of moves of the shortest solution from the start of this episode; 0 before the
        first `reset`; None if the game cannot compute it."""
        ...


def evaluates(seed: int) -> bool:
    """Returns whether `seed` belongs to an evaluation episode, that is, is at least `VALIDATION_SEED`. The
    episodes of such seeds must use instances (such as start positions) that are held out from training."""
    return seed >= VALIDATION_SEED


def held_out(instance: str) -> bool:
    """Returns whether an instance of a game, such as a start position, may occur only in evaluation episodes.
    Otherwise it may occur only in training episodes. `instance` is a string that identifies it, such as the
    board as text. The answer depends only on this string, so training and evaluation never share an
    instance."""
    return zlib.crc32(instance.encode()) % _HELD_OUT_SHARE == 0
