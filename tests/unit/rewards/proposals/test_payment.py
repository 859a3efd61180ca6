"""The rewards of proposals, on numbers worked by hand."""

from __future__ import annotations

import pytest

from air.rewards.proposals.payment import REWARDS, Proposal, Weights, as_coded, published


def test_as_coded_by_hand() -> None:
    assert as_coded(Proposal(True, 0.5, 1 / 8)) == pytest.approx(0.375)
    assert as_coded(Proposal(True, 0.8, 0.25)) == pytest.approx(0.2 - 0.25)
    assert as_coded(Proposal(True, 0.0, 1.0)) == -1.0
    assert as_coded(Proposal(False, 0.5, 0.0)) == -1.0
    assert as_coded(Proposal(True, 0.5, 1.0), Weights(repetition=0.0)) == 0.5


def test_published_by_hand() -> None:
    assert published(Proposal(True, 0.5, 1 / 8, executor_calls=2)) == pytest.approx(0.975)
    assert published(Proposal(True, 0.8, 0.25)) == pytest.approx(0.4 - 0.25)
    assert published(Proposal(True, 1.0, 0.5)) == 0.0
    assert published(Proposal(False, 0.5)) == 0.0
    halved = Weights(uncertainty=0.5, tool=2.0, repetition=2.0)
    assert published(Proposal(True, 0.5, 0.125, executor_calls=8), halved) == pytest.approx(0.65)


def test_only_the_published_reward_pays_for_tool_calls() -> None:
    calls = Proposal(True, 0.5, 0.25, executor_calls=4)
    assert as_coded(calls) == 0.25
    assert published(calls) == pytest.approx(1 + 0.2 - 0.25)
    assert sorted(REWARDS) == ["as_coded", "published"]
