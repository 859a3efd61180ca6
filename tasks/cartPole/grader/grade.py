"""Lets policy.py drive hidden carts and grades it by its mean score."""

import json
import sys
from pathlib import Path

from cart import Cart
from grading import DATA, BadArtefact, described, run
from runner import Limits, Runner

SPREAD = 0.35
"""By which share the physics differ at most; more than the agent practises with."""
ACTIONS = 3
LIMITS = Limits(cpu_per_load=True, source_bytes=1_000_000)


def grade(artefact: Path, split: str, seed: int) -> dict[str, float]:
    seeds = json.loads((DATA / "carts.json").read_text())[split]
    policy = artefact / "policy.py"
    with Runner(policy, "act", seed=seed, limits=LIMITS, modules=("numpy",)) as runner:
        scores = [drive(runner, Cart(one + seed, SPREAD)) for one in seeds]
    return {"mean_return": sum(scores) / len(scores), "worst": min(scores)}


def drive(runner: Runner, cart: Cart) -> float:
    """One episode; its score."""
    runner.load()
    while not cart.over:
        action = runner.call(cart.observe())
        if not isinstance(action, int) or not 0 <= action < ACTIONS:
            expected = f"expected 0 to {ACTIONS - 1}"
            raise BadArtefact(f"act returned {described(action)}, {expected}")
        cart.step(action)
    return cart.score


if __name__ == "__main__":
    sys.exit(run(grade))
