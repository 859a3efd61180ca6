"""The league: one opponent of each kind, its parameters and its luck drawn from a seed.

An opponent is a function `(own, other) -> 0 | 1` over both histories of the match so far, oldest move
first; 1 is the evening that it prefers itself, 0 the one that we prefer. It keeps no state of its own
but its random numbers.
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
    """Prefers its own evening at a fixed rate, whatever the other does."""
    rate = rng.uniform(0.5, 0.8)
    return lambda own, other: int(rng.random() < rate)


def stubborn(rng: random.Random) -> Opponent:
    """Insists on its own evening, but for a slip now and then."""
    slip = rng.uniform(0.0, 0.08)
    return lambda own, other: int(rng.random() >= slip)


def yielder(rng: random.Random) -> Opponent:
    """Does us the favour, but for a slip now and then."""
    slip = rng.uniform(0.0, 0.1)
    return lambda own, other: int(rng.random() < slip)


def persuadable(rng: random.Random) -> Opponent:
    """Insists, until we have insisted for some rounds in a row; then gives in."""
    patience = rng.randint(3, 5)
    return lambda own, other: int(len(other) < patience or any(other[-patience:]))


def mirror(rng: random.Random) -> Opponent:
    """Does what the other did last, with slips; begins with its own evening."""
    slip = rng.uniform(0.02, 0.08)
    return lambda own, other: (other[-1] if other else 1) ^ int(rng.random() < slip)


def alternator(rng: random.Random) -> Opponent:
    """Takes turns strictly, whatever the other does."""
    phase = rng.randrange(2)
    return lambda own, other: (len(own) + phase) % 2


def turn_taker(rng: random.Random) -> Opponent:
    """After every meeting it goes to the other place; after a miss it insists at a fixed rate."""
    rate = rng.uniform(0.5, 0.8)

    def play(own: list[int], other: list[int]) -> int:
        if own and own[-1] == other[-1]:
            return 1 - own[-1]
        return int(rng.random() < rate)

    return play


def rhythm(rng: random.Random) -> Opponent:
    """Repeats a short pattern."""
    period = rng.randint(3, 4)
    ones = rng.randint(1, period - 1)
    pattern = [1] * ones + [0] * (period - ones)
    rng.shuffle(pattern)
    return lambda own, other: pattern[len(own) % period]


def winner(rng: random.Random) -> Opponent:
    """Stays after a meeting and changes after a miss, with slips."""
    slip = rng.uniform(0.02, 0.08)

    def play(own: list[int], other: list[int]) -> int:
        if not own:
            return 1
        move = own[-1] if own[-1] == other[-1] else 1 - own[-1]
        return move ^ int(rng.random() < slip)

    return play


def reasoner(rng: random.Random) -> Opponent:
    """Its best reply to how often the other chose each evening in a window (it is paid 2 and 1)."""
    window = rng.randint(6, 12)

    def play(own: list[int], other: list[int]) -> int:
        seen = other[-window:]
        ones = sum(seen)
        return int(2 * ones >= len(seen) - ones)

    return play


def accountant(rng: random.Random) -> Opponent:
    """Wants its share: insists while the other has yielded in too few of the rounds."""
    share = rng.uniform(0.2, 0.4)
    return lambda own, other: int(sum(other) <= share * len(other))


KINDS = (
    gambler,
    stubborn,
    yielder,
    persuadable,
    mirror,
    alternator,
    turn_taker,
    rhythm,
    winner,
    reasoner,
    accountant,
)
