"""A run with an algorithm, a loss and terms that are not the defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.train.test_further_models import run
from tests.e2e.train.test_resume import rows


def test_adpo_with_an_entropy_bonus_and_a_penalty_in_the_loss(small: Path, tmp_path: Path) -> None:
    """The reference is the policy itself. Its penalty is 0 at the first step, before the weights move, but
    for the rounding between the sampler and the reference; and above that at the second."""
    flags = {
        "orchestrator.algo.type": "adpo",
        "trainer.loss.type": "ppo_clip",
        "trainer.loss.normalization": "sequence",
        "trainer.loss.entropy-coefficient": "0.01",
        "trainer.optim.lr": "1e-3",
        "embedded.kl.place": "loss",
        "embedded.kl.estimator": "mse",
    }
    argv = [part for key, value in flags.items() for part in (f"--{key}", value)]
    first, second = rows(run(tmp_path, small, *argv, steps=2))
    assert first["train/reference_kl"] == pytest.approx(0, abs=1e-8)
    assert second["train/reference_kl"] > 1e-6
    # The penalty and the bonus train all sampled tokens, also if no reward differs.
    for row in (first, second):
        assert row["train/updated"] == 1
        assert row["train/tokens"] == row["sampled_tokens"]
