"""Lets policy.py drive hidden carts and grades it by its mean score.

Exit 0: --out holds {"metrics": {"mean_return": ..., "worst": ...}}. Exit 3: it holds {"message": ...},
for the agent, and `"remember": false` where the same file might do better on a faster machine.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from cart import Cart
from sandbox import BadPolicy, Policy, read_source

HERE = Path(__file__).resolve().parent
SPREAD = 0.35
"""By which share the physics differ at most; more than the agent practises with."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--artefact", type=Path, required=True)
    parser.add_argument("--split", choices=("val", "test"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if os.environ.get("AIR_SECOND_UID"):
        HERE.chmod(0o700)  # the policy's user must not read the carts' seeds
    seeds = json.loads((HERE / "data" / "carts.json").read_text())[args.split]
    try:
        source = read_source(args.artefact / "policy.py")
        with Policy(source, actions=3, seed=args.seed) as policy:
            scores = [drive(policy, Cart(seed + args.seed, SPREAD)) for seed in seeds]
    except BadPolicy as error:
        args.out.write_text(json.dumps({"message": str(error), "remember": error.remember}))
        return 3
    metrics = {"mean_return": sum(scores) / len(scores), "worst": min(scores)}
    args.out.write_text(json.dumps({"metrics": metrics}))
    return 0


def drive(policy: Policy, cart: Cart) -> float:
    """One episode; its score."""
    with policy.episode() as act:
        while not cart.over:
            cart.step(act(cart.observe()))
    return cart.score


if __name__ == "__main__":
    sys.exit(main())
