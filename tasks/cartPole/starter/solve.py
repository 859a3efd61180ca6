"""Writes policy.py, which swings a pole up and holds it: act(observation) -> 0, 1 or 2 (see cart.py).

Options are read from the file `config`, one line such as `method=2 level=3`:

method  1 push at random, as before in 0, 50, 80 or 95 % of the time (level 1, 2, 3, 4)
        2 hold upright with weights set by hand, and wait where the pole is not near
        3 the same, and swing up from below by the pole's energy
        4 as 3, with weights searched for by the cross-entropy method
level   of 2, 3: held are 1 angle 2 angle and rate 3 and the cart's speed 4 and its place
        of 4: 1 three rounds 2 nine rounds, of equal physics; 3, 4 the same, of differing physics
"""

import random
import sys

from cart import Cart

HEAD = '"""Written by solve.py: method {method}, level {level}."""\n\n'
PUSH = """import random

last = 1


def act(observation):
    global last
    if random.random() >= {again}:
        last = random.randrange(3)
    return last
"""
CONTROL = """WEIGHTS = {weights}


def act(observation):
    x, v, up, aside, rate = observation
    of_x, of_v, of_angle, of_rate, near, swing, centre, more = WEIGHTS
    if up > near:
        push = of_x * x + of_v * v + of_angle * aside + of_rate * rate
    else:
        lacks = more + 9.8 * (1 - up) - rate * rate / 3
        push = (swing if rate * up * lacks < 0 else -swing) - centre * (x + 0.5 * v)
    return 1 + (push > 0.5) - (push < -0.5)
"""
HELD = ((0, 0, 10, 0), (0, 0, 10, 2), (0, 1, 10, 2), (0.7, 1, 10, 2))
START = (0.3, 0.5, 10.0, 2.0, 0.88, 1.0, 0.5, 0.0)
SPREAD = (0.7, 0.7, 3.0, 1.0, 0.05, 0.3, 0.3, 2.0)


def options():
    """The two options of `config`, or exit 1."""
    try:
        with open("config") as file:
            pairs = dict(part.split("=") for part in file.read().split())
    except (OSError, ValueError):
        sys.exit("config: expected one line such as: method=2 level=3")
    for name, value in pairs.items():
        if name not in ("method", "level") or value not in ("1", "2", "3", "4"):
            sys.exit(f"config: {name}={value} is unknown; method=1..4 level=1..4")
    if len(pairs) != 2:
        sys.exit("config: both method=1..4 and level=1..4 are needed")
    return int(pairs["method"]), int(pairs["level"])


def worth(weights, seeds, spread):
    """The mean score of these weights over some carts."""
    policy = {}
    exec(CONTROL.format(weights=weights), policy)
    total = 0
    for seed in seeds:
        cart = Cart(seed, spread)
        while not cart.over:
            cart.step(policy["act"](cart.observe()))
        total += cart.score
    return total / len(seeds)


def search(rounds, spread, tries=24, kept=5, carts=8):
    """Weights by the cross-entropy method: draw, keep the best, draw around these."""
    rng = random.Random(0)
    centre, width = list(START), list(SPREAD)
    for number in range(rounds):
        seeds = range(carts * number, carts * (number + 1))
        drawn = [
            tuple(round(rng.gauss(c, w), 4) for c, w in zip(centre, width)) for _ in range(tries)
        ]
        best = sorted(drawn, key=lambda weights: worth(weights, seeds, spread))[-kept:]
        centre = [sum(column) / kept for column in zip(*best)]
        width = [
            0.05 * w + (sum((a - c) ** 2 for a in column) / kept) ** 0.5
            for c, w, column in zip(centre, SPREAD, zip(*best))
        ]
    return tuple(round(c, 4) for c in centre)


def main():
    method, level = options()
    if method == 1:
        body = PUSH.format(again=(0.0, 0.5, 0.8, 0.95)[level - 1])
    elif method < 4:
        weights = (*HELD[level - 1], 0.88, method - 2, 0.5 * (method - 2), 0.0)
        body = CONTROL.format(weights=weights)
    else:
        rounds, spread = (3, 9)[(level - 1) % 2], 0.2 * (level > 2)
        body = CONTROL.format(weights=search(rounds, spread))
    with open("policy.py", "w") as file:
        file.write(HEAD.format(method=method, level=level) + body)


main()
