"""The league: one opponent of each kind, its parameters and its luck drawn from a seed.

An opponent is a function `(own, other) -> 0 | 1` over both histories of the match so far, oldest move
first; 0 cooperates, 1 defects. It keeps no state of its own but its random numbers.
"""

import random
from collections.abc import Callable

Opponent = Callable[[list[int], list[int]], int]


def league(seed: int) -> list[Opponent]:
    """The opponents in the order in which they are met, which the seed shuffles."""
    rng = random.Random(seed)
    opponents = [kind(random.Random(rng.getrandbits(64))) for kind in KINDS]
    rng.shuffle(opponents)
    return opponents


def gambler(rng: random.Random) -> Opponent:
    """Defects at a fixed rate, whatever the other does."""
    rate = rng.uniform(0.2, 0.5)
    return lambda own, other: int(rng.random() < rate)


def pacifist(rng: random.Random) -> Opponent:
    """Cooperates, but for a slip now and then."""
    slip = rng.uniform(0.0, 0.1)
    return lambda own, other: int(rng.random() < slip)


def bully(rng: random.Random) -> Opponent:
    """Defects until it has been hit back a few times in a row, then gives in for a while."""
    patience = rng.randint(2, 3)
    return lambda own, other: int(not (len(other) >= patience and all(other[-patience:])))


def mirror(rng: random.Random) -> Opponent:
    """Tit for tat with slips."""
    slip = rng.uniform(0.02, 0.06)
    return lambda own, other: int((bool(other) and other[-1] == 1) ^ (rng.random() < slip))


def forgiver(rng: random.Random) -> Opponent:
    """Tit for tat that often lets a defection pass, and slips."""
    mercy, slip = rng.uniform(0.2, 0.4), rng.uniform(0.02, 0.06)

    def play(own: list[int], other: list[int]) -> int:
        angry = bool(other) and other[-1] == 1 and rng.random() > mercy
        return int(angry or rng.random() < slip)

    return play


def slow_mirror(rng: random.Random) -> Opponent:
    """Hits back only after two defections in a row."""
    slip = rng.uniform(0.0, 0.04)
    return lambda own, other: int(other[-2:] == [1, 1] or rng.random() < slip)


def grudger(rng: random.Random) -> Opponent:
    """Never forgives, once it has been hit a few times."""
    limit = rng.randint(3, 6)
    return lambda own, other: int(sum(other) >= limit)


def winner(rng: random.Random) -> Opponent:
    """Win-stay, lose-shift, with slips."""
    slip = rng.uniform(0.02, 0.05)

    def play(own: list[int], other: list[int]) -> int:
        if not own:
            return 0
        move = own[-1] if other[-1] == 0 else 1 - own[-1]
        return move ^ int(rng.random() < slip)

    return play


def prober(rng: random.Random) -> Opponent:
    """Strikes early; exploits whoever does not strike back, else plays tit for tat."""
    strike = rng.randint(2, 4)

    def play(own: list[int], other: list[int]) -> int:
        turn = len(own)
        if turn <= strike + 1:
            return int(turn == strike)
        return other[-1] if 1 in other[strike : strike + 3] else 1

    return play


def majority(rng: random.Random) -> Opponent:
    """Does what the other did more often in a window."""
    window = rng.randint(6, 12)
    return lambda own, other: int(2 * sum(other[-window:]) > min(len(other), window))


KINDS = (
    gambler,
    pacifist,
    bully,
    mirror,
    mirror,
    forgiver,
    slow_mirror,
    grudger,
    winner,
    prober,
    majority,
)
