"""A training sample: the tokens of one conversation, with the advantages of the tokens that are trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Sample:
    """A training sample: the tokens of one conversation. Lists have one element per token."""

    token_ids: list[int]
    """The token ids of prompts and replies, exactly those that the model received and sampled."""
    mask: list[bool]
    """True for each token that the policy sampled and that is trained; false for all others and for the first
    token."""
    logprobs: list[float]
    """The log-probability of each sampled token at sampling, in nats. Elements at which `mask` is false are
    ignored."""
    advantage: float | list[float]
    """One advantage for all sampled tokens, or a list with one per token. Elements at which `mask` is false
    are ignored."""
    temperature: float
    """The temperature at which the replies were sampled."""
    nodes: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    """The messages of the conversation in order, as nodes of the trace (episode record) of the package
    `verifiers`, from which can be found which weights sampled each token; empty if they are not known."""
    arrays: dict[str, list[float]] = field(default_factory=dict)
    """The arrays that the algorithm returned besides advantages, by name: `returns`, `clip_high` and others
    (see `air.train.algorithms.base.Credit`). Each has one number per token."""

    def __post_init__(self) -> None:
        counts = [len(self.token_ids), len(self.mask), len(self.logprobs)]
        if isinstance(self.advantage, list):
            counts.append(len(self.advantage))
        counts += [len(values) for values in self.arrays.values()]
        if len(set(counts)) > 1 or counts[0] == 0:
            raise ValueError(f"a sample's lists must be equally long and not empty, got {counts}")
        if self.mask[0] or self.temperature <= 0:
            raise ValueError("position 0 cannot be trained, and the temperature must be above 0")

    def advantages(self) -> list[float]:
        """Returns a list with one advantage per token of the conversation; it is 0 for tokens at which `mask`
        is false."""
        each = self.advantage
        if not isinstance(each, list):
            each = [each] * len(self.mask)
        return [a if sampled else 0.0 for a, sampled in zip(each, self.mask, strict=True)]
