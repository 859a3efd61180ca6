"""Adapts a game to the interface `World`, so that a language-model agent can play it: an action is one or
more moves, an observation shows the board, and episodes have limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from air.actions.base import Action
from air.worlds.base import Observation, Step
from air.worlds.games.game import Game

SEPARATOR = "||"
_QUOTED = 60
"""The maximum number of characters of an invalid move that the observation quotes."""

FACTS = {
    "success": "1 if the game was won, else 0",
    "num_actions": "moves that were played",
    "action_is_valid": "share of the moves that the rules allow",
    "action_is_effective": "share of the moves that changed the game",
    "penalty": "sum of the penalties for turns with an invalid move; part of the reward",
    "shortest": "moves of the shortest way to win from the start; not in Tetris",
}


@dataclass(frozen=True)
class Limits:
    """The limits of an episode. `turns` is the maximum number of turns."""

    turns: int
    per_turn: int
    """The maximum number of moves of one reply that are played. Further moves of the reply are ignored."""
    total: int
    """The maximum number of moves of an episode, after which it ends."""
    penalty: float = 0.1
    """Subtracted from the game's own rewards for each turn with an invalid move or without a move."""

    @property
    def most(self) -> int:
        """The maximum number of moves in an episode: the smaller of `total` and `turns` · `per_turn`."""
        return min(self.total, self.turns * self.per_turn)


class GameWorld:
    """A game as a world, that is, as an environment for an agent. It holds no resources, so calling `close`
    is optional."""

    def __init__(self, game: Game, limits: Limits) -> None:
        self.game = game
        self.limits = limits
        self._start()
        self._open = False
        self._was_reset = False

    def _start(self) -> None:
        self._played = self._asked = self._valid = self._effective = self._penalties = 0
        self._open = True

    async def reset(self, seed: int) -> Observation:
        """Starts the episode of a seed and returns the board as the first observation."""
        self.game.reset(seed)
        self._start()
        self._was_reset = True
        return Observation(self._board())

    async def step(self, action: Action) -> Step:
        """Plays the moves in `action.answer`, which `||` separates, and returns the board and the reward.
        After the end of the episode no move is played."""
        if not self._open:
            return Step(Observation("The episode has ended."), done=True)
        moves = [move for part in action.answer.split(SEPARATOR) if (move := part.strip())]
        reward, problems = self._play(moves[: self.limits.per_turn])
        if not moves:
            problems.append("your reply has no move")
        lines = [f"Reward: {round(reward, 9):g}"]
        if problems:
            self._penalties += 1
            lines += [f"Invalid: {problem}." for problem in problems]
        lines.append(self._board())
        self._open = not self.game.over and self._played < self.limits.total
        total = reward - (self.limits.penalty if problems else 0.0)
        return Step(Observation("\n".join(lines)), done=not self._open, reward=round(total, 9))

    def _play(self, moves: list[str]) -> tuple[float, list[str]]:
        """Plays moves until the episode ends. Returns the sum of their rewards, and a message about each
        invalid move."""
        reward, problems = 0.0, []
        for move in moves:
            outcome = self.game.step(move)
            self._asked += 1
            self._played += outcome.counted
            self._valid += outcome.valid
            self._effective += outcome.effective
            reward += outcome.reward
            if outcome.problem:
                problems.append(_one_line(outcome.problem))
            if self.game.over or self._played >= self.limits.total:
                break
        return reward, problems

    def _board(self) -> str:
        if self.game.over:
            return (
                f"{self.game.text()}\n{'You have won.' if self.game.won else 'The game is lost.'}"
            )
        return f"{self.game.text()}\nMoves left: {self.limits.total - self._played}"

    async def close(self) -> dict[str, Any]:
        """Ends the episode and returns its numbers by name (see `facts`); an empty dict if `reset` was never
        called."""
        self._open = False
        return dict(self.facts()) if self._was_reset else {}

    def facts(self) -> Mapping[str, float]:
        """Returns the facts of the episode so far: numbers by name, such as `success`. `FACTS` explains the
        names. `shortest`, the length of the shortest solution, is missing if the game cannot compute it."""
        asked = self._asked or 1
        facts = {
            "success": float(self.game.won),
            "num_actions": float(self._played),
            "action_is_valid": self._valid / asked,
            "action_is_effective": self._effective / asked,
            "penalty": -self._penalties * self.limits.penalty,
        }
        shortest = self.game.shortest()
        return facts if shortest is None else facts | {"shortest": float(shortest)}


def _one_line(problem: str) -> str:
    """Returns an error message, which may quote the model's text, as one short line of printable
    characters."""
    text = " ".join(problem[: 4 * _QUOTED].split())[:_QUOTED]
    return "".join(letter if letter.isprintable() else "?" for letter in text)
