"""Our algorithms and losses beside prime-rl's own functions, on the same random numbers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from air.train.algorithms import AlgorithmConfig, GRPOConfig, ScoredGroup, ScoredPart
from air.train.algorithms.losses import POLICY_LOSSES
from air.train.algorithms.losses.base import LossInputs
from air.train.algorithms.opd import OPD
from air.train.algorithms.rewards_only.grpo import LengthPenaltyConfig
from air.train.algorithms.rewards_only.max_rl import MaxRLConfig
from air.train.algorithms.rewards_only.rae import RAEConfig
from air.train.config import loss_options
from air.train.config.loss_options import CrossEntropyLossConfig
from air.train.loop.rollout import Group, Rollout
from air.train.loop.samples import samples
from tests.rollouts import chain, episode, payment

pytestmark = pytest.mark.primerl
Report = Callable[[str], None]

CASES = 200
PENALTY = {
    "num_output_tokens_weight": 0.25,
    "num_input_tokens_weight": 0.15,
    "num_turns_weight": 0.1,
}
ROUNDING = 1e-5
"""prime-rl takes means in float32 (a relative error of 6e-8), and divides by means down to 1/8."""


# Importing prime-rl's loss compiles functions, and torch's compiler warns of a part of torch itself.
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("kind", ["default", "ipo"])
def test_losses_and_gradients_are_equal(kind: str, report: Report) -> None:
    from prime_rl.configs import trainer as theirs
    from prime_rl.trainer.rl import loss as functions

    name = {"default": "DefaultLossConfig", "ipo": "IPOLossConfig"}[kind]
    function = getattr(functions, f"{kind}_loss_fn")
    generator, worst = torch.Generator().manual_seed(0), 0.0
    for _ in range(CASES):
        now, then = torch.rand(2, 32, generator=generator, dtype=torch.float64).log()
        advantages = torch.randn(32, generator=generator, dtype=torch.float64)
        settings = {"kl_tau": 0.1, "adv_tau": 0.7}
        ours = getattr(loss_options, name)(**settings)
        found, wanted = now.clone().requires_grad_(), now.clone().requires_grad_()
        loss = POLICY_LOSSES[type(ours)](LossInputs(found, then, advantages), ours).loss.sum()
        inputs = functions.LossInputs(wanted, then, None, advantages, torch.ones(32).bool())
        other = function(inputs, getattr(theirs, name)(**settings)).loss
        worst = max(worst, difference(loss, found, other, wanted))
    assert worst < 1e-10
    report(
        f"loss {kind}: {CASES} random cases, largest difference of loss and gradients {worst:.1e}"
    )


def test_the_cross_entropy_of_sft_is_equal(report: Report) -> None:
    from prime_rl.trainer.rl import loss as functions

    generator, worst = torch.Generator().manual_seed(0), 0.0
    for _ in range(CASES):
        now, then = torch.rand(2, 32, generator=generator, dtype=torch.float64).log()
        found, wanted = now.clone().requires_grad_(), now.clone().requires_grad_()
        loss = POLICY_LOSSES[CrossEntropyLossConfig](
            LossInputs(found, then, torch.ones_like(then)), CrossEntropyLossConfig()
        ).loss.sum()
        inputs = functions.LossInputs(
            wanted, then, None, torch.zeros_like(then), torch.ones(32).bool()
        )
        worst = max(worst, difference(loss, found, functions.ce_loss_fn(inputs).loss, wanted))
    assert worst < 1e-10
    report(f"loss of sft: {CASES} random cases, largest difference {worst:.1e}")


def test_distillation_is_equal_on_policy(report: Report) -> None:
    """`opd` with the loss `default`, beside prime-rl's loss for it. The sampler's probabilities are the
    trainer's: otherwise prime-rl takes the trainer's for the advantage, and air the sampler's."""
    from prime_rl.trainer.rl import loss as functions

    generator, worst = torch.Generator().manual_seed(0), 0.0
    for _ in range(CASES):
        now, teacher = torch.rand(2, 32, generator=generator, dtype=torch.float64).log()
        part = ScoredPart(0.0, 32, logprobs=now.tolist(), teacher=teacher.tolist())
        [[credit]] = OPD()(ScoredGroup([[part]]))
        advantages = torch.tensor(credit.per_token(32), dtype=torch.float64)
        found, wanted = now.clone().requires_grad_(), now.clone().requires_grad_()
        ours = loss_options.DefaultLossConfig()
        loss = POLICY_LOSSES[type(ours)](LossInputs(found, now, advantages), ours).loss.sum()
        inputs = functions.LossInputs(
            wanted, now, teacher, torch.zeros_like(now), torch.ones(32).bool()
        )
        worst = max(worst, difference(loss, found, functions.ref_kl_loss_fn(inputs).loss, wanted))
    assert worst < 1e-10
    report(f"loss of opd, on policy: {CASES} random cases, largest difference {worst:.1e}")


def difference(
    loss: torch.Tensor, at: torch.Tensor, other: torch.Tensor, other_at: torch.Tensor
) -> float:
    """The largest difference between two losses and between their gradients."""
    [ours], [theirs] = torch.autograd.grad(loss, at), torch.autograd.grad(other, other_at)
    return max(abs(float((loss - other).detach())), float((ours - theirs).abs().max()))


def of_prime_rl(kind: str, settings: dict[str, Any]) -> Any:
    """One of prime-rl's algorithms. It gets no inference pool, which these do not use."""
    import pydantic
    from prime_rl.configs.algorithm import AlgoConfig
    from prime_rl.orchestrator.algo import build_algorithm

    config = pydantic.TypeAdapter(AlgoConfig).validate_python({"type": kind, **settings})
    return build_algorithm(config, None)


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (GRPOConfig(), {}),
        (GRPOConfig(length_penalty=LengthPenaltyConfig(**PENALTY)), {"length_penalty": PENALTY}),
        (MaxRLConfig(), {}),
        (RAEConfig(decay=0.8), {"decay": 0.8}),
    ],
    ids=["grpo", "length_penalty", "max_rl", "rae"],
)
def test_advantages_are_equal(
    config: AlgorithmConfig, settings: dict[str, Any], report: Report
) -> None:
    theirs, ours = of_prime_rl(config.type, settings), config.build()
    rng, worst = random.Random(0), 0.0
    for _ in range(CASES):
        # Rewards of 0 and 1 in half of the groups: there, means of 0 occur.
        rewards = [rng.random() for _ in range(8)]
        if rng.random() < 0.5:
            rewards = [float(r < 0.2) for r in rewards]
        traces = [chain(rng.randint(1, 4), [payment(3, delta=r)], rng=rng) for r in rewards]
        asyncio.run(theirs.score_group([episode(trace) for trace in traces]))
        group = Group([Rollout("s", "t", [trace]) for trace in traces])
        made = {id(s.nodes[0]): s for s in samples([group], ours, 1.0, keep_zeros=True)}
        for trace in traces:
            sample = made[id(trace.nodes[0])]
            each = zip(sample.advantages(), sample.mask, strict=True)
            found = [advantage for advantage, sampled in each if sampled]
            wanted = [a for node in trace.nodes for a in node.advantages or []]
            assert found == pytest.approx(wanted, abs=ROUNDING)
            worst = max(worst, *(abs(a - b) for a, b in zip(found, wanted, strict=True)))
    name = " with ".join([config.type, *settings])
    report(f"{name}: {CASES} random groups, largest difference of advantages {worst:.1e}")
