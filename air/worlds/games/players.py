"""Scripted players of games: `RandomPlayer` draws its moves at random, and `SolverPlayer` plays well.

The two players see only what an agent sees, not future pieces of Tetris. They generate demonstrations, and
the sums of their rewards are baselines for trained agents.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from air.actions.base import Action
from air.worlds.base import World
from air.worlds.games import sokoban_solver, tetris_solver
from air.worlds.games.blocksworld import Blocksworld, distances, moved, neighbours
from air.worlds.games.game import Game
from air.worlds.games.sokoban import Sokoban
from air.worlds.games.tetris import Tetris
from air.worlds.games.world import SEPARATOR, GameWorld


class Player(Protocol):
    """The interface of a scripted player, which plays games instead of a model."""

    def moves(self, game: Game) -> list[str]:
        """Returns the player's next moves in `game`, at least one, as strings that `game.step` accepts. The
        game must not be over, and is not changed."""
        ...


class RandomPlayer:
    """A scripted player that draws each move uniformly from all moves of the game, as a baseline."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def moves(self, game: Game) -> list[str]:
        """Returns a list with one move, drawn uniformly from all moves of `game`."""
        return [self._rng.choice(game.moves)]


class SolverPlayer:
    """A player that plays well. In Sokoban and Blocksworld it follows the shortest solution; in Tetris it
    puts each piece at the place with the highest expected reward. If a Sokoban room can no longer be solved,
    it plays the first move in `game.moves`."""

    def moves(self, game: Game) -> list[str]:
        """Returns all moves up to the end of the game or, in Tetris, up to the point at which the current
        piece settles. If a Sokoban room can no longer be solved, returns one move. Raises TypeError for
        another game."""
        for kind, plan in _PLANS.items():
            if isinstance(game, kind):
                return plan(game) or [game.moves[0]]
        raise TypeError(f"there is no plan for {type(game).__name__}")


def _sokoban(game: Game) -> list[str] | None:
    return sokoban_solver.solve(game.text())


def _tetris(game: Game) -> list[str] | None:
    assert isinstance(game, Tetris)
    return tetris_solver.best(game)


def _blocksworld(game: Game) -> list[str] | None:
    assert isinstance(game, Blocksworld)
    state, plan = game.state, []
    left = distances(game.goal)
    while state != game.goal:
        after = min(neighbours(state), key=left.__getitem__)
        block = next(n for n, (a, b) in enumerate(zip(state, after, strict=True), 1) if a != b)
        plan.append(f"(move {block} to {after[block - 1]})")
        state = moved(state, block, after[block - 1])
    return plan


_PLANS: dict[type, Callable[[Game], list[str] | None]] = {
    Sokoban: _sokoban,
    Tetris: _tetris,
    Blocksworld: _blocksworld,
}


def reply(world: GameWorld, player: Player) -> Action:
    """Returns the next action of `player` in the current episode of `world`: an answer with the player's
    moves, separated by ` || `. If the player gives more moves than one turn allows, only the first ones are
    in the action."""
    moves: list[str] = []
    while len(moves) < world.limits.per_turn:
        more = player.moves(world.game)
        moves += more
        if len(more) > 1 or isinstance(player, SolverPlayer):
            break
    return Action(answer=f" {SEPARATOR} ".join(moves[: world.limits.per_turn]))


async def play(world: GameWorld, player: Player, seed: int) -> float:
    """Plays one episode of `world`, with the seed `seed`, by a scripted player. Returns the sum of its
    rewards."""
    await world.reset(seed)
    total = 0.0
    for _ in range(world.limits.turns):
        step = await world.step(reply(world, player))
        total += step.reward
        if step.done:
            break
    return total


def solving(world: World[Action], seed: int) -> Callable[[str], Action]:
    """Makes a scripted player that plays well, for the current episode of `world`, a `GameWorld`. Returns a
    function from the text of an observation to the next action. The text is ignored, because the player reads
    the game's state."""
    assert isinstance(world, GameWorld)
    game_world, solver = world, SolverPlayer()
    return lambda observation: reply(game_world, solver)
