"""What `tokens/step_N.npz` says about each token: whether it was sampled and trained, and what paid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from air.env.credit import split
from air.errors import UsageError
from air.train.algorithms import GRPOConfig
from air.train.config.model_options import AdamWConfig
from air.train.loop.rollout import Group, Rollout
from air.train.loop.samples import samples
from air.train.loop.step_logs.token_log import TokenLog
from air.train.loop.trainer import Trainer
from air.train.model.logprobs import token_logprobs
from air.train.model.policy import Policy
from air.trajectories import trained_tokens
from air.trajectories.trained_tokens import Conversation, StepTokens
from tests.rollouts import chain, payment

PAID = [payment(3, delta=0.5), payment(5, ends=False, format=-0.25), payment(7, delta=0.25)]
"""Turn 1 validates, turn 2 is no action, and turn 3 validates."""


def trained(
    run: Path, policy: Policy, traces: list[Any], *, by_segment: bool = False, by_turn: bool = False
) -> StepTokens:
    """Trains a step on a group with these traces, and returns what its file says."""
    rollouts = [
        Rollout("s", "t", split(t) if by_segment else [t], error="" if t.ok else "failed")
        for t in traces
    ]
    log = TokenLog(run, policy.tokenizer, 2**20, temperature=0.7, by_turn=by_turn)
    made = samples([Group(rollouts)], GRPOConfig().build(), 0.7, by_turn=by_turn)
    Trainer(policy, AdamWConfig(lr=0.0)).step(made, log.listen)
    log.write(3, [Group(rollouts)], made)
    tokens = trained_tokens.read(run, 3)
    assert tokens is not None
    return tokens


def check_exact(policy: Policy, conversation: Conversation, trace: Any) -> None:
    """The tokens are the trace's, and the trainer's numbers are those of the model."""
    ids = torch.tensor([[t for node in trace.nodes for t in node.token_ids]])
    with torch.no_grad():
        again = token_logprobs(policy.model, ids, 0.7)[0].numpy()
    start = 0
    for message, node in zip(conversation.messages, trace.nodes, strict=True):
        assert message.token_ids.tolist() == node.token_ids
        assert message.sampled.tolist() == node.mask
        assert message.logprobs.tolist() == pytest.approx(node.logprobs)
        end = start + len(node.token_ids)
        wanted = again[start:end][message.sampled]
        assert message.trainer_logprobs == pytest.approx(wanted, abs=1e-4)
        assert message.ratios == pytest.approx(np.exp(wanted - message.logprobs), rel=1e-3)
        start = end


def test_every_token_has_what_the_trainer_saw(small: Policy, tmp_path: Path) -> None:
    long, short = chain(3, PAID), chain(1, [payment(3, delta=0.1)])
    tokens = trained(tmp_path, small, [long, short])
    assert (tokens.step, tokens.temperature, tokens.shuffled) == (3, 0.7, False)
    for conversation, trace, advantage in zip(
        tokens.conversations, (long, short), (0.2, -0.2), strict=True
    ):
        check_exact(small, conversation, trace)
        assert conversation.episode == "e"
        for message in conversation.messages:
            assert message.advantages.tolist() == pytest.approx([advantage] * len(message.logprobs))
    used = {t for trace in (long, short) for node in trace.nodes for t in node.token_ids}
    assert set(tokens.pieces) == used
    assert all(tokens.pieces[t] == small.tokenizer.decode([t]) for t in used)


def test_payments_have_the_turn_and_the_validate_in_which_they_arose(
    small: Policy, tmp_path: Path
) -> None:
    judged = chain(3, PAID)
    judged.record_reward("judge", 0.125)
    first, _ = trained(tmp_path, small, [judged, chain(1, [])]).conversations
    assert [(p.turn, p.validate, p.terms) for p in first.payments] == [
        (1, 1, {"delta": 0.5}),
        (2, None, {"format": -0.25}),
        (3, 2, {"delta": 0.25}),
        (3, None, {"judge": 0.125}),
    ]
    assert first.replies == [2, 4, 6]
    assert [first.messages[n].paid for n in first.replies] == [(0, 4)] * 3
    paid = sum(sum(p.terms.values()) for p in first.payments)
    assert paid == pytest.approx(judged.reward)


def test_segments_are_one_conversation_again(small: Policy, tmp_path: Path) -> None:
    trace = chain(3, PAID)
    first, _ = trained(tmp_path, small, [trace, chain(1, [])], by_segment=True).conversations
    check_exact(small, first, trace)
    assert [first.messages[n].paid for n in first.replies] == [(0, 1), (1, 3), (1, 3)]
    # The segments earned 0.5 and 0, the other episode 0; the mean over episodes is 0.125.
    advantages = [first.messages[n].advantages[0] for n in first.replies]
    assert advantages == pytest.approx([0.375, -0.125, -0.125])


def test_reward_to_go_counts_what_a_turn_and_later_ones_earned(
    small: Policy, tmp_path: Path
) -> None:
    first, _ = trained(tmp_path, small, [chain(3, PAID), chain(1, [])], by_turn=True).conversations
    assert [first.messages[n].paid for n in first.replies] == [(0, 3), (1, 3), (2, 3)]
    # To go: 0.5, 0, 0.25 against 0: half of each. The second turn has no advantage, but is in the sample.
    advantages = [first.messages[n].advantages[0] for n in first.replies]
    assert advantages == pytest.approx([0.25, 0.0, 0.125])


def test_an_episode_without_advantage_is_recorded_as_not_trained(
    small: Policy, tmp_path: Path
) -> None:
    same = [chain(1, [payment(3, delta=0.5)]) for _ in range(2)]
    failed = chain(1, [], ok=False)
    tokens = trained(tmp_path, small, [*same, failed])
    assert len(tokens.conversations) == 2
    reply = tokens.conversations[0].messages[2]
    assert reply.logprobs.tolist() == same[0].nodes[2].logprobs
    assert not reply.advantages.any()
    assert np.isnan(reply.ratios).all()


def test_only_the_last_steps_are_kept(small: Policy, tmp_path: Path) -> None:
    tokens = trained(tmp_path, small, [chain(1, [payment(3, delta=0.5)]), chain(1, [])])
    size = trained_tokens.file_of(tmp_path, 3).stat().st_size
    for step in (4, 12):
        trained_tokens.write(
            tmp_path, StepTokens(step, 1.0, False, tokens.conversations, tokens.pieces)
        )
    trained_tokens.drop_oldest(tmp_path, 2.5 * size)
    assert trained_tokens.recorded_steps(tmp_path) == [4, 12]
    assert trained_tokens.read(tmp_path, 3) is None


@pytest.mark.parametrize("damage", [b"", b"not an archive", None])
def test_a_damaged_file_is_named(small: Policy, tmp_path: Path, damage: bytes | None) -> None:
    trained(tmp_path, small, [chain(1, [payment(3, delta=0.5)]), chain(1, [])])
    path = trained_tokens.file_of(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:-100] if damage is None else damage)
    with pytest.raises(UsageError, match=r"step_3\.npz.*delete the file"):
        trained_tokens.read(tmp_path, 3)
