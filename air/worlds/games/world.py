"""Makes a game playable for a language-model agent: `GameWorld` adapts a game to the interface `World`. An
action is one or more moves, an observation shows the board, and episodes have limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from air.actions.base import Action
from air.worlds.base import Observation, Step
from air.worlds.games.game import Game

SEPARATOR = "||"
_QUOTED = 60
"""The maximum number of characters of the message about an invalid move, which may quote the move."""

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
    """The limits of an episode of a game. `turns` is the maximum number of turns, that is, of the agent's
    replies."""

    turns: int
    per_turn: int
    """The maximum number of moves in one reply. If a reply has more, only the first ones are played."""
    total: int
    """The maximum number of moves of an episode, after which it ends."""
    penalty: float = 0.1
    """The amount that is subtracted from the reward of a turn if its reply has an invalid move or no move."""

    @property
    def most(self) -> int:
        """The maximum number of moves in an episode: the smaller of `total` and `turns` · `per_turn`."""
        return min(self.total, self.turns * self.per_turn)


class GameWorld:
    """A game as a world, that is, as an environment in which a language-model agent acts. It holds no
    resources, so calling `close` is optional."""

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
        """Plays the moves in `action.answer`, such as `Up || Left`, at most `limits.per_turn` of them.
        Returns the reward and an observation with the board. After the end of the episode no move is
        played."""
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
        """Plays moves in order until the episode ends. Returns the sum of the rewards that the game gives for
        them, without penalties, and a list with a message about each invalid move."""
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
        """Ends the episode and returns the facts of the episode: numbers by name, such as `success`. Returns
        an empty dict if `reset` was never called."""
        self._open = False
        return dict(self.facts()) if self._was_reset else {}

    def facts(self) -> Mapping[str, float]:
        """Returns numbers about the episode so far, by name, such as `success` (1 if the game was won).
        `FACTS` explains all names. `shortest`, the length of the shortest solution, is missing if the game
        cannot compute it."""
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
    """Makes an error message, which may quote the model's text, safe to show in an observation: returns its
    first 60 characters as one line, with `?` for each unprintable character."""
    text = " ".join(problem[: 4 * _QUOTED].split())[:_QUOTED]
    return "".join(letter if letter.isprintable() else "?" for letter in text)
