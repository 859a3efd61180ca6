"""Blocksworld: the player moves blocks, one at a time, until they are stacked as the goal shows.

Blocks are numbered from 1. A state is a tuple whose n-th number says what block n stands on: the number of
another block, or 0 for the table. Rewards: -5 for a move that cannot be parsed, +10 for the move that
reaches the goal, and -1 for any other move, whether legal or not.
"""

from __future__ import annotations

import itertools
import re
import zlib
from functools import lru_cache
from typing import Literal

from air.worlds.games.game import Outcome, evaluates, held_out

State = tuple[int, ...]
View = Literal["text", "1d", "2d"]

_MOVE = re.compile(r"\(?\s*move\s+(\d{1,3})\s+to\s+(\d{1,3})\s*\)?", re.IGNORECASE)
_LEGAL = Outcome(-1.0, effective=True)
_NOTHING = Outcome(-1.0, effective=False)


class Blocksworld:
    """A game of Blocksworld with `blocks` blocks. `view` selects how states are written: as sentences
    (`text`), as a list (`1d`), or as a picture (`2d`). `level` is the number of moves of the shortest
    solution (None: any number), and `most` is the largest such number (None: no limit)."""

    def __init__(
        self,
        view: View = "text",
        blocks: int = 3,
        level: int | None = None,
        most: int | None = None,
    ) -> None:
        self.view = view
        self.blocks = blocks
        self.level = level
        self.most = most
        self.won = False
        self.over = True
        self._shortest = 0
        self.moves = tuple(
            f"(move {block} to {place})"
            for block in range(1, blocks + 1)
            for place in range(blocks + 1)
            if block != place
        )

    def reset(self, seed: int) -> None:
        """Starts the episode that `seed` determines."""
        pairs = instances(self.blocks, self.level, evaluates(seed), self.most)
        self.state, self.goal = pairs[seed % len(pairs)]
        self._shortest = distances(self.goal)[self.state]
        self.won = self.over = False

    def step(self, move: str) -> Outcome:
        """Carries out a move such as `(move 1 to 2)`, and returns its result: the reward, and whether the
        move was valid and had an effect. Raises RuntimeError if the game is over or has not begun."""
        if self.over:
            raise RuntimeError("the game is over")
        match = _MOVE.fullmatch(move.strip())
        if match is None:
            return Outcome(-5.0, False, valid=False, problem=f"no move: {move}")
        block, place = int(match[1]), int(match[2])
        problem = forbidden(self.state, block, place)
        if problem:
            return Outcome(-1.0, False, valid=False, problem=f"{move}: {problem}")
        if self.state[block - 1] == place:
            return _NOTHING
        self.state = moved(self.state, block, place)
        if self.state != self.goal:
            return _LEGAL
        self.won = self.over = True
        return Outcome(10.0, effective=True)

    def text(self) -> str:
        """Returns the current state and the goal as text."""
        if self.view == "2d":
            return f"Now:\n{picture(self.state)}\nGoal:\n{picture(self.goal)}"
        show = sentences if self.view == "text" else row
        return f"Now: {show(self.state)}\nGoal: {show(self.goal)}"

    def grid(self) -> list[list[int]]:
        """Returns two rows of numbers: the current state and the goal. The n-th number of a row is what block
        n stands on (0: the table)."""
        return [list(self.state), list(self.goal)]

    def shortest(self) -> int | None:
        """Returns the number of moves of the shortest solution from the start of the episode."""
        return self._shortest


def forbidden(state: State, block: int, place: int) -> str:
    """Returns the reason, in words, why `block` cannot be moved onto `place` in `state`; an empty string if
    the move is legal. `place` is the number of a block, or 0 for the table."""
    if not 1 <= block <= len(state):
        return f"there is no block {block}"
    if place > len(state):
        return f"there is no block {place}"
    if block == place:
        return "a block cannot stand on itself"
    if block in state:
        return f"block {state.index(block) + 1} stands on block {block}"
    if place and place in state:
        return f"block {state.index(place) + 1} stands on block {place}"
    return ""


def moved(state: State, block: int, place: int) -> State:
    """Returns the state after `block` is moved onto `place`, the number of another block, or 0 for the table.
    The move must be legal."""
    return (*state[: block - 1], place, *state[block:])


@lru_cache(maxsize=4)
def states(blocks: int) -> tuple[State, ...]:
    """Returns all states of a game with `blocks` blocks, in ascending order."""
    start = (0,) * blocks
    seen = {start}
    todo = [start]
    for state in todo:
        for after in neighbours(state):
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return tuple(sorted(seen))


def neighbours(state: State) -> list[State]:
    """Returns the states that differ from `state` and that one legal move reaches from it."""
    numbers = range(1, len(state) + 1)
    return [
        moved(state, block, place)
        for block, place in itertools.product(numbers, range(len(state) + 1))
        if state[block - 1] != place and not forbidden(state, block, place)
    ]


@lru_cache(maxsize=1024)
def distances(goal: State) -> dict[State, int]:
    """Returns, for each state, the number of moves of the shortest solution from this state to the state
    `goal`. They are found by a search backwards from the goal, which is correct because every move can be
    undone."""
    known = {goal: 0}
    todo = [goal]
    for state in todo:
        for after in neighbours(state):
            if after not in known:
                known[after] = known[state] + 1
                todo.append(after)
    return known


def longest(blocks: int) -> int:
    """Returns the largest number of moves that the shortest solution of any game with `blocks` blocks can
    have."""
    return 2 * blocks - 2


@lru_cache(maxsize=64)
def instances(
    blocks: int, level: int | None, side: bool, most: int | None = None
) -> tuple[tuple[State, State], ...]:
    """Returns all pairs (start state, goal state) with two different states that satisfy the conditions. If
    `side` is true, these are pairs held out for evaluation, else pairs for training. `level` is the number of
    moves of a pair's shortest solution (None: any number), and `most` is the largest such number (None: no
    limit). The order is shuffled, in the same way in every call."""
    pairs = [
        (start, goal)
        for start, goal in itertools.permutations(states(blocks), 2)
        if held_out(f"{start} {goal}") == side
        and (level is None or distances(goal)[start] == level)
        and (most is None or distances(goal)[start] <= most)
    ]
    return tuple(sorted(pairs, key=lambda pair: (zlib.crc32(f"order {pair}".encode()), pair)))


def sentences(state: State) -> str:
    """Returns a state as sentences, such as `Block 1 is on the table. Block 2 is on block 1.`"""
    return " ".join(
        f"Block {block} is on {f'block {below}' if below else 'the table'}."
        for block, below in enumerate(state, 1)
    )


def row(state: State) -> str:
    """Returns a state as a list such as `[0, 1]`: for each block, the number of the block that it stands on,
    or 0 for the table."""
    return f"[{', '.join(map(str, state))}]"


def picture(state: State) -> str:
    """Returns a state as text: each column is a stack of block numbers, with the lowest block in the last
    line, and `_` marks an empty place."""
    stacks = []
    for block, below in enumerate(state, 1):
        if below == 0:
            stack = [block]
            while stack[-1] in state:
                stack.append(state.index(stack[-1]) + 1)
            stacks.append(stack)
    stacks += [[] for _ in range(len(state) - len(stacks))]
    return "\n".join(
        " ".join(str(stack[height]) if height < len(stack) else "_" for stack in stacks)
        for height in reversed(range(max(map(len, stacks))))
    )
