"""Assigns each term of an episode's reward to the segment of the episode in which it arose, so that training
rewards the replies that earned it.

In a research task, a segment is the part of an episode up to a `validate`, a grading that the agent requests;
the last segment ends with the automatic grading at the episode's end. In other worlds, such as games, an
action with a reward ends a segment. With the setting `credit = "segment"`, each segment becomes one training
sample: a trace, which is the record of an episode in the library `verifiers`. The reward terms of a research
task are assigned as follows:

    delta, failed_validates   to the segment that the `validate` ends
    format                    to the segment with the reply that was not an action
    time                      to each segment, for the agent's time in it
    test_score, holdout       to the segment that made the artefact (the agent's result) that counts in the
                              end, which the setting `delta` determines
    terms of `verifiers`      to the last segment, because `verifiers`' judges see the whole episode

If two validates follow each other without a reply between them, both end the same segment, so every segment
has tokens that the model sampled. The rewards of all segments add up to the reward of the episode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from air.errors import InfrastructureError

Payment = dict[str, Any]
"""A part of an episode's reward (what arose since the previous payment), with its position in the trace,
which is `verifiers`' record of the episode. The trace stores payments in `info["air"]["paid"]`.

The keys: `nodes` is the number of nodes (messages) that the trace had at that time. `ends` says whether a
segment of the episode ended there: by a `validate` in a research task, by an action with a reward in another
world. `terms` maps the name of each reward term to its amount.
"""

ONLY_LAST: dict[str, Any] = {
    "metrics": {},
    "extra_usage": [],
    "is_timeout": False,
    "root_reply": None,
    "stop_condition": "validate",
}
"""Values for fields of a trace, `verifiers`' record of an episode. If an episode is split into several
traces, all traces but the last get these values, so that sums and means over traces count the episode only
once."""


@dataclass
class Ledger:
    """The list of payments of a running episode. A payment is a part of the episode's reward, with the
    position in the trace (`verifiers`' record of the episode) at which it arose."""

    payments: list[Payment] = field(default_factory=list)
    _so_far: dict[str, float] = field(default_factory=dict)

    def note(self, nodes: int, terms: Mapping[str, float], *, ends: bool) -> None:
        """Appends a payment: the reward that arose since the last call of `note` or `settle`. Appends nothing
        if no reward arose and no segment ends. `nodes` is the present number of nodes (messages) in the trace
        (`verifiers`' record of the episode), and `terms` maps the name of each reward term to its present
        total. `ends` says whether a segment of the episode ends here, by a `validate` or by an action with a
        reward."""
        changes = self._changes(terms)
        if changes or ends:
            self.payments.append({"nodes": nodes, "ends": ends, "terms": changes})

    def settle(self, back: int, terms: Mapping[str, float]) -> None:
        """Adds the reward that arose since the last call of `note` or `settle` to the payment of an earlier
        `validate`. `back` says which one, counted from the end (0: the last). Used for the test score: its
        reward goes to the segment that made the tested artefact. `terms` maps the name of each reward term to
        its present total."""
        payments = [payment for payment in self.payments if payment["ends"]]
        changes = self._changes(terms)
        if back >= len(
            payments
        ):  # the validate was restored from a record, before this ledger began
            self.payments.append({"nodes": 0, "ends": False, "terms": changes})
            return
        paid = payments[-1 - back]["terms"]
        for name, value in changes.items():
            paid[name] = paid.get(name, 0.0) + value

    def _changes(self, terms: Mapping[str, float]) -> dict[str, float]:
        """Returns by how much each reward term has changed since the last call of this method, as a dict by
        name without the unchanged terms. `terms` maps each name to the present total."""
        changes = {
            name: value - self._so_far.get(name, 0.0)
            for name, value in terms.items()
            if value != self._so_far.get(name, 0.0)
        }
        self._so_far = dict(terms)
        return changes


@dataclass
class Segment:
    """A part of an episode that ends at a `validate` or, in worlds other than research tasks, at an action
    with a reward: the nodes (messages) from `start` to `end - 1` of the episode's trace (`verifiers`'
    record), and the reward `terms` that arose in them."""

    start: int
    end: int
    terms: dict[str, float]
    payments: list[Payment] = field(default_factory=list)
    """The payments whose sum is `terms`, in the order in which they arose."""

    def pay(self, terms: Mapping[str, float]) -> None:
        """Adds the amounts in `terms` to the segment's reward terms of the same names."""
        for name, value in terms.items():
            self.terms[name] = self.terms.get(name, 0.0) + value

    def take(self, payments: Sequence[Payment]) -> None:
        """Appends payments (parts of the episode's reward) to the segment's list, and adds their amounts to
        its reward terms."""
        for payment in payments:
            self.pay(payment["terms"])
        self.payments += payments


def segments(sampled: Sequence[bool], payments: Sequence[Payment]) -> list[Segment]:
    """Splits an episode into segments, each of which becomes one training sample. Returns them in order;
    there is at least one. In a research task, a segment ends where the agent had its work graded (a
    `validate`); in other worlds, at an action with a reward. The last segment extends to the end of the
    trace, the record of the episode that the library `verifiers` keeps. `sampled` says for each node
    (message) of the trace whether the model wrote it; `payments` are the rewards that the episode's `Ledger`
    noted, in order."""
    parts: list[Segment] = []
    start, unpaid = 0, Segment(0, 0, {})
    for payment in payments:
        unpaid.take([payment])
        if not payment["ends"]:
            continue
        if any(sampled[start : payment["nodes"]]):
            parts.append(replace(unpaid, start=start, end=payment["nodes"]))
            start = payment["nodes"]
        elif parts:
            parts[-1].take(unpaid.payments)
        else:
            continue
        unpaid = Segment(0, 0, {})
    if not parts:
        return [replace(unpaid, end=len(sampled))]
    parts[-1].end = len(sampled)
    parts[-1].take(unpaid.payments)
    return parts


def split(trace: Any) -> list[Any]:
    """Splits the trace of an episode (`verifiers`' record, a training sample) into one trace for each
    segment, and returns them in order. Returns only `trace` itself if an infrastructure error ended the
    episode.

    Each new trace is a copy of `trace` up to the end of its segment. Earlier segments in it are only context:
    their loss masks are false. Only the last trace has the episode's metrics. Raises InfrastructureError if
    the rewards of the segments do not add up to those of `trace`.
    """
    if not trace.ok:
        return [trace]
    summary = trace.info.get("air", {})
    parts = segments([node.sampled for node in trace.nodes], summary.get("paid", []))
    ours = {name for segment in parts for name in segment.terms}
    for name in ours:
        term = trace.rewards.get(name)
        total = math.fsum(segment.terms.get(name, 0.0) for segment in parts)
        if term is None or not math.isclose(total, term.value, rel_tol=1e-9, abs_tol=1e-9):
            raise InfrastructureError(f"segments earned {total} of {name}, the episode {term}")
    for name, term in trace.rewards.items():
        if term is not None and name not in ours:
            parts[-1].pay({name: term.value})
    return [_part(trace, number, parts) for number in range(len(parts))]


def _part(trace: Any, number: int, parts: Sequence[Segment]) -> Any:
    segment, last = parts[number], number == len(parts) - 1
    summary = trace.info.get("air", {})
    nodes = [
        node if position >= segment.start or not node.sampled else _as_context(node)
        for position, node in enumerate(trace.nodes[: segment.end])
    ]
    update = {} if last else ONLY_LAST
    part = trace.model_copy(
        update={
            **{name: value for name, value in update.items() if name in type(trace).model_fields},
            "id": f"{trace.id}-{number + 1}",
            "nodes": nodes,
            "calls": [call for call in trace.calls if _is_of(call, segment, last)],
            "rewards": {},
            "info": {
                **trace.info,
                "air": {
                    **summary,
                    "terms": {n: segment.terms.get(n, 0.0) for n in summary.get("terms", {})},
                    "metrics": summary.get("metrics", {}) if last else {},
                    "segment": number + 1,
                    "segments": len(parts),
                },
            },
        }
    )
    for name in trace.rewards:
        part.record_reward(name, segment.terms.get(name, 0.0))
    return part


def _as_context(node: Any) -> Any:
    """Returns a copy of a node (message) that serves only as context in training: it is not marked as
    sampled, and its loss mask is false everywhere."""
    fields = type(node).model_fields
    empty = {name: None for name in ("sampling_mask", "kept_tokens") if name in fields}
    return node.model_copy(
        update={"sampled": False, "mask": [False] * len(node.mask), "logprobs": [], **empty}
    )


def _is_of(call: Any, segment: Segment, last: bool) -> bool:
    """Whether the model call `call` was made in `segment`, a part of the episode; then the segment's trace
    (record) must contain it. A failed call has no position in the episode's trace, and belongs to the last
    segment; `last` says whether `segment` is the last."""
    if call.node is None:
        return last
    return bool(segment.start <= call.node < segment.end)
