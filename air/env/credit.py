"""Assigns each term of an episode's reward to the segments of the episode in which it arose.

A segment is the part of an episode up to a `validate`. Replies after the last `validate` belong to the
automatic `validate` at the episode's end. With the setting `credit = "segment"` each segment becomes one
trace (one training sample). Each term of the reward is added to the segment in which it arose:

    delta, failed_validates   the segment that the `validate` ends
    format                    the segment of the reply that was not an action
    time                      each segment, for the agent's time in it
    test_score                the last segment, which made the last artefact
    terms of verifiers        the last segment, since a judge of verifiers sees the whole episode

If there is no reply between two validates, both end the same segment, so that every segment has sampled
tokens. The rewards of the segments add up to the reward of the episode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from air.errors import InfrastructureError

Payment = dict[str, Any]
"""One part of an episode's reward: the part that arose since the previous payment.

The dict has three keys. `nodes` is the number of nodes (messages) that the trace had at that time. `ends`
tells whether a `validate` ended a segment there. `terms` holds the amounts by the names of the reward's
terms. The trace stores all payments in its `info["air"]["paid"]`.
"""

ONLY_LAST: dict[str, Any] = {
    "metrics": {},
    "extra_usage": [],
    "is_timeout": False,
    "root_reply": None,
    "stop_condition": "validate",
}
"""Values that replace the fields of these names in all traces of a split episode except the last one.

Only the last trace holds the episode's own values, so that a mean over traces counts each episode once.
"""


@dataclass
class Ledger:
    """The list of payments of a running episode.

    It shows which part of the reward arose at which position of the trace.
    """

    payments: list[Payment] = field(default_factory=list)
    _so_far: dict[str, float] = field(default_factory=dict)

    def note(self, nodes: int, terms: Mapping[str, float], *, ends: bool) -> None:
        """Adds a payment for the part of the reward that arose since the last call of this method.

        Adds nothing if no reward arose, unless a segment ends here.

        Args:
            nodes: the present number of nodes (messages) in the trace.
            terms: the present values of all terms of the reward, by name.
            ends: whether a `validate` ends a segment here.
        """
        arisen = {
            name: value - self._so_far.get(name, 0.0)
            for name, value in terms.items()
            if value != self._so_far.get(name, 0.0)
        }
        self._so_far = dict(terms)
        if arisen or ends:
            self.payments.append({"nodes": nodes, "ends": ends, "terms": arisen})


@dataclass
class Segment:
    """A part of an episode that ends at a `validate`, with its reward `terms`.

    The segment consists of the nodes (messages) of the trace with the numbers from `start` to `end - 1`.
    """

    start: int
    end: int
    terms: dict[str, float]

    def pay(self, terms: Mapping[str, float]) -> None:
        """Adds the amounts in `terms` to the reward terms of this segment."""
        for name, value in terms.items():
            self.terms[name] = self.terms.get(name, 0.0) + value


def segments(sampled: Sequence[bool], payments: Sequence[Payment]) -> list[Segment]:
    """Returns the segments of an episode in order. The list is never empty.

    Args:
        sampled: for each node (message) of the trace, whether the model wrote it.
        payments: the payments of the episode's `Ledger`.
    """
    parts: list[Segment] = []
    start, unpaid = 0, Segment(0, 0, {})
    for payment in payments:
        unpaid.pay(payment["terms"])
        if not payment["ends"]:
            continue
        if any(sampled[start : payment["nodes"]]):
            parts.append(Segment(start, payment["nodes"], unpaid.terms))
            start = payment["nodes"]
        elif parts:
            parts[-1].pay(unpaid.terms)
        else:
            continue
        unpaid = Segment(0, 0, {})
    if not parts:
        return [Segment(0, len(sampled), unpaid.terms)]
    parts[-1].end = len(sampled)
    parts[-1].pay(unpaid.terms)
    return parts


def split(trace: Any) -> list[Any]:
    """Returns one trace for each segment of an episode, or only `trace` itself if the episode failed.

    Each new trace is a copy of `trace` up to the end of its segment. Only the tokens of the segment itself
    are trained. The tokens of earlier segments are only context, so their loss masks are false. Only the last
    trace has the episode's metrics.

    Raises:
        InfrastructureError: the payments do not add up to the trace's rewards.
    """
    if not trace.ok:
        return [trace]
    noted = trace.info.get("air", {})
    parts = segments([node.sampled for node in trace.nodes], noted.get("paid", []))
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
    noted = trace.info.get("air", {})
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
                    **noted,
                    "terms": {n: segment.terms.get(n, 0.0) for n in noted.get("terms", {})},
                    "metrics": noted.get("metrics", {}) if last else {},
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
    """Returns a copy of a node (message) that training uses only as context.

    The copy is not marked as sampled by the model, and its loss mask is false for every token.
    """
    fields = type(node).model_fields
    gone = {name: None for name in ("sampling_mask", "kept_tokens") if name in fields}
    return node.model_copy(
        update={"sampled": False, "mask": [False] * len(node.mask), "logprobs": [], **gone}
    )


def _is_of(call: Any, segment: Segment, last: bool) -> bool:
    """Whether a call of the model belongs to `segment`. Failed calls belong to the last segment.

    Args:
        last: whether `segment` is the episode's last segment.
    """
    if call.node is None:
        return last
    return bool(segment.start <= call.node < segment.end)
