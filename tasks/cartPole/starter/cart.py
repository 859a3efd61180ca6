"""The rules: a pole hinged to a cart, to be swung up and held upright by pushing the cart.

    cart = Cart(7, spread=0.2)
    while not cart.over:
        cart.step(act(cart.observe()))
    print(cart.score)

An observation is a list [x, v, up, aside, rate]: the cart's place in m (0 is the middle of the track) and
speed in m/s, cosine and sine of the pole's angle (0 upright, positive leaning right), its rate in rad/s.
Actions: 0 push left, 1 let go, 2 push right, for 0.04 s each. Every episode begins at another angle.
With `spread` the physics differ in every episode by up to that share, and the policy is not told them.

The score is the share of the 250 actions after which the pole was upright (up > 0.95); the episode is
over when the cart's middle leaves the track.

The equations are those of Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve
difficult learning control problems" (1983), with friction at the hinge alone. There is only
arithmetic and sqrt, no sine of the C library, so that every machine computes the same.
"""

import random
from math import sqrt

ACTIONS = 250
TRACK = 2.4
UPRIGHT = 0.95
GRAVITY = 9.8
PHYSICS = {"cart": 1.0, "pole": 0.1, "length": 0.5, "force": 10.0, "friction": 0.002}
"""Masses in kg, half the pole's length in m, the push in N, the hinge's friction in N m s."""
TICK, TICKS = 0.01, 4


class Cart:
    """One cart and one episode."""

    def __init__(self, seed, spread=0.0):
        rng = random.Random(seed)
        self.physics = {k: v * (1 + rng.uniform(-spread, spread)) for k, v in PHYSICS.items()}
        self.state = [rng.uniform(-0.5, 0.5), 0.0, *direction(rng), rng.uniform(-0.5, 0.5)]
        self.actions, self.upright = 0, 0

    @property
    def over(self):
        return self.actions >= ACTIONS or abs(self.state[0]) > TRACK

    @property
    def score(self):
        return self.upright / ACTIONS

    def observe(self):
        return list(self.state)

    def step(self, action):
        force = (action - 1) * self.physics["force"]
        for _ in range(TICKS):
            self._tick(force)
        self.actions += 1
        self.upright += self.state[2] > UPRIGHT and abs(self.state[0]) <= TRACK

    def _tick(self, force):
        x, v, up, aside, rate = self.state
        pole, length = self.physics["pole"], self.physics["length"]
        mass = self.physics["cart"] + pole
        pull = (force + pole * length * rate * rate * aside) / mass
        drag = self.physics["friction"] * rate / (pole * length)
        turn = (GRAVITY * aside - up * pull - drag) / (length * (4 / 3 - pole * up * up / mass))
        v += TICK * (pull - pole * length * turn * up / mass)
        rate += TICK * turn
        by = TICK * rate  # a small angle: to the second order, then put back onto the circle
        up, aside = up - by * aside - by * by / 2 * up, aside + by * up - by * by / 2 * aside
        norm = sqrt(up * up + aside * aside)
        self.state = [x + TICK * v, v, up / norm, aside / norm, rate]


def direction(rng):
    """Cosine and sine of an angle, all angles being equally likely."""
    while True:
        up, aside = rng.uniform(-1, 1), rng.uniform(-1, 1)
        if 0.01 < (square := up * up + aside * aside) <= 1:
            return up / sqrt(square), aside / sqrt(square)
