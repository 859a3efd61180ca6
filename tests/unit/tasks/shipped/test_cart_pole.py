"""The rules of cartPole against what mechanics says of them."""

from __future__ import annotations

import runpy
from math import acos, pi
from typing import Any

import pytest

from air import tasks

RULES = runpy.run_path(str(tasks.load("cartPole").folder / "starter" / "cart.py"))


def cart(*state: float, **physics: float) -> Any:
    made = RULES["Cart"](0)
    made.state = list(state)
    made.physics = RULES["PHYSICS"] | physics
    return made


def energy(made: Any) -> float:
    """Of cart and rod, in J: what no push and no friction leave as it is."""
    _, v, up, _, rate = made.state
    p = made.physics
    inertia = 4 / 3 * p["pole"] * p["length"] ** 2
    kinetic = 0.5 * (p["cart"] + p["pole"]) * v * v + 0.5 * inertia * rate * rate
    return kinetic + p["pole"] * p["length"] * (v * rate * up + RULES["GRAVITY"] * up)


def test_without_friction_energy_is_kept_and_with_it_lost() -> None:
    free = cart(0.0, 0.0, 0.0, 1.0, 0.0, friction=0.0)
    before, kept = energy(free), []
    for _ in range(200):
        free.step(1)
        kept.append(energy(free))
    swing = 2 * 0.1 * 0.5 * 9.8
    assert max(abs(e - before) for e in kept) < 0.06 * swing
    damped = cart(0.0, 0.0, 0.0, 1.0, 0.0, friction=0.02)
    for _ in range(200):
        damped.step(1)
    assert energy(damped) < before - 0.3 * swing


def test_a_push_moves_the_cart_by_its_mass() -> None:
    pushed = cart(0.0, 0.0, -1.0, 0.0, 0.0, pole=1e-9, friction=0.0)
    pushed.step(2)
    assert pushed.state[1] == pytest.approx(10.0 * 0.04)
    pushed.step(0)
    assert pushed.state[1] == pytest.approx(0.0, abs=1e-6)


def test_a_pole_upright_falls_to_the_side_that_it_leans_to() -> None:
    for aside in (0.02, -0.02):
        leaning = cart(0.0, 0.0, (1 - aside * aside) ** 0.5, aside, 0.0)
        for _ in range(10):
            leaning.step(1)
        assert leaning.state[3] * aside > aside * aside * 1.5
        assert leaning.state[2] ** 2 + leaning.state[3] ** 2 == pytest.approx(1.0)


def test_upright_counts_on_the_track_alone() -> None:
    standing = cart(0.0, 0.0, 1.0, 0.0, 0.0)
    while not standing.over:
        standing.step(1)
    assert (standing.actions, standing.score) == (250, 1.0)
    leaving = cart(2.39, 5.0, 1.0, 0.0, 0.0)
    leaving.step(1)
    assert (leaving.over, leaving.score) == (True, 0.0)


def test_carts_differ_within_the_spread_and_begin_all_around() -> None:
    carts = [RULES["Cart"](seed, 0.35) for seed in range(200)]
    for name, value in RULES["PHYSICS"].items():
        shares = [made.physics[name] / value for made in carts]
        assert 0.65 <= min(shares) < 0.7
        assert 1.3 < max(shares) <= 1.35
    angles = [acos(made.state[2]) / pi for made in carts]
    assert 0.4 < sum(angles) / len(angles) < 0.6
    assert RULES["Cart"](3, 0.35).state == carts[3].state
    assert RULES["Cart"](3).physics == RULES["PHYSICS"]
