"""The rewards of proposals, on numbers worked by hand."""

from __future__ import annotations

import pytest

from air.rewards.proposals.proposer_reward import (
    REWARDS,
    Proposal,
    Weights,
    as_coded,
    malformed_reward,
    published,
)


def test_as_coded_by_hand() -> None:
    assert as_coded(Proposal(True, 0.5, 1 / 8)) == pytest.approx(0.375)
    # .5 + .05 · 2 − 1/8, and .2 + .05 · 4 − 1/4: no more than four calls are paid.
    assert as_coded(Proposal(True, 0.5, 1 / 8, proposer_calls=2)) == pytest.approx(0.475)
    assert as_coded(Proposal(True, 0.8, 1 / 4, proposer_calls=9)) == pytest.approx(0.15)
    halved = Weights(uncertainty=0.5, tool=2.0, repetition=2.0)
    assert as_coded(Proposal(True, 0.5, 1 / 8, proposer_calls=2), halved) == pytest.approx(0.2)
    assert as_coded(Proposal(True, 0.8, 0.25)) == pytest.approx(0.2 - 0.25)
    assert as_coded(Proposal(True, 0.0, 1.0)) == -1.0
    assert as_coded(Proposal(True, 0.5, 1.0), Weights(repetition=0.0)) == 0.5


def test_a_malformed_proposal_also_has_the_last_two_terms_as_coded() -> None:
    assert as_coded(Proposal(False, 0.5, 1 / 8, proposer_calls=2)) == pytest.approx(-1.025)
    assert malformed_reward("as_coded", 8) == pytest.approx(-1.125)
    assert malformed_reward("as_coded", 8, Weights(0.0, 9.0, 2.0)) == pytest.approx(-1.25)
    worst = min(as_coded(Proposal(True, 0.0, share / 8)) for share in range(1, 9))
    assert malformed_reward("as_coded", 8) < worst
    assert malformed_reward("published", 8) == 0.0


def test_published_by_hand() -> None:
    assert published(Proposal(True, 0.5, 1 / 8, executor_calls=2)) == pytest.approx(0.975)
    assert published(Proposal(True, 0.8, 0.25)) == pytest.approx(0.4 - 0.25)
    assert published(Proposal(True, 1.0, 0.5)) == 0.0
    assert published(Proposal(False, 0.5)) == 0.0
    halved = Weights(uncertainty=0.5, tool=2.0, repetition=2.0)
    assert published(Proposal(True, 0.5, 0.125, executor_calls=8), halved) == pytest.approx(0.65)


def test_each_definition_pays_for_the_calls_of_one_model() -> None:
    executors, proposers = (
        Proposal(True, 0.5, 0.25, executor_calls=4),
        Proposal(True, 0.5, 0.25, proposer_calls=4),
    )
    assert as_coded(executors) == 0.25
    assert as_coded(proposers) == pytest.approx(0.5 + 0.2 - 0.25)
    assert published(executors) == pytest.approx(1 + 0.2 - 0.25)
    assert published(proposers) == 0.75
    assert sorted(REWARDS) == ["as_coded", "published"]
