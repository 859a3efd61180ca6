"""What an episode is paid that its world does not end: numbers worked by hand, and no way to gain by it."""

from __future__ import annotations

import random

import pytest

from air.worlds.base import without_end

TOTALS = [
    # unanswered, the world's rewards, and what the episode earns in all
    (-0.1, [], -0.1),
    (-0.1, [-0.1], -0.1),  # the wrong try counts: not −0.2
    (-0.1, [-0.1, -0.1, -0.1], -0.3),  # what it has lost stays lost
    (-1.0, [-0.25, -0.25], -1.0),
    (-0.5, [0.0, 0.0], -0.5),
    (-3.0, [1.0, 1.0], -1.0),  # what it has earned stays earned
    (-3.0, [2.0, -1.0], -2.0),
    (-3.0, [1.0, -5.0], -4.0),
    (-3.0, [1.0, -1.0] * 9, -3.0),  # to move back and forth is no try
    (0.0, [], 0.0),
    (0.0, [-2.0, 1.0], -1.0),
    (0.0, [2.0], 2.0),
]


@pytest.mark.parametrize(("unanswered", "rewards", "total"), TOTALS)
def test_a_loss_counts_towards_what_no_answer_costs(
    unanswered: float, rewards: list[float], total: float
) -> None:
    assert sum(rewards) + without_end(unanswered, rewards) == pytest.approx(total)


def test_no_further_reward_changes_the_order_of_episodes() -> None:
    """A loss never makes an episode without an end better, a gain never makes it worse; it is never better
    than the worst answer, and never costs more than the loss or `unanswered`, whichever is larger."""
    draw = random.Random(0)
    for _ in range(2000):
        unanswered = -draw.choice([0.0, 0.5, 1.0])
        rewards = [draw.uniform(-1, 1) for _ in range(draw.randrange(6))]

        def total(more: float, of: list[float] = rewards, least: float = unanswered) -> float:
            return sum(of) + more + without_end(least, [*of, more])

        change = draw.uniform(0, 1)
        assert total(-change) <= total(0.0) + 1e-9 <= total(change) + 2e-9
        assert total(0.0) <= max(sum(rewards), 0.0) + unanswered + 1e-9
        assert total(0.0) >= min(sum(rewards), unanswered) - 1e-9
