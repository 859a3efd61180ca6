from __future__ import annotations

from typing import Any

import pytest
import torch

from air.errors import UsageError
from air.train.serving import self_check
from tests.unit.train import families
from tests.unit.train.model.test_attention import MODELS


@pytest.mark.parametrize(("family", "attention"), MODELS)
def test_each_family_samples_as_it_trains(family: str, attention: str) -> None:
    self_check.check(families.policy(family, attention), 128)


def test_the_shortest_context_is_checked() -> None:
    self_check.check(families.policy("llama"), 2)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_model_that_samples_otherwise_than_it_trains_is_refused(attention: str) -> None:
    policy = families.policy("llama", attention)

    def without_positions(_: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if "position_ids" in kwargs:
            kwargs["position_ids"] = torch.zeros_like(kwargs["position_ids"])
        return args, kwargs

    # The trainer calls the model's backbone, and the sampler the whole model.
    policy.model.register_forward_pre_hook(without_positions, with_kwargs=True)
    with pytest.raises(UsageError, match=r"^llama: the sampler's .* differ .* by \d.* nats"):
        self_check.check(policy, 128)


def test_a_model_that_cannot_be_sampled_is_refused_by_name() -> None:
    policy = families.policy("llama")

    def without_a_cache(_: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if kwargs.get("past_key_values") is not None:
            raise RuntimeError("no such\ncache")
        return args, kwargs

    policy.model.register_forward_pre_hook(without_a_cache, with_kwargs=True)
    with pytest.raises(UsageError, match=r"^llama: the sampler fails .*: no such cache — .*eager"):
        self_check.check(policy, 128)
