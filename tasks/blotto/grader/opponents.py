"""The league: one general of each kind, its parameters and its luck drawn from a seed.

A general is a function `(own, other) -> allocation` over both lists of allocations of the match so far,
oldest battle first; an allocation is a list of FIELDS counts that add up to SOLDIERS. It keeps no state
of its own but its random numbers.
"""

import random
from collections.abc import Callable, Sequence

FIELDS, SOLDIERS = 6, 60
Allocation = list[int]
General = Callable[[list[Allocation], list[Allocation]], Allocation]


def league(seed: int) -> list[General]:
    """The generals in the order in which they are met, which the seed shuffles."""
    rng = random.Random(seed)
    generals = [kind(random.Random(rng.getrandbits(64))) for kind in KINDS]
    rng.shuffle(generals)
    return generals


def shared_out(weights: Sequence[float]) -> Allocation:
    """All soldiers in proportion to the weights; what rounding leaves goes to the largest remainders."""
    exact = [SOLDIERS * weight / sum(weights) for weight in weights]
    given = [int(share) for share in exact]
    order = sorted(range(FIELDS), key=lambda at: given[at] - exact[at])
    for at in order[: SOLDIERS - sum(given)]:
        given[at] += 1
    return given


def _shuffled(rng: random.Random, allocation: Allocation) -> Allocation:
    return rng.sample(allocation, len(allocation))


def even(rng: random.Random) -> General:
    """The same everywhere, but for a few soldiers who go astray."""

    def play(own: list[Allocation], other: list[Allocation]) -> Allocation:
        return shared_out([1 + rng.uniform(0, 0.15) for _ in range(FIELDS)])

    return play


def scatterer(rng: random.Random) -> General:
    """Random weights, anew for every battle."""
    spread = rng.uniform(0.3, 1.0)
    return lambda own, other: shared_out([spread + rng.random() ** 2 for _ in range(FIELDS)])


def concentrator(rng: random.Random) -> General:
    """Gives up some fields, which it chooses anew for every battle, and is strong on the others."""
    held = rng.randint(3, 4)
    crowd = [1.0] * held + [0.05] * (FIELDS - held)
    return lambda own, other: _shuffled(rng, shared_out(crowd))


def favourite(rng: random.Random) -> General:
    """Has fields that it always holds strongly."""
    weights = [rng.choice((0.3, 1.0, 1.7)) for _ in range(FIELDS)]
    return lambda own, other: shared_out([w + rng.uniform(0, 0.2) for w in weights])


def stair(rng: random.Random) -> General:
    """A rising line of strengths, always in the same direction or from the other end."""
    weights = [1 + at for at in range(FIELDS)]
    if rng.randrange(2):
        weights.reverse()
    return lambda own, other: shared_out([w + rng.uniform(0, 0.5) for w in weights])


def wheel(rng: random.Random) -> General:
    """A fixed pattern that moves on by one field from battle to battle."""
    pattern = [1.6, 1.6, 1.4, 1.0, 0.2, 0.2]
    step, start = rng.choice((1, FIELDS - 1)), rng.randrange(FIELDS)

    def play(own: list[Allocation], other: list[Allocation]) -> Allocation:
        at = (start + step * len(own)) % FIELDS
        return shared_out(pattern[at:] + pattern[:at])

    return play


def copier(rng: random.Random) -> General:
    """Does what the other did last."""
    return lambda own, other: list(other[-1]) if other else shared_out([1] * FIELDS)


def overbidder(rng: random.Random) -> General:
    """One more than the other had last, on its cheapest fields first, as far as the soldiers last."""

    def play(own: list[Allocation], other: list[Allocation]) -> Allocation:
        return beat(other[-1]) if other else shared_out([1] * FIELDS)

    return play


def statistician(rng: random.Random) -> General:
    """One more than the other had on average, on its cheapest fields first."""

    def play(own: list[Allocation], other: list[Allocation]) -> Allocation:
        if not other:
            return shared_out([1 + rng.random() for _ in range(FIELDS)])
        return beat([round(sum(field) / len(other)) for field in zip(*other, strict=True)])

    return play


def loser_shifts(rng: random.Random) -> General:
    """Stays with what won more fields than it lost; else draws anew."""
    held = rng.randint(3, 5)

    def play(own: list[Allocation], other: list[Allocation]) -> Allocation:
        if own and sum((a > b) - (a < b) for a, b in zip(own[-1], other[-1], strict=True)) > 0:
            return list(own[-1])
        weights = [1 + rng.random() for _ in range(held)] + [0.1] * (FIELDS - held)
        return _shuffled(rng, shared_out(weights))

    return play


def beat(seen: Allocation) -> Allocation:
    """One more than was seen on the cheapest fields, as far as the soldiers last; the rest to the last."""
    left, reply = SOLDIERS, [0] * FIELDS
    for at in sorted(range(FIELDS), key=lambda at: seen[at]):
        reply[at] = min(seen[at] + 1, left)
        left -= reply[at]
    reply[min(range(FIELDS), key=lambda at: seen[at])] += left
    return reply


KINDS = (
    even,
    scatterer,
    scatterer,
    concentrator,
    favourite,
    favourite,
    stair,
    wheel,
    copier,
    overbidder,
    statistician,
    loser_shifts,
)
