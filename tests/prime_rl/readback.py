"""The batches that prime-rl's trainer would read, beside what its orchestrator and our recorder wrote down.

Three accounts of the same episodes: `rollouts/step_N/rank_0.bin` (the trainer's), `traces.jsonl` (prime-rl's
file monitor, as verifiers records episodes), and our trajectories. `check_step` holds them together.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from air.trajectories.reader import read
from tests.prime_rl.chain import Run, read_episodes

Record = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """One training sample as the trainer gets it; all lists have one entry a token."""

    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    advantages: list[float]
    temperatures: list[float]

    def turns(self) -> list[range]:
        """The stretches of sampled tokens, one a reply."""
        starts = [i for i, m in enumerate(self.mask) if m and not (i and self.mask[i - 1])]
        return [range(i, next(_unsampled(self.mask, i), len(self.mask))) for i in starts]


def _unsampled(mask: Sequence[bool], start: int) -> Any:
    return (j for j in range(start, len(mask)) if not mask[j])


def shipped(made: Run, step: int) -> list[Sample]:
    """The samples of one step, read as prime-rl's trainer reads them."""
    from prime_rl.transports.rollouts import FileSystemMicroBatchReceiver

    found = []
    for batch in FileSystemMicroBatchReceiver(made.folder, 0, step).receive():
        assert batch.rl_weights is None
        assert set(batch.env_names) == {"research"}
        start = 0
        for length in batch.sequence_lengths:
            part = slice(start, start + length)
            start += length
            found.append(
                Sample(
                    batch.input_ids[part],
                    batch.loss_mask[part],
                    batch.inference_logprobs[part],
                    batch.advantages[part],
                    batch.temperatures[part],
                )
            )
        assert start == len(batch.input_ids)
    return found


def as_sample(trace: Record, advantage: float) -> Sample:
    """What a recorded trace, all of whose nodes follow one another, has to become."""
    nodes = trace["nodes"]
    assert [node.get("parent") for node in nodes] == [None, *range(len(nodes) - 1)]
    mask = [bool(flag) for node in nodes for flag in node["mask"]]
    values = iter([value for node in nodes for value in node.get("logprobs") or []])
    logprobs = [next(values) if flag else 0.0 for flag in mask]
    assert next(values, None) is None
    return Sample(
        [token for node in nodes for token in node["token_ids"]],
        mask,
        logprobs,
        [advantage if flag else 0.0 for flag in mask],
        [1.0] * len(mask),
    )


def reward(trace: Record) -> float:
    """The sum of the trace's rewards."""
    return math.fsum(term["score"] * term["weight"] for term in trace["rewards"].values())


def advantages(made: Run, steps: int) -> dict[str, float]:
    """For each recorded trace that ended well: its reward minus the mean of its group's traces."""
    groups = defaultdict(list)
    for step in range(1, steps + 1):
        for episode in read_episodes(made, step, "all"):
            groups[episode["group"]["id"]] += [t for t in episode["traces"] if t["ok"]]
    return {
        trace["id"]: reward(trace) - math.fsum(map(reward, traces)) / len(traces)
        for traces in groups.values()
        for trace in traces
    }


def check_step(made: Run, step: int, steps: int, tokenizer: Any) -> Counter[str]:
    """Compares one step's batch with the records; returns how much was compared."""
    expected = advantages(made, steps)
    traces = [t for e in read_episodes(made, step, "effective") for t in e["traces"]]
    left = [as_sample(trace, expected[trace["id"]]) for trace in traces]
    samples = shipped(made, step)
    assert len(samples) == len(left)
    for sample in samples:
        left.remove(next(other for other in left if _same(sample, other)))
        assert all(m or p == 0 for p, m in zip(sample.logprobs, sample.mask, strict=True))
    for trace in traces:
        _check_replies(trace, _lines(made, trace), tokenizer)
    return Counter(samples=len(samples), tokens=sum(sum(s.mask) for s in samples))


def _same(sample: Sample, other: Sample) -> bool:
    """Token by token; verifiers records log-probabilities with four decimals."""
    return (
        (sample.token_ids, sample.mask, sample.temperatures)
        == (other.token_ids, other.mask, other.temperatures)
        and sample.logprobs == pytest.approx(other.logprobs, rel=0, abs=6e-5)
        and sample.advantages == pytest.approx(other.advantages, rel=0, abs=1e-5)
    )


def check_rewards(made: Run, step: int) -> Counter[str]:
    """Every episode of one step: its traces' masks part the sampled tokens, their rewards add up to what
    our trajectory says, and each has the deltas of its own validates."""
    seen: Counter[str] = Counter()
    for episode in read_episodes(made, step, "all"):
        traces = episode["traces"]
        lines = _lines(made, traces[0])
        end = next(line for line in lines if line["type"] == "end")
        assert episode["ok"]
        assert end["ok"]
        assert math.fsum(map(reward, traces)) == pytest.approx(end["reward"], abs=1e-9)
        _check_parts(traces)
        deltas = [line["delta"] for line in lines if line["type"] == "validate"]
        paid = [trace["rewards"]["delta"]["score"] for trace in traces]
        assert math.fsum(paid) == pytest.approx(math.fsum(deltas), abs=1e-9)
        if len(deltas) == len(paid):
            assert paid == pytest.approx(deltas, abs=1e-9)
            seen["segments"] += len(paid)
        seen["traces"] += len(traces)
        seen["episodes"] += 1
    return seen


def _check_parts(traces: Sequence[Record]) -> None:
    """Each token is sampled in at most one trace; replies to it are context in the later ones."""
    whole = max(traces, key=lambda trace: len(trace["nodes"]))
    replies = [i for i, n in enumerate(whole["nodes"]) if n["message"]["role"] == "assistant"]
    owners = Counter(
        i for trace in traces for i, node in enumerate(trace["nodes"]) if any(node["mask"])
    )
    assert owners == dict.fromkeys(replies, 1)
    for trace in traces:
        for node, other in zip(trace["nodes"], whole["nodes"], strict=False):
            assert node["token_ids"] == other["token_ids"]


def _check_replies(trace: Record, lines: Sequence[Record], tokenizer: Any) -> None:
    """The sampled tokens of a trace are replies that our trajectory has, in turn."""
    said = [
        tokenizer.decode(
            [t for t, m in zip(node["token_ids"], node["mask"], strict=True) if m],
            skip_special_tokens=True,
        )
        for node in trace["nodes"]
        if any(node["mask"])
    ]
    replies = [line["reply"] for line in lines if line["type"] == "step"]
    assert any(replies[i : i + len(said)] == said for i in range(len(replies)))


def _lines(made: Run, trace: Record) -> list[Record]:
    path: Path = made.trajectories / f"{trace['info']['air']['episode']}.jsonl"
    return list(read(path))
