"""Segments, token by token: on recorded rollouts of a real policy, on hand-made and on random ones."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
import verifiers.v1 as vf

from air.env.config import ResearchEnvConfig
from air.env.credit import Ledger, split
from air.errors import InfrastructureError
from tests.rollouts import WEIGHTS, chain, episode, made, payment, recorded

RECORDED = recorded()


def masks(trace: Any, nodes: int) -> list[list[bool]]:
    """The mask of each of `nodes` nodes; empty where the trace ends before it."""
    return [node.mask for node in trace.nodes] + [[]] * (nodes - len(trace.nodes))


def check_partition(whole: Any, parts: Sequence[Any]) -> None:
    """The masks are pairwise disjoint, together they are what was sampled, and tokens are as they were."""
    count = len(whole.nodes)
    by_part = [masks(part, count) for part in parts]
    for index, node in enumerate(whole.nodes):
        times = [0] * len(node.mask)
        for one in by_part:
            for position, sampled in enumerate(one[index]):
                times[position] += sampled
        assert times == [int(sampled) for sampled in node.mask]
    for part in parts:
        for node, original in zip(part.nodes, whole.nodes, strict=False):
            assert node.token_ids == original.token_ids
            assert node.parent == original.parent
            assert node.logprobs == (original.logprobs if any(node.mask) else [])
            assert node.sampled == any(node.mask)
        for branch in part.branches:
            lengths = len(branch.token_ids), len(branch.sampled_mask), len(branch.logprobs)
            assert len(set(lengths)) == 1
        assert part.num_turns > 0  # prime-rl takes a trace without a turn for a failure
    assert sum(part.num_turns for part in parts) == whole.num_turns
    calls = [call.node for part in parts for call in part.calls]
    assert calls == [call.node for call in whole.calls]
    assert sum(p.usage.completion_tokens for p in parts) == whole.usage.completion_tokens


def check_rewards(whole: Any, parts: Sequence[Any]) -> None:
    """They add up, in all and by name; the episode's facts are there once."""
    assert sum(part.reward for part in parts) == pytest.approx(whole.reward)
    for name, term in whole.rewards.items():
        values = [part.rewards[name].value for part in parts]
        assert sum(values) == pytest.approx(term.value), name
    assert [part.metrics for part in parts] == [{}] * (len(parts) - 1) + [whole.metrics]
    assert len({part.id for part in parts}) == len(parts)
    noted = [(p.info["air"]["segment"], p.info["air"]["segments"]) for p in parts]
    assert noted == [(n + 1, len(parts)) for n in range(len(parts))]


def check_wire(whole: Any, parts: Sequence[Any]) -> None:
    """What an env server sends is what is read."""
    sent = episode(whole).model_copy(update={"traces": list(parts)})
    as_json = json.dumps(sent.model_dump(mode="json"))
    for got in (
        vf.WireEpisode.model_validate(sent.model_dump()),
        vf.WireEpisode.model_validate(json.loads(as_json)),
    ):
        for trace, part in zip(got.traces, parts, strict=True):
            assert masks(trace, 0) == masks(part, 0)
            assert trace.rewards == part.rewards
            assert trace.reward == part.reward
            for branch, original in zip(trace.branches, part.branches, strict=True):
                assert branch.token_ids == original.token_ids
                assert branch.logprobs == original.logprobs
            assert (trace.id, trace.ok, trace.info) == (part.id, True, part.info)


def checked(whole: Any) -> list[Any]:
    """The segments of an episode, having looked at all of that."""
    before = whole.model_dump_json()
    parts = split(whole)
    assert whole.model_dump_json() == before
    check_partition(whole, parts)
    check_rewards(whole, parts)
    check_wire(whole, parts)
    return parts


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_the_segments_of_a_recorded_episode(number: int) -> None:
    (whole,) = RECORDED[number].traces
    info, metrics = whole.info["air"], whole.metrics
    parts = checked(whole)
    # One branch, token-exact: a segment's tokens are the beginning of the episode's.
    (branch,) = whole.branches
    for part in parts:
        (own,) = part.branches
        assert own.token_ids == branch.token_ids[: len(own.token_ids)]
        assert own.token_ids[-1] == whole.nodes[len(part.nodes) - 1].token_ids[-1]
    assert parts[-1].branches[0].token_ids == branch.token_ids
    # Each is paid by its own delta; an automatic validate to which nothing was said joins the last.
    deltas = [part.rewards["delta"].value for part in parts]
    assert deltas[:-1] == pytest.approx(info["deltas"][: len(parts) - 1])
    assert deltas[-1] == pytest.approx(sum(info["deltas"][len(parts) - 1 :]))
    # The format penalty lies where the reply is to which the model was told of its error.
    errors = [format_errors(part) for part in parts]
    assert sum(errors) == metrics["format_errors"]
    costs = [part.rewards["format"].value for part in parts]
    assert costs == pytest.approx([-WEIGHTS["format_penalty"] * count for count in errors])
    assert all(part.rewards["time"].value < 0 for part in parts)
    assert [p.rewards["test_score"].value for p in parts[:-1]] == [0.0] * (len(parts) - 1)
    assert parts[-1].rewards["test_score"] == whole.rewards["test_score"]
    assert [part.stop_condition for part in parts[:-1]] == ["validate"] * (len(parts) - 1)


def format_errors(part: Any) -> int:
    """Replies of the segment's own that hold no block that ends, by the text alone."""
    said = [node.message.content for node in part.nodes if node.sampled]
    return sum(not (text.count("```bash\n") == 1 and text.endswith("```")) for text in said)


def test_the_recorded_episodes_are_of_all_kinds() -> None:
    traces = [one.traces[0] for one in RECORDED]
    counts = [len(split(trace)) for trace in traces]
    assert min(counts) == 1
    assert max(counts) >= 3
    ends = {trace.info["air"]["why_ended"] for trace in traces}
    assert {"submit", "turns", "length"} <= ends
    assert any(trace.metrics["format_errors"] for trace in traces)
    assert any(trace.rewards["test_score"].value for trace in traces)
    # At the last turn's validate there are two: the agent's, and the automatic one right after it.
    assert any(trace.metrics["validates"] > trace.metrics["turns"] for trace in traces)


def test_a_validate_in_the_first_turn_and_what_comes_after_the_last() -> None:
    whole = chain(3, [payment(3, delta=0.5), payment(7, delta=-0.125)])
    first, second = checked(whole)
    assert [node.sampled for node in first.nodes] == [False, False, True]
    assert [node.sampled for node in second.nodes] == [False] * 4 + [True, False, True]
    assert (first.reward, second.reward) == (0.5, -0.125)


def test_an_episode_without_a_validate_is_one_segment() -> None:
    (part,) = checked(chain(2, [payment(5, delta=0.25)]))  # the automatic one
    assert part.reward == 0.25


def test_a_validate_to_which_nothing_was_said_joins_the_one_before() -> None:
    payments = [payment(3, delta=0.5), payment(3, delta=0.25), payment(5, delta=1.0)]
    payments += [payment(5, delta=0.125, test_score=2.0)]
    first, second = checked(chain(2, payments))
    assert (first.reward, second.reward) == (0.75, 3.125)
    # And one that comes before the model has said anything belongs to what it says first.
    (only,) = checked(chain(1, [payment(1, delta=0.5), payment(3, delta=1.0)]))
    assert only.reward == 1.5


def test_what_is_said_after_a_submit_belongs_to_it() -> None:
    payments = [payment(3, delta=0.5, time=-0.25), payment(5, delta=1.0)]
    payments += [payment(7, ends=False, time=-0.5)]
    first, second = checked(chain(3, payments))
    assert (first.reward, second.reward) == (0.25, 0.5)
    assert second.nodes[6].sampled


def test_a_penalty_goes_to_the_segment_of_its_reply() -> None:
    payments = [
        payment(3, ends=False, format=-0.25),
        payment(5, delta=0.5),
        payment(7, ends=False, format=-0.25),
        payment(9, ends=False, format=-0.25),
        payment(9, failed_validates=-0.1, delta=0.0),
    ]
    first, second = checked(chain(4, payments))
    assert first.rewards["format"].value == -0.25
    assert second.rewards["format"].value == -0.5
    assert first.rewards["failed_validates"].value == 0
    assert second.rewards["failed_validates"].value == -0.1


def test_a_reward_that_air_does_not_place_goes_to_the_last_segment() -> None:
    whole = chain(2, [payment(3, delta=0.5), payment(5, delta=0.25)])
    whole.record_reward("judge", 0.5, weight=2.0)
    first, second = checked(whole)
    assert (first.rewards["judge"].value, second.rewards["judge"].value) == (0.0, 1.0)


def test_branches_of_a_forked_episode() -> None:
    """The model's second prompt does not extend the first reply's: a branch from node 1."""
    #   0 ── 1 ── 2* ── 3 ── 4*     and     1 ── 5 ── 6* ── 7 ── 8*
    parents = [None, 0, 1, 2, 3, 1, 5, 6, 7]
    payments = [payment(3, delta=0.5), payment(7, delta=0.25), payment(9, delta=1.0)]
    whole = made(parents, [2, 4, 6, 8], payments)
    first, second, third = checked(whole)
    assert [part.num_branches for part in (first, second, third)] == [1, 2, 2]
    trained = [[any(b.sampled_mask) for b in p.branches] for p in (first, second, third)]
    assert trained == [[True], [True, True], [False, True]]


def test_a_failed_episode_stays_one_trace_that_is_failed() -> None:
    whole = chain(2, [payment(3, delta=0.5), payment(5, delta=0.5)], ok=False)
    (same,) = split(whole)
    assert same is whole
    assert same.has_error


def test_payments_that_do_not_add_up_are_refused() -> None:
    whole = chain(2, [payment(3, delta=0.5), payment(5, delta=0.5)])
    whole.record_reward("delta", 0.9)
    with pytest.raises(InfrastructureError, match="delta"):
        split(whole)
    del whole.rewards["delta"]
    with pytest.raises(InfrastructureError, match="delta"):
        split(whole)


@pytest.mark.parametrize("seed", range(150))
def test_random_episodes(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(2, 16)
    parents = [
        None,
        *(rng.choice([n - 1, n - 1, n - 1, rng.randrange(n)]) for n in range(1, count)),
    ]
    said = sorted(rng.sample(range(1, count), rng.randint(1, count - 1)))
    when = sorted(rng.randint(0, count) for _ in range(rng.randint(0, 6)))
    payments = [
        payment(
            nodes,
            ends=rng.random() < 0.7,
            **{n: rng.uniform(-1, 1) for n in ("delta", "format", "time") if rng.random() < 0.6},
        )
        for nodes in when
    ]
    payments += [payment(count, ends=rng.random() < 0.5, test_score=rng.uniform(-1, 1))]
    parts = checked(made(parents, said, payments, rng=rng))
    ends = {p["nodes"] for p in payments if p["ends"]}
    # A segment ends at a validate or at the end; its length is what lies between.
    assert all(len(part.nodes) in ends for part in parts[:-1])
    assert len(parts[-1].nodes) == count


def test_the_ledger_notes_what_is_new() -> None:
    ledger = Ledger()
    ledger.note(3, {"delta": 0.0, "format": -0.25}, ends=False)
    ledger.note(5, {"delta": 0.0, "format": -0.25}, ends=False)
    ledger.note(5, {"delta": 0.5, "format": -0.25}, ends=True)
    ledger.note(7, {"delta": 0.5, "format": -0.25}, ends=True)
    assert ledger.payments == [
        payment(3, ends=False, format=-0.25),
        payment(5, delta=0.5),
        payment(7),
    ]


def test_what_a_test_score_pays_goes_to_the_segment_of_its_artefact() -> None:
    ledger = Ledger()
    ledger.note(3, {"delta": 0.5, "test_score": 0.0}, ends=True)
    ledger.note(4, {"delta": 0.5, "test_score": 0.0}, ends=False)
    ledger.note(5, {"delta": 0.5, "test_score": 0.0}, ends=True)
    ledger.settle(1, {"delta": 0.5, "test_score": 0.75})
    assert ledger.payments == [payment(3, delta=0.5, test_score=0.75), payment(5)]
    first, second = checked(chain(2, ledger.payments))
    assert (first.rewards["test_score"].value, second.rewards["test_score"].value) == (0.75, 0.0)


def test_what_pays_a_validate_before_the_ledger_is_noted_alone() -> None:
    ledger = Ledger()
    ledger.settle(0, {"test_score": 0.75})
    assert ledger.payments == [payment(0, ends=False, test_score=0.75)]


def test_segments_cannot_be_paid_by_a_holdout() -> None:
    with pytest.raises(ValueError, match='use credit = "episode"'):
        ResearchEnvConfig(final="holdout", credit="segment")
    assert ResearchEnvConfig(final="holdout", max_validates=3).validates == 3
    assert ResearchEnvConfig().validates == ResearchEnvConfig().agent.max_turns
