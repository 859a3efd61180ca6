"""Expected returns of scripted players, against numbers that this file works out from the rules alone.

The exact returns come from small implementations below that know the games only as text: one move gives
the next text, its reward and whether the game ends. Played returns must lie within three standard errors. All
seeds are fixed, so that chance decides nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable
from statistics import fmean, stdev
from typing import TypeVar

import pytest

from air.worlds.games import SOURCE, GameWorld
from air.worlds.games.blocksworld import Blocksworld
from air.worlds.games.players import Player, RandomPlayer, SolverPlayer, play
from air.worlds.games.tetris import Tetris
from air.worlds.games.tetris_board import LYING, UPRIGHT
from air.worlds.sources import VALIDATION_SEED

StateT = TypeVar("StateT", bound=Hashable)
Rule = Callable[[StateT, str], tuple[StateT | None, float]]
"""A move's next state, None if the game is over, and its reward."""


def of_random(rule: Rule[StateT], start: StateT, moves: tuple[str, ...], total: int) -> float:
    """The expected return of uniformly drawn moves: the distribution over states, move by move."""
    chances: dict[StateT, float] = {start: 1.0}
    value = 0.0
    for _ in range(total):
        after: Counter[StateT] = Counter()
        for state, chance in chances.items():
            for move in moves:
                following, reward = rule(state, move)
                value += chance / len(moves) * reward
                if following is not None:
                    after[following] += chance / len(moves)  # type: ignore[assignment]
        chances = dict(after)
    return value


async def played(world: GameWorld, players: list[Player], seeds: range) -> list[float]:
    """The mean return of each seed over the players."""
    return [fmean([await play(world, player, seed) for player in players]) for seed in seeds]


def agree(differences: list[float]) -> None:
    """The mean difference between played and exact returns is within three standard errors of nothing."""
    error = stdev(differences) / math.sqrt(len(differences))
    assert abs(fmean(differences)) <= 3 * error, (fmean(differences), error)
    assert error < 0.5


# Sokoban, as text: the player is a letter, its target seen by the letter's case.
STEPS = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}


def sokoban(text: str, move: str) -> tuple[str | None, float]:
    rows = [list(row) for row in text.split("\n")]
    (y, x) = next((y, x) for y, row in enumerate(rows) for x, c in enumerate(row) if c in "PS")
    dy, dx = STEPS[move]
    front = rows[y + dy][x + dx]
    reward = -0.1
    if front in "X√":
        behind = rows[y + 2 * dy][x + 2 * dx]
        if behind not in "_O":
            return text, reward
        reward += (behind == "O") - (front == "√")
        rows[y + 2 * dy][x + 2 * dx] = "√" if behind == "O" else "X"
    if front == "#":
        return text, reward
    rows[y][x] = "O" if rows[y][x] == "S" else "_"
    rows[y + dy][x + dx] = "S" if front in "O√" else "P"
    text = "\n".join(map("".join, rows))
    return (text, reward) if "X" in text else (None, reward + 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sokoban4x5", "sokoban6", "sokoban8", "sokoban6-boxes2"])
async def test_random_play_of_sokoban(name: str) -> None:
    world = SOURCE.load(name + "-turns10-moves1").world()
    assert isinstance(world, GameWorld)
    seeds = range(60)
    differences = []
    for seed, mean in zip(
        seeds, await played(world, [RandomPlayer(n) for n in range(25)], seeds), strict=True
    ):
        world.game.reset(seed)
        differences.append(mean - of_random(sokoban, world.game.text(), world.game.moves, 10))
    agree(differences)


@pytest.mark.parametrize("name", ["sokoban5", "sokoban6", "sokoban8"])
async def test_the_solver_earns_all_of_sokoban(name: str) -> None:
    """The fewest moves, by a search over the texts of this file's rules."""
    world = SOURCE.load(name).world()
    assert isinstance(world, GameWorld)
    for seed in range(15):
        earned = await play(world, SolverPlayer(), seed)
        world.game.reset(seed)
        layer, seen, moves = {world.game.text()}, set[str](), 0
        while True:
            moves += 1
            seen |= layer
            results = [sokoban(text, move)[0] for text in layer for move in STEPS]
            if None in results:
                break
            layer = {text for text in results if text is not None} - seen
        assert earned == pytest.approx(11 - 0.1 * moves)


# Blocksworld: piles of blocks, bottom first.
Piles = frozenset[tuple[int, ...]]


def piles_of(state: tuple[int, ...]) -> Piles:
    piles = [[block] for block, below in enumerate(state, 1) if below == 0]
    for pile in piles:
        while pile[-1] in state:
            pile.append(state.index(pile[-1]) + 1)
    return frozenset(map(tuple, piles))


def blocksworld(goal: Piles) -> Rule[Piles]:
    def rule(piles: Piles, move: str) -> tuple[Piles | None, float]:
        block, place = (int(word) for word in move.strip("()").replace("to", "").split()[1:])
        source = next((pile for pile in piles if pile[-1] == block), None)
        onto = next((pile for pile in piles if pile[-1] == place), None)
        if source is None or (place and onto is None):
            return piles, -1.1  # an illegal move, and the penalty of its turn
        rest = piles - {source, onto} | ({source[:-1]} if len(source) > 1 else set())
        after = frozenset(rest | {((*onto, block) if onto else (block,))})
        return (None, 10.0) if after == goal else (after, -1.0)

    return rule


async def test_random_play_of_blocksworld() -> None:
    """Over all 156 pairs: consecutive seeds go through each side's."""
    world = SOURCE.load("blocksworld-1d-turns20-moves1").world()
    assert isinstance(world, GameWorld)
    game = world.game
    assert isinstance(game, Blocksworld)
    pairs = set()
    for first in (0, VALIDATION_SEED):
        seeds = range(first, first + 156)
        returns = await played(world, [RandomPlayer(n) for n in range(3)], seeds)
        differences = []
        for seed, mean in zip(seeds, returns, strict=True):
            game.reset(seed)
            pairs.add((game.state, game.goal))
            differences.append(mean - exact_of_pair(game))
        agree(differences)
    assert len(pairs) == 156


KNOWN: dict[object, float] = {}


def exact_of_pair(game: Blocksworld) -> float:
    key = (game.state, game.goal)
    if key not in KNOWN:
        rule = blocksworld(piles_of(game.goal))
        KNOWN[key] = of_random(rule, piles_of(game.state), game.moves, 20)
    return KNOWN[key]


async def test_the_solver_earns_all_of_blocksworld() -> None:
    """The fewest moves, by a search over piles."""
    world = SOURCE.load("blocksworld-text").world()
    assert isinstance(world, GameWorld)
    game = world.game
    assert isinstance(game, Blocksworld)
    for seed in (*range(130), *range(VALIDATION_SEED, VALIDATION_SEED + 40)):
        earned = await play(world, SolverPlayer(), seed)
        game.reset(seed)
        rule = blocksworld(piles_of(game.goal))
        layer: set[Piles | None] = {piles_of(game.state)}
        before = -1  # the legal moves before the one that wins
        while None not in layer:
            layer = {rule(piles, move)[0] for piles in layer if piles for move in game.moves}
            before += 1
        assert earned == 10 - before


# Tetris: the board's rows, the cells of the piece, and the number of pieces that came.
Cell = tuple[int, int]
Position = tuple[tuple[str, ...], frozenset[Cell], int]
SHIFTS = {"Left": (-1, 0), "Right": (1, 0), "Down": (0, 1)}


def cells_of(piece: object, column: int) -> frozenset[Cell]:
    if piece == UPRIGHT:
        return frozenset({(column, 0), (column, -1)})
    if piece == LYING:
        return frozenset({(column, 0), (column - 1, 0)})
    return frozenset({(column, 0)})


def tetris(pieces: list[frozenset[Cell]]) -> Rule[Position]:
    def fits(rows: tuple[str, ...], cells: frozenset[Cell]) -> bool:
        return all(0 <= x < len(rows) and y < len(rows) for x, y in cells) and not any(
            y >= 0 and rows[y][x] == "#" for x, y in cells
        )

    def rule(position: Position, move: str) -> tuple[Position | None, float]:
        rows, cells, number = position
        dx, dy = SHIFTS[move]
        shifted = frozenset((x + dx, y + dy) for x, y in cells)
        cells = shifted if fits(rows, shifted) else cells
        if fits(rows, frozenset((x, y + 1) for x, y in cells)):
            return (rows, cells, number), -0.1
        rows = tuple(
            "".join("#" if (x, y) in cells else c for x, c in enumerate(row))
            for y, row in enumerate(rows)
        )
        full = rows.count("#" * len(rows))
        if full or "#" in rows[0]:
            return None, 10 * full - 0.1
        return (rows, pieces[number], number + 1), -0.1

    return rule


def start_of(game: Tetris) -> tuple[Rule[Position], Position]:
    pieces = [cells_of(piece, column) for piece, column in game.pieces]
    rows = tuple(game.text().replace("X", "_").split("\n"))
    assert game.piece is not None
    return tetris(pieces), (rows, cells_of(game.piece, game.x), 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tetris1-level2", "tetris2-size3", "tetris2-level3"])
async def test_random_play_of_tetris(name: str) -> None:
    """Twelve moves, in which most games end."""
    world = SOURCE.load(name + "-turns12-moves1-total12").world()
    assert isinstance(world, GameWorld)
    game = world.game
    assert isinstance(game, Tetris)
    seeds = range(30)
    differences = []
    for seed, mean in zip(
        seeds, await played(world, [RandomPlayer(n) for n in range(40)], seeds), strict=True
    ):
        game.reset(seed)
        rule, start = start_of(game)
        differences.append(mean - of_random(rule, start, game.moves, 12))
    agree(differences)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "share"), [("tetris1-level1", 0.9), ("tetris2-size3", 0.7), ("tetris2", 0.5)]
)
async def test_the_scripted_player_of_tetris(name: str, share: float) -> None:
    """Its games, move by move, earn what the rules of this file give, and no more than the best play of one
    who knows the pieces to come."""
    world = SOURCE.load(name).world()
    assert isinstance(world, GameWorld)
    game = world.game
    assert isinstance(game, Tetris)
    earned, best = [], []
    for seed in range(12):
        game.reset(seed)
        rule, position = start_of(game)
        total = 0.0
        state: Position | None = position
        while state is not None:
            for move in SolverPlayer().moves(game):
                assert state is not None
                assert game.text() == drawn(state)
                state, reward = rule(state, move)
                assert game.step(move).reward == pytest.approx(reward)
                total += reward
        assert game.over
        earned.append(total)
        best.append(of_best(rule, position))
        assert total <= best[-1] + 1e-9
    assert fmean(earned) >= share * fmean(best)


def drawn(position: Position) -> str:
    rows, cells, _ = position
    return "\n".join(
        "".join("X" if (x, y) in cells else c for x, c in enumerate(row))
        for y, row in enumerate(rows)
    )


def of_best(rule: Rule[Position], start: Position) -> float:
    """The best return of all ways to play: the best return so far of each position, move by move."""
    returns, best = {start: 0.0}, -math.inf
    for _ in range(40):
        after: dict[Position, float] = {}
        for position, so_far in returns.items():
            for move in SHIFTS:
                following, reward = rule(position, move)
                if following is None:
                    best = max(best, so_far + reward)
                elif so_far + reward > after.get(following, -math.inf):
                    after[following] = so_far + reward
        returns = after
        if not returns or best >= max(returns.values()) + 20:
            break
    return best
