"""The interface of algorithms: what an algorithm gets, what it needs, and what it returns.

An algorithm decides how much each sampled token of a group is trained. It gets a `ScoredGroup`: the episodes
of one prompt, each as a list of parts. It returns one `Credit` for each part. Another part of the trainer
decides which tokens may be trained at all (the mask). A token whose advantage is 0 is not trained.

Arrays are plain sequences of floats with one element per sampled token of the part, in the order of sampling.
This module does not import torch, so run files can be checked without torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from air.config import BaseConfig

Need = Literal["values", "reference", "divergence", "teacher", "greedy"]
"""What an algorithm may need beyond rewards. `values`, `reference`, `divergence` (which needs `reference`)
and `teacher` are arrays of each `Part`; `greedy` is a number of each `ScoredGroup`."""


@dataclass(frozen=True)
class Part:
    """A part of an episode that has a reward of its own: the whole episode, a segment, or a turn."""

    reward: float
    """The reward of the part, before `penalties` are subtracted."""
    tokens: int
    """The number of sampled tokens, n. Every array below has n elements."""
    agent: str = ""
    """The name of the agent that sampled the tokens."""
    input_tokens: int = 0
    """The number of the conversation's tokens that were not sampled: prompts and observations."""
    turns: int = 0
    """The number of the conversation's replies."""
    seconds: float | None = None
    """How long the part took, in seconds, or None if that is not known."""
    logprobs: Sequence[float] = ()
    """[n]: the log-probability of each token when it was sampled, at the sampling temperature, in nats."""
    reference: Sequence[float] | None = None
    """[n]: the log-probability of each token by the reference model, at the same temperature. None: the
    algorithm does not need it."""
    divergence: Sequence[float] | None = None
    """[n]: the Kullback-Leibler divergence of the policy's prediction of each token from the reference's,
    over the whole vocabulary. None: the algorithm does not need it."""
    values: Sequence[float] | None = None
    """[n]: the value model's prediction before each token: the expected sum of the rewards from this token
    on, given all tokens before it. None: the algorithm does not need the values."""
    teacher: Sequence[float] | None = None
    """[n]: the log-probability of each token by the teacher. None: the algorithm does not need it."""
    penalties: Sequence[float] | None = None
    """[n]: a number subtracted from each token's reward, such as a KL penalty. None: no penalties."""

    @property
    def total(self) -> float:
        """The part's reward minus the penalties of all its tokens."""
        return self.reward - sum(self.penalties or ())

    def token_rewards(self) -> list[float]:
        """Returns one reward for each token: minus its penalty; the last one also gets the part's reward."""
        rewards = [0.0] * self.tokens
        if rewards:
            rewards[-1] = self.reward
        return [r - p for r, p in zip(rewards, self.penalties or [0.0] * self.tokens, strict=True)]


@dataclass(frozen=True)
class ScoredGroup:
    """The episodes of one prompt, as an algorithm sees them."""

    episodes: Sequence[Sequence[Part] | None]
    """For each episode its parts in order, at least one; None for an episode that is masked (not trained)
    because of an infrastructure error."""
    reward_to_go: bool = False
    """Whether a part is a turn of a conversation and is also credited with the rewards of later turns. false:
    each part is credited with its own reward only."""
    source: str = ""
    """The name of the source of prompts."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The environment's metrics by name, each the mean over the episodes that have it and are not masked."""
    greedy: float | None = None
    """The reward of an episode of the same prompt that was sampled at temperature 0. None: the algorithm does
    not need it, or that episode failed."""

    def streams(self, episode: Sequence[Part]) -> list[Sequence[Part]]:
        """Returns the episode's parts as sequences. A token is credited with later rewards of its own
        sequence only. With `reward_to_go`, all parts are one sequence; otherwise each part is a sequence of
        its own."""
        return [episode] if self.reward_to_go else [[part] for part in episode]


def stream_rewards(stream: Sequence[Part]) -> list[float]:
    """Returns the reward after each sampled token of a stream (see `ScoredGroup.streams`). The reward of a
    part without tokens counts at the token before it."""
    rewards: list[float] = []
    for part in stream:
        rewards += part.token_rewards()
        if not part.tokens and rewards:
            rewards[-1] += part.reward
    return rewards


@dataclass(frozen=True)
class Credit:
    """The result of an algorithm for the n sampled tokens of one part."""

    advantage: float | Sequence[float]
    """One advantage for all tokens of the part, or one for each token, [n]. A token with advantage 0 is not
    trained."""
    returns: Sequence[float] | None = None
    """[n]: what the value model should have predicted. Only algorithms that need `values` set this field."""
    clip_high: float | None = None
    """An upper bound of this part for the PPO clip loss, in place of the setting `clip_high`."""
    arrays: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Further arrays for the loss by name, each [n]."""

    def per_token(self, tokens: int) -> list[float]:
        """Returns the advantage of each of the part's `tokens` tokens. Raises ValueError if `advantage` has
        another number of elements."""
        if isinstance(self.advantage, float | int):
            return [float(self.advantage)] * tokens
        if len(self.advantage) != tokens:
            raise ValueError(f"{len(self.advantage)} advantages for {tokens} sampled tokens")
        return list(self.advantage)


GroupCredits = Sequence[Sequence[Credit]]
"""The credits of a group: for each episode a list with one credit per part, in order. The list of a masked
episode is empty."""


class Algorithm(ABC):
    """Turns the rewards of groups into credits. One object lives as long as a run."""

    needs: frozenset[Need] = frozenset()
    """What the algorithm needs beyond rewards: fields of the parts or of the group. They are filled before
    the algorithm is called."""
    rewards_at_turns: bool = False
    """Whether the parts are turns, with `reward_to_go`, if an episode is one trace (`credit = "episode"`).
    false: only if `embedded.reward_to_go` is set."""

    @abstractmethod
    def __call__(self, group: ScoredGroup) -> GroupCredits:
        """Returns the credits of one group."""

    def finish(
        self, groups: Sequence[ScoredGroup], credits: Sequence[GroupCredits]
    ) -> Sequence[GroupCredits]:
        """Returns the credits of a step, after every group has been credited. Algorithms that compare tokens
        of the whole step (whitening) override it; by default nothing changes."""
        return credits

    def metrics(self) -> dict[str, float]:
        """Returns metrics of the last step, by name. Empty by default."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Returns what the algorithm remembers between steps, for a checkpoint: numbers, texts, lists and
        dicts of them. Empty by default."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Restores a result of `state_dict`."""


class AlgorithmConfig(BaseConfig, ABC):
    """Base class for the settings of an algorithm. `type` of a subclass is its name in a run file."""

    type: str
    losses: ClassVar[frozenset[str] | None] = None
    """The types of `[trainer.loss]` that the algorithm can be trained with. None: all."""
    penalties_in_reward: ClassVar[bool] = True
    """Whether a KL penalty may be subtracted from the rewards (`[embedded.kl] place = "reward"`)."""
    needs_spread: ClassVar[bool] = True
    """Whether a group can teach something only if its rewards differ."""

    @abstractmethod
    def build(self) -> Algorithm:
        """Returns a new algorithm with these settings."""
