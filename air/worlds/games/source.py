"""Loads the tasks `game:NAME`: parses a game's name with its options, and makes the world (the game as an
environment for an agent) and the rules for the prompt."""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from air.errors import ConfigError, MissingError
from air.worlds.games import blocksworld, sokoban, tetris
from air.worlds.games.game import Game
from air.worlds.games.players import solving
from air.worlds.games.sokoban_rooms import Rooms
from air.worlds.games.tetris_board import Board
from air.worlds.games.world import FACTS, SEPARATOR, GameWorld, Limits
from air.worlds.sources import WorldTask

RULES = 1
"""The version of the rules and generators of all games. Raise this number with every change after which any
seed gives another episode. It is part of the task's digest, which trajectories (records of episodes)
contain."""
FITTED_RULES = 2
"""The version, used instead of `RULES`, for tasks whose limits are so low that the generator leaves out
instances (see `GameKind.fitted`). In version 1, such tasks could have instances that nobody can solve within
the limits."""

NAMES = (
    "sokoban4x5",
    "sokoban5",
    "sokoban6",
    "sokoban8",
    "tetris1",
    "tetris2-size3",
    "tetris2",
    "blocksworld-text",
    "blocksworld-1d",
    "blocksworld-2d",
)
"""The names of game tasks that the command `air tasks` lists. Names with options are valid as well, such as
`sokoban6-boxes2-level3`."""
SOKOBAN_LEVELS = {1: (1, 3), 2: (4, 6), 3: (7, 10), 4: (11, 20)}
"""For each level of Sokoban, the smallest and the largest number of moves of a room's shortest solution."""
_LIMITS = ("turns", "moves", "total")
_OPTION = re.compile(r"([a-z]+)([0-9]{1,4})")


@dataclass(frozen=True)
class GameKind:
    """The meaning of a game task's name, such as `sokoban6-level2`: a function that makes the game, the
    limits of an episode, and the rules for the prompt."""

    make: Callable[[], Game]
    limits: Limits
    rules: str
    fitted: bool
    """Whether the limits of an episode are so low that the generator leaves out instances (rooms, boards)
    that cannot be solved within these limits."""


class GameSource:
    """Loads the tasks whose id begins with `game:`. It implements `air.worlds.sources.WorldSource`."""

    def load(self, name: str) -> WorldTask:
        """Returns the task `game:NAME`. Raises MissingError if there is no such game, and ConfigError if an
        option is wrong."""
        kind = game_kind(name)
        known = kind.make().shortest() is not None
        version = FITTED_RULES if kind.fitted else RULES
        text = f"{version}\n{name}\n{kind.limits}\n{kind.rules}"
        return WorldTask(
            id=f"game:{name}",
            make=lambda: GameWorld(kind.make(), kind.limits),
            instructions=kind.rules,
            digest=hashlib.sha256(text.encode()).hexdigest()[:16],
            replays=True,
            max_turns=kind.limits.turns,
            names_turns=True,
            format_penalty=kind.limits.penalty,
            facts={name: text for name, text in FACTS.items() if known or name != "shortest"},
            player=solving,
        )

    def names(self) -> list[str]:
        """Returns the task names that the command `air tasks` lists: those in `NAMES`."""
        return list(NAMES)


def game_kind(name: str) -> GameKind:
    """Returns the game, limits and rules of the task `game:NAME`. Raises MissingError if there is no such
    game, and ConfigError if an option is wrong."""
    for pattern, build in _FAMILIES.items():
        match = re.fullmatch(rf"{pattern}((?:-[^-]*)*)", name)
        if match:
            *own, rest = match.groups()
            return build(own, _Options(name, rest))
    raise MissingError(f"there is no game {name!r}", remedy=f"known: {', '.join(NAMES)}")


class _Options:
    """The parsed options of a task name, such as `-boxes2-level3`. `take` consumes an option; `limits` raises
    ConfigError if any option was not consumed. The constructor raises ConfigError if an option is malformed
    or occurs twice."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._values: dict[str, int] = {}
        self._known: list[str] = []
        for part in text.split("-")[1:]:
            match = _OPTION.fullmatch(part)
            if match is None or match[1] in self._values:
                raise self.error(f"the option {part!r} is malformed or named twice")
            self._values[match[1]] = int(match[2])

    def take(self, key: str, default: int | None, least: int, most: int) -> int | None:
        """Consumes the option `key` and returns its value, or `default` if the task name does not contain the
        option. Raises ConfigError if the value is not between `least` and `most`."""
        self._known.append(key)
        value = self._values.pop(key, None)
        if value is None:
            return default
        if not least <= value <= most:
            raise self.error(f"the option `{key}` must be from {least} to {most}")
        return value

    def number(self, key: str, default: int, least: int, most: int) -> int:
        """Consumes the option `key` and returns its value, or `default` if the task name does not contain the
        option. In contrast to `take`, the result is never None. Raises ConfigError if the value is not
        between `least` and `most`."""
        value = self.take(key, default, least, most)
        assert value is not None
        return value

    def limits(self, turns: int, moves: int, total: int) -> Limits:
        """Returns the limits of an episode: the values of the options `turns` (maximum number of turns),
        `moves` (of moves per turn) and `total` (of moves) in the task name. For an option that is missing,
        the argument is the value. Raises ConfigError if a value is not from 1 to 1000, or if the name has an
        option that the game does not know."""
        values = [
            self.number(key, value, 1, 1000)
            for key, value in zip(_LIMITS, (turns, moves, total), strict=True)
        ]
        for key in self._values:
            raise self.error(f"there is no option `{key}`", f"known: {', '.join(self._known)}")
        return Limits(*values)

    def too_low(self, problem: str, limits: Limits, moves: int) -> ConfigError:
        """Returns, without raising it, the error for limits of an episode that are too low to win the game.
        `problem` is the first part of the message. The remedy names the options that would allow `moves`
        moves, which are enough."""
        needed = [f"`-total{moves}`"] if limits.total < moves else []
        if limits.turns * limits.per_turn < moves:
            needed.append(f"`-turns{math.ceil(moves / limits.per_turn)}`")
        what = (
            f"an episode has {limits.most} moves (turns: {limits.turns}, moves per turn:"
            f" {limits.per_turn}, total: {limits.total})"
        )
        return self.error(f"{problem}, and {what}", f"set {' and '.join(needed)} or higher")

    def error(
        self, message: str, remedy: str = "write options as in `sokoban6-boxes2-level3`"
    ) -> ConfigError:
        """Returns a ConfigError with `message` and `remedy` that names this task as the place of the
        error."""
        return ConfigError(message, where=f"game:{self.name}", remedy=remedy)


def _sokoban(own: list[str], options: _Options) -> GameKind:
    rows = int(own[0])
    columns = int(own[1] or rows)
    if not (4 <= rows <= 12 and 4 <= columns <= 12):
        raise options.error(
            "a room has 4 to 12 rows and columns, walls included", "such as sokoban6 or sokoban4x5"
        )
    boxes = options.number("boxes", 1, 1, 4)
    level = options.take("level", None, 1, len(SOKOBAN_LEVELS))
    depth = options.take("depth", None, 1, 200)
    usual = 10
    limits = options.limits(turns=6, moves=5, total=usual)
    least, most = SOKOBAN_LEVELS[level] if level else (1, depth or limits.total)
    if level and depth:
        raise options.error("`level` and `depth` exclude each other", "name one of them")
    if least > limits.most:
        raise options.too_low(f"level {level} needs {least} moves", limits, most)
    fitted = not depth and limits.most < min(most, limits.total)
    rooms = Rooms(rows, columns, boxes, least, most if depth else min(most, limits.most))
    if problem := rooms.problem():
        higher = ", or set `-turns`, `-moves` or `-total` higher"
        higher = higher if limits.most < usual and not depth else ""
        raise options.error(problem, f"take a larger room, fewer boxes or another level{higher}")
    rules = f"""\
You play Sokoban in a room of {rows} rows and {columns} columns with {_count(boxes, "box", "boxes")}. \
Push {"the box onto the target" if boxes == 1 else "every box onto a target"}. \
You push a box by moving against it, if the cell behind it is free. You cannot pull.
{_legend(sokoban.SYMBOLS)}
{_moves(sokoban.Sokoban.moves, limits)}
Each move costs 0.1. A box on a target earns 1, taking it off costs 1, and solving the room earns 10."""
    return GameKind(lambda: sokoban.Sokoban(rooms), limits, rules, fitted)


def _tetris(own: list[str], options: _Options) -> GameKind:
    kind = int(own[0])
    size = options.number("size", 4, 3, 4)
    gaps = options.take("level", None, 1, size)
    limits = options.limits(turns=11, moves=5, total=40)
    board = Board(size, kind, None if gaps == size else gaps)
    most = min(limits.most, board.longest)
    if problem := tetris.problem(board, most):
        raise options.too_low(problem, limits, board.longest)
    pieces = {
        1: "Every piece is a single cell",
        2: "A piece has two cells: one above the other (at first only the lower one is on the board),"
        " or side by side",
    }[kind]
    rules = f"""\
You play Tetris on a board of {size} rows and {size} columns. Fill one whole row to win. \
{pieces}. A piece moves only when you move it, and cannot turn. \
It lies still when it can go no further down after a move; then the next piece comes into the top row. \
A piece that lies still in the top row loses the game.
{_legend(tetris.SYMBOLS)}
{_moves(tetris.Tetris.moves, limits)}
Each move costs 0.1. A full row earns 10 and ends the game."""
    return GameKind(lambda: tetris.Tetris(board, most), limits, rules, most < board.longest)


def _blocksworld(own: list[str], options: _Options) -> GameKind:
    view = cast(Literal["text", "1d", "2d"], own[0])
    blocks = options.number("blocks", 3, 2, 4)
    level = options.take("level", None, 1, 2 * blocks - 2)
    limits = options.limits(turns=11, moves=5, total=20)
    if level and level > limits.most:
        raise options.too_low(f"level {level} needs {level} moves", limits, level)
    most = min(limits.most, level or blocksworld.longest(blocks))
    if not all(blocksworld.instances(blocks, level, side, most) for side in (False, True)):
        raise options.error(
            f"with {blocks} blocks, too few puzzles need {level or most} moves",
            "choose another level, or more blocks"
            if level
            else "set `-turns`, `-moves` or `-total` higher",
        )
    shown = {
        "text": "",
        "1d": "A state is a list: for each block, in order, what it stands on; 0 is the table.\n",
        "2d": "A state is a picture: each column is a stack on the table, a number is a block, _ is empty.\n",
    }[view]
    rules = f"""\
There are {blocks} blocks, numbered from 1. Move them, one at a time, until they stand as in the goal. \
A block can be moved if no block stands on it, to the table or onto a block that has none on it.
{shown}A move is (move X to Y): X is the block, and Y is the block to put it on, or 0 for the table. \
{_many(limits, "(move 2 to 0) || (move 1 to 2)")}
A move costs 1, one that cannot be read costs 5, and the one that reaches the goal earns 10."""
    make = functools.partial(blocksworld.Blocksworld, view, blocks, level, most)
    fitted = level is None and most < blocksworld.longest(blocks)
    return GameKind(make, limits, rules, fitted)


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def _legend(symbols: Mapping[str, str]) -> str:
    return f"Symbols: {', '.join(f'{symbol} {meaning}' for symbol, meaning in symbols.items())}."


def _moves(moves: tuple[str, ...], limits: Limits) -> str:
    return f"Moves: {', '.join(moves)}. {_many(limits, f' {SEPARATOR} '.join(moves[1:3]))}"


def _many(limits: Limits, example: str) -> str:
    if limits.per_turn == 1:
        return f"One reply plays one move, and the game has {limits.most} moves."
    return (
        f"Separate moves with {SEPARATOR}, as in {example}. One reply plays up to {limits.per_turn} moves,"
        f" and the game has {limits.total} moves in {limits.turns} replies."
    )


_FAMILIES: dict[str, Callable[[list[str], _Options], GameKind]] = {
    r"sokoban(\d{1,2})(?:x(\d{1,2}))?": _sokoban,
    r"tetris([12])": _tetris,
    "blocksworld-(text|1d|2d)": _blocksworld,
}
SOURCE = GameSource()
