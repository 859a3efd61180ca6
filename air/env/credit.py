"""Credit: where in an episode its reward arose, and one trace a segment.

A segment ends at a validate; what the model says after its last validate belongs to the automatic one at
the end. Every term of the reward goes to the segment in which it arose:

    delta, failed_validates   the validate's own
    format                    the reply that was no action
    time                      the agent's time that passed in the segment
    test_score                the last segment: it is about the last artefact
    others                    the last segment: a judge of verifiers' sees the whole episode

Validates between which the model said nothing end one segment together, so that none is without a token
of the model's. The segments' rewards add up to the episode's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from air.errors import InfrastructureError

Payment = dict[str, Any]
"""`{"nodes": int, "ends": bool, "terms": {name: value}}`: what had arisen when the trace had so many
nodes, since the payment before; `ends`: a validate, which ends a segment. It travels in a trace's
`info["air"]["paid"]`."""

ONLY_LAST: dict[str, Any] = {
    "metrics": {},
    "extra_usage": [],
    "is_timeout": False,
    "root_reply": None,
    "stop_condition": "validate",
}
"""What the traces before an episode's last have instead of the episode's own, so that whoever takes
means over traces counts an episode's facts once."""


@dataclass
class Ledger:
    """The payments of an episode that is being played."""

    payments: list[Payment] = field(default_factory=list)
    _so_far: dict[str, float] = field(default_factory=dict)

    def note(self, nodes: int, terms: Mapping[str, float], *, ends: bool) -> None:
        """Notes what has arisen since the last note.

        Args:
            nodes: of the trace, now.
            terms: the reward's terms as they are now, all of them.
            ends: whether a validate ended a segment here.
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
    """A part of an episode: the trace's nodes from `start` up to `end`, not included."""

    start: int
    end: int
    terms: dict[str, float]

    def pay(self, terms: Mapping[str, float]) -> None:
        """Adds to what it earned."""
        for name, value in terms.items():
            self.terms[name] = self.terms.get(name, 0.0) + value


def segments(sampled: Sequence[bool], payments: Sequence[Payment]) -> list[Segment]:
    """The segments of an episode, in turn; there is always one.

    Args:
        sampled: for each node of the trace, whether the model said it.
        payments: as the ledger noted them.
    """
    found: list[Segment] = []
    start, unpaid = 0, Segment(0, 0, {})
    for payment in payments:
        unpaid.pay(payment["terms"])
        if not payment["ends"]:
            continue
        if any(sampled[start : payment["nodes"]]):
            found.append(Segment(start, payment["nodes"], unpaid.terms))
            start = payment["nodes"]
        elif found:
            found[-1].pay(unpaid.terms)
        else:
            continue
        unpaid = Segment(0, 0, {})
    if not found:
        return [Segment(0, len(sampled), unpaid.terms)]
    found[-1].end = len(sampled)
    found[-1].pay(unpaid.terms)
    return found


def split(trace: Any) -> list[Any]:
    """One trace a segment of an episode that was played as `trace`; a failed one stays as it is.

    Each is a copy up to its segment's end in which the other segments' tokens are context: their masks
    are false. Tokens after it are left out, since no token of it saw them. Only the last has the
    episode's metrics.

    Raises:
        InfrastructureError: the payments do not add up to the trace's rewards.
    """
    if not trace.ok:
        return [trace]
    noted = trace.info.get("air", {})
    found = segments([node.sampled for node in trace.nodes], noted.get("paid", []))
    ours = {name for segment in found for name in segment.terms}
    for name in ours:
        term = trace.rewards.get(name)
        total = math.fsum(segment.terms.get(name, 0.0) for segment in found)
        if term is None or not math.isclose(total, term.value, rel_tol=1e-9, abs_tol=1e-9):
            raise InfrastructureError(f"segments earned {total} of {name}, the episode {term}")
    for name, term in trace.rewards.items():
        if term is not None and name not in ours:
            found[-1].pay({name: term.value})
    return [_part(trace, number, found) for number in range(len(found))]


def _part(trace: Any, number: int, found: Sequence[Segment]) -> Any:
    segment, last = found[number], number == len(found) - 1
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
                    **trace.info.get("air", {}),
                    "segment": number + 1,
                    "segments": len(found),
                },
            },
        }
    )
    for name in trace.rewards:
        part.record_reward(name, segment.terms.get(name, 0.0))
    return part


def _as_context(node: Any) -> Any:
    """The node as something that the model was given, not said."""
    fields = type(node).model_fields
    gone = {name: None for name in ("sampling_mask", "kept_tokens") if name in fields}
    return node.model_copy(
        update={"sampled": False, "mask": [False] * len(node.mask), "logprobs": [], **gone}
    )


def _is_of(call: Any, segment: Segment, last: bool) -> bool:
    """Whether a model call belongs to the segment; those that failed count for the last."""
    if call.node is None:
        return last
    return bool(segment.start <= call.node < segment.end)
