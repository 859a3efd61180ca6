"""Defines an advantage estimator outside the package, and shows how a run names it.

    python examples/leave_one_out.py
    PYTHONPATH=examples rl @ configs/quickstart.toml \
        --embedded.estimator.import-path leave_one_out:leave_one_out

The first command only prints the advantages of a group of four episodes. The second command trains with the
estimator.
"""

from __future__ import annotations

from collections.abc import Sequence


def leave_one_out(rewards: Sequence[float | None], scale: float = 1.0) -> list[float]:
    """Returns each reward minus the mean of the group's other rewards (Ahmadian et al. 2024, arXiv
    2402.14740).

    Args:
        rewards: the reward of each episode of the group; None masks an episode that could not be scored.
        scale: a factor by which the advantages are multiplied.
    """
    scored = [reward for reward in rewards if reward is not None]
    if len(scored) < 2:
        return [0.0] * len(rewards)
    total, others = sum(scored), len(scored) - 1
    return [0.0 if r is None else scale * (r - (total - r) / others) for r in rewards]


def main() -> None:
    from air import train

    estimator = {"import_path": "leave_one_out:leave_one_out", "kwargs": {"scale": 0.5}}
    config = train.load("configs/quickstart.toml", {"embedded": {"estimator": estimator}})
    assert config.embedded.estimator is not None
    rewards = [1.0, 0.0, 0.5, None]
    for reward, advantage in zip(rewards, config.embedded.estimator.load()(rewards), strict=True):
        print(f"reward {reward}: advantage {advantage:+.3f}")


if __name__ == "__main__":
    main()
