"""Which side `POST /rollouts` names as the cause of a failed episode."""

from __future__ import annotations

import pytest

from air.serve.rollouts.episodes import stop_reason
from air.train.loop.rollout import Rollout

ANSWERED = "InferenceError: the model endpoint answered 502: {}"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("ProviderError: upstream 502: bad gateway", "model_error"),
        (ANSWERED, "model_error"),
        (f"HarnessError: harness 'air': {ANSWERED}", "model_error"),
        ("HarnessError: harness 'air': BoxDiedError: the box ended", "env_error"),
        ("HarnessError: harness 'air' exited 1: no output", "env_error"),
        (f"InfrastructureError: the server answered 500: {ANSWERED}", "env_error"),
        (f"HarnessError: harness 'air': InfrastructureError: it said: {ANSWERED}", "env_error"),
        ("no reason given", "env_error"),
    ],
)
def test_the_side_that_failed_is_named(error: str, reason: str) -> None:
    assert stop_reason(Rollout("rollouts", "task", [], error=error)) == reason
