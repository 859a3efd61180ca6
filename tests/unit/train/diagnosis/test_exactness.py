"""Differences between trainer and sampler are reported by version of the weights, and a drift warns once."""

from __future__ import annotations

import logging
import math

import pytest
import torch

from air.train.algorithms import GRPOConfig
from air.train.config.model_options import AdamWConfig
from air.train.diagnosis.logprob_mismatch import Exactness, drifts, warn_of_drift
from air.train.loop.metrics import distributions, of_samples
from air.train.loop.rollout import Group, Rollout
from air.train.loop.samples import samples
from air.train.loop.trainer import Trainer
from air.train.model.policy import Policy
from air.train.tree.sample import Sample
from tests.rollouts import chain, payment


def group(*versions: int | None) -> Group:
    """Two or more episodes of one turn with different rewards, sampled by these versions of the weights."""
    return Group(
        [
            Rollout("s", "t", [chain(1, [payment(3, delta=0.1 * n)])], weights_version=version)
            for n, version in enumerate(versions)
        ]
    )


def listened(exactness: Exactness, group: Group, differences: list[list[float]]) -> None:
    """Tells `exactness` of one sample per episode, whose trained tokens have these differences."""
    for rollout, values in zip(group.rollouts, differences, strict=True):
        nodes = rollout.trace.nodes
        mask = [sampled for node in nodes for sampled in node.mask]
        first = mask.index(True)
        trained = range(first, first + len(values))
        logprobs = torch.full((len(mask),), math.nan)
        logprobs[first : first + len(values)] = torch.tensor([-1.0 + value for value in values])
        sample = Sample(
            [token for node in nodes for token in node.token_ids],
            mask,
            [-1.0 if sampled else 0.0 for sampled in mask],
            [float(place in trained) for place in range(len(mask))],
            1.0,
            tuple(nodes),
        )
        exactness.listen(sample, logprobs)


def test_numbers_worked_by_hand() -> None:
    one = group(4, 4, 3)
    exactness = Exactness(5, [one])
    listened(exactness, one, [[0.0, 0.5], [-0.25], [1.0]])
    row = exactness.metrics()
    # exp(d) - d - 1: 0, 0.148721, 0.028801 and 0.718282
    assert row["mismatch_kl/all/mean"] == pytest.approx(0.895804 / 4, abs=1e-6)
    assert row["mismatch_kl/all/max"] == pytest.approx(0.718282, abs=1e-6)
    assert row["logprob_diff/mean"] == pytest.approx(1.75 / 4)
    assert row["logprob_diff/max"] == pytest.approx(1.0)
    assert row["weights_version"] == 3
    assert row["off_policy/max"] == 1.0
    assert row["off_policy/mean"] == pytest.approx(1 / 3)
    assert row["off_policy/tokens"] == 1
    assert row["versions"].keys() == {"3", "4"}
    assert row["versions"]["4"]["tokens"] == 3
    assert row["versions"]["4"]["mismatch_kl_mean"] == pytest.approx(0.177522 / 3, abs=1e-6)
    assert row["versions"]["4"]["logprob_diff_max"] == 0.5


def test_a_version_that_is_not_known_is_no_version() -> None:
    one = group(None, None)
    exactness = Exactness(5, [one])
    listened(exactness, one, [[0.5], [0.5]])
    row = exactness.metrics()
    assert row["logprob_diff/max"] == 0.5
    assert (row["versions"], row["off_policy/tokens"]) == ({}, 0)
    assert "weights_version" not in row
    assert Exactness(1, []).metrics() == {}


def test_tokens_without_advantage_count_if_the_trainer_trains_them() -> None:
    """As with an entropy bonus: the loss then moves tokens of advantage 0, too."""
    sample = Sample([1, 2, 3], [False, True, True], [0.0, -1.0, -1.0], [0.0, 0.0, 2.0], 1.0)
    for trains_zeros, largest in ((False, 0.0), (True, 0.5)):
        exactness = Exactness(1, [], trains_zeros=trains_zeros)
        exactness.listen(sample, torch.tensor([math.nan, -1.5, -1.0]))
        assert exactness.metrics()["logprob_diff/max"] == largest


def test_the_trainer_reports_what_the_sampler_did_not_say(small: Policy) -> None:
    """The recorded log-probabilities are made up, so the trainer differs from them."""
    one = group(0, 0)
    exactness = Exactness(1, [one])
    made = samples([one], GRPOConfig().build(), 1.0)
    report = Trainer(small, AdamWConfig(lr=0.0)).step(made, exactness.listen)
    row = exactness.metrics()
    assert row["versions"]["0"]["tokens"] == report["tokens"]
    assert row["mismatch_kl/all/mean"] == pytest.approx(report["mismatch_kl"], rel=1e-4)
    assert row["logprob_diff/max"] > 0.1


def test_a_drift_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    def row(step: int, difference: float) -> dict[str, object]:
        one = group(step - 1, step - 1)
        exactness = Exactness(step, [one])
        listened(exactness, one, [[difference], [difference]])
        return {"step": step, **exactness.metrics()}

    rows = [row(1, 1e-6), row(2, 0.05), row(3, 0.05)]
    with caplog.at_level(logging.WARNING):
        for number, each in enumerate(rows):
            warn_of_drift(each, rows[:number], "float32")
    (record,) = caplog.records
    assert record.getMessage().startswith("step 2: the trainer gives the sampled tokens other")
    assert "precision" in record.getMessage()
    # exp(0.05) - 0.05 - 1 = 0.00127: rounding in bfloat16, but not in float32
    assert [drifts(each, "float32") for each in rows] == [False, True, True]
    assert not any(drifts(each, "bfloat16") for each in rows)


def test_tokens_of_earlier_weights_are_no_drift() -> None:
    one = group(0, 0)
    exactness = Exactness(2, [one])
    listened(exactness, one, [[0.5], [0.5]])
    assert not drifts({"step": 2, **exactness.metrics()}, "float32")


def test_distributions_have_the_names_and_definitions_of_prime_rl() -> None:
    long, short = chain(3, [payment(3, delta=0.5)]), chain(1, [payment(3, delta=0.1)])
    failed = Rollout("b", "t", [], error="gone")
    groups = [Group([Rollout("a", "t", [long]), Rollout("a", "t", [short])]), Group([failed])]
    row = distributions(groups)
    turns = {
        name: row[f"train/agg/effective/num_turns/{name}"]
        for name in ("mean", "max", "min", "p10", "p90")
    }
    # Between 1 and 3, 10 % of the way is 1.2.
    assert turns == pytest.approx({"mean": 2.0, "max": 3.0, "min": 1.0, "p10": 1.2, "p90": 2.8})
    assert row["train/a/effective/num_branches/max"] == 1.0
    assert row["train/agg/effective/agent/reward/mean"] == pytest.approx(0.3)
    assert row["train/agg/all/has_error/mean"] == pytest.approx(1 / 3)
    assert (row["train/a/all/has_error/mean"], row["train/b/all/has_error/mean"]) == (0.0, 1.0)
    assert (row["batch/a"], row["batch/b"]) == (1.0, 0.0)
    drawn = [sum(node.mask) for trace in (long, short) for node in trace.nodes if any(node.mask)]
    assert row["reply_tokens/mean"] == pytest.approx(sum(drawn) / len(drawn))
    assert not any(name.startswith("train/b/effective") for name in row)


def test_statistics_of_advantages_are_over_trained_tokens() -> None:
    made = [
        Sample([1, 2, 3], [False, True, True], [0.0, -1.0, -1.0], [9.0, 0.5, 1.5], 1.0),
        Sample(
            [1, 2], [False, True], [0.0, -1.0], [9.0, -0.5], 1.0, arrays={"returns": [7.0, 2.0]}
        ),
    ]
    row = of_samples(made)
    assert row["advantages/mean"] == pytest.approx(0.5)
    assert row["advantages/std"] == pytest.approx(math.sqrt(2 / 3))
    assert (row["advantages/min"], row["advantages/max"]) == (-0.5, 1.5)
    assert (row["returns/mean"], row["returns/std"]) == (2.0, 0.0)
    assert of_samples([]) == {}
