"""Defines the interface of algorithms: their inputs, their needs beyond rewards, and their results.

An algorithm computes the advantage of each token that the policy sampled in a group. Its input is a
`ScoredGroup`: the episodes of one prompt, each as a list of `ScoredPart` objects. A part is the whole
episode, a segment or a turn. The result has one `Credit`, with the advantages, for each part. The policy is
not trained on a token whose advantage is 0, unless the loss has a term that does not depend on advantages (an
entropy bonus or a KL penalty). Which tokens may be trained at all is decided not by the algorithm but by the
mask of each training sample (`air.train.tree.sample.Sample.mask`).

Arrays are plain sequences of floats with one element per sampled token of the part, in the order of sampling.
This module does not import torch, so run files can be checked without torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from air.config import BaseConfig
from air.train.config.loss_options import PolicyLossConfig

Need = Literal["values", "reference", "divergence", "teacher", "greedy"]
"""The name of an input that an algorithm may need beyond rewards. Four are fields of `ScoredPart` with a
number for each sampled token: `values` (a value model's predictions), `reference` and `teacher`
(log-probabilities under the reference model or the teacher) and `divergence` (the policy's KL divergence from
the reference). `greedy`, a field of `ScoredGroup`, is the reward of an episode sampled at temperature 0. An
algorithm that names `divergence` must also name `reference`."""


@dataclass(frozen=True)
class ScoredReply:
    """A reply of the model: the number of its sampled tokens, and how long the action in the reply took."""

    tokens: int
    seconds: float | None = None
    """The execution time in seconds of the action in the reply. None if it is not known: the reply contains
    no action or only one that has work graded (`validate`, `submit`), or the agent is a program in the
    sandbox, which carries out its actions itself."""


@dataclass(frozen=True)
class ScoredPart:
    """A part of an episode that has a reward of its own: the whole episode, a turn (one reply of the model),
    or a segment (the turns up to a graded attempt or another reward)."""

    reward: float
    """The reward of the part, before `penalties` are subtracted."""
    tokens: int
    """The number of sampled tokens, n. Each array among the other fields has n elements."""
    agent: str = ""
    """The name of the agent that sampled the tokens."""
    input_tokens: int = 0
    """The number of tokens, in the conversation to which the part belongs, that were not sampled: prompts and
    observations."""
    turns: int = 0
    """The number of the model's replies in the conversation to which the part belongs."""
    replies: Sequence[ScoredReply] = ()
    """The replies of the part, in order; together they have n sampled tokens."""
    logprobs: Sequence[float] = ()
    """[n]: the log-probability of each token when it was sampled, at the sampling temperature, in nats."""
    reference: Sequence[float] | None = None
    """[n]: the log-probability of each token under the reference model, in nats, at the sampling temperature.
    None if the algorithm does not need the reference."""
    divergence: Sequence[float] | None = None
    """[n]: for each token, the Kullback-Leibler divergence of the policy's predicted distribution over the
    vocabulary from that of the reference model, in nats. None if the algorithm does not need the
    divergence."""
    values: Sequence[float] | None = None
    """[n]: for each token, the value model's estimate of the sum of the rewards from this token on, given all
    earlier tokens. None if the algorithm does not need the values."""
    teacher: Sequence[float] | None = None
    """[n]: the log-probability of each token under the teacher model, in nats. None if the algorithm does not
    need the teacher."""
    penalties: Sequence[float] | None = None
    """[n]: the number that is subtracted from each token's reward, such as a KL penalty. None: no
    penalties."""

    @property
    def total(self) -> float:
        """The reward of this part of the episode minus the penalties of all its tokens."""
        return self.reward - sum(self.penalties or ())

    def token_rewards(self) -> list[float]:
        """Returns a list with the reward of each sampled token: minus the token's penalty, or 0 if there are
        no penalties. The last token also gets the reward of the part."""
        rewards = [0.0] * self.tokens
        if rewards:
            rewards[-1] = self.reward
        return [r - p for r, p in zip(rewards, self.penalties or [0.0] * self.tokens, strict=True)]


@dataclass(frozen=True)
class ScoredGroup:
    """The input of an algorithm: a group, which consists of the episodes of one prompt, with their
    rewards."""

    episodes: Sequence[Sequence[ScoredPart] | None]
    """For each episode its list of parts in order, with at least one part. None for an episode that is not
    trained, because it ended with an infrastructure error."""
    reward_to_go: bool = False
    """True: the parts are the turns of a conversation, and each turn is credited with its own reward and with
    those of all later turns. False: each part is credited with its own reward only."""
    source: str = ""
    """The name of the training source (`[[orchestrator.train.source]]` in the run file) of the prompt."""
    task: str = ""
    """The id of the task that the episodes play."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The environment's metrics by name. Each is the mean over those episodes that ended without an
    infrastructure error and report the metric."""
    greedy: float | None = None
    """The reward of one further episode of the prompt, sampled at temperature 0 (greedily). None if the
    algorithm does not need this reward, or if the further episode ended with an infrastructure error."""

    def streams(self, episode: Sequence[ScoredPart]) -> list[Sequence[ScoredPart]]:
        """Returns the parts of `episode`, one of the group's episodes, grouped into streams. A stream is a
        sequence of parts within which a token is credited with later rewards; rewards of other streams do not
        count for the token. With `reward_to_go`, all parts form one stream; otherwise each part is a stream
        of its own."""
        return [episode] if self.reward_to_go else [[part] for part in episode]


def stream_rewards(stream: Sequence[ScoredPart]) -> list[float]:
    """Returns a list with the reward of each sampled token of a stream, minus the token's penalty. A stream
    is a sequence of parts of an episode within which a token is credited with later rewards (see
    `ScoredGroup.streams`). The reward of a part counts at the part's last token. The reward of a part without
    tokens counts at the last token before this part."""
    rewards: list[float] = []
    for part in stream:
        rewards += part.token_rewards()
        if not part.tokens and rewards:
            rewards[-1] += part.reward
    return rewards


@dataclass(frozen=True)
class Credit:
    """The result of an algorithm for one part of an episode (the whole episode, a segment or a turn): the
    advantages of the part's n sampled tokens, and other arrays for the training."""

    advantage: float | Sequence[float]
    """One advantage for all tokens of the part, or one for each token, [n]. The policy is not trained on a
    token with advantage 0, unless the loss has a term that does not depend on advantages."""
    returns: Sequence[float] | None = None
    """[n]: the target that the value model is trained to predict at each token. Only algorithms that need
    `values` set this field."""
    clip_high: float | None = None
    """The number ε with which the loss `ppo_clip` limits the probability ratios of this part's tokens to at
    most 1 + ε, in place of the setting `clip_high`. None: the loss uses its setting."""
    arrays: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Further arrays [n] that the loss function receives, by name."""

    def per_token(self, tokens: int) -> list[float]:
        """Returns a list with one advantage for each sampled token of the part. `tokens` is the number of
        these tokens. Raises ValueError if the field `advantage` is a sequence of another length."""
        if isinstance(self.advantage, float | int):
            return [float(self.advantage)] * tokens
        if len(self.advantage) != tokens:
            raise ValueError(f"{len(self.advantage)} advantages for {tokens} sampled tokens")
        return list(self.advantage)


GroupCredits = Sequence[Sequence[Credit]]
"""The credits of a group: for each episode a list with one credit per part, in order. The list is empty for
an episode that is None in `ScoredGroup.episodes`."""


class Algorithm(ABC):
    """Base class of algorithms, which turn the rewards of a group (the episodes of one prompt) into
    advantages of the sampled tokens. A run has one such object, which may keep state between steps."""

    needs: frozenset[Need] = frozenset()
    """The inputs that the algorithm needs beyond rewards. Before the algorithm is called, the training loop
    computes them and stores them in the fields of these names, in `ScoredPart` and `ScoredGroup`."""
    rewards_at_turns: bool = False
    """Whether the algorithm needs each episode divided into turns (one reply of the model each), with a
    reward for each turn. If true, the parts of an episode are its turns, and `ScoredGroup.reward_to_go` is
    true. If false, an episode is one part, unless the run file sets `embedded.reward_to_go`, which divides it
    into turns, too. This attribute has no effect if the environment's setting `credit` is "segment": the
    parts are then segments."""

    @abstractmethod
    def __call__(self, group: ScoredGroup) -> GroupCredits:
        """Returns the results (`Credit`) for one group, which consists of the episodes of one prompt: for
        each episode a list with one `Credit`, the advantages of the sampled tokens, per part."""

    def finish(
        self, groups: Sequence[ScoredGroup], credits: Sequence[GroupCredits]
    ) -> Sequence[GroupCredits]:
        """Returns the final results of a training step for all groups. `groups` are the groups of the step,
        and `credits` the results of `__call__` for them, in the same order. Algorithms that need all tokens
        of the step at once override this method, for example to scale the step's advantages to variance 1.
        The default returns `credits` unchanged."""
        return credits

    def metrics(self) -> dict[str, float]:
        """Returns the algorithm's own metrics of the last training step, by name, for the log of the run. The
        default returns an empty dict."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that the algorithm keeps between steps, so that it can be stored in a checkpoint.
        The state consists of numbers and strings, and of lists and dicts of these. The default returns an
        empty dict."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Restores the algorithm's state from `state`, a result of `state_dict`. The default does nothing."""


class AlgorithmConfig(BaseConfig, ABC):
    """Base class of the settings of an algorithm (the run file's table `[orchestrator.algo]`). In each
    subclass, the default of the field `type` is the algorithm's name in run files."""

    type: str
    losses: ClassVar[frozenset[str] | None] = None
    """The losses with which the algorithm may be used: values of `type` in `[trainer.loss]`. None: all
    losses."""
    loss: ClassVar[PolicyLossConfig | None] = None
    """The settings of the loss with which the algorithm trains, whatever `[trainer.loss]` says. None: the
    loss of `[trainer.loss]`."""
    sets_clip_high: ClassVar[bool] = False
    """Whether the algorithm computes the upper clip bound of the loss `ppo_clip`, in place of the setting
    `clip_high`."""
    penalties_in_reward: ClassVar[bool] = True
    """Whether a KL penalty may be subtracted from the rewards (`[embedded.kl] place = "reward"`)."""
    uses_rewards: ClassVar[bool] = True
    """Whether the advantages depend on the rewards."""
    needs_spread: ClassVar[bool] = True
    """Whether a group whose rewards are all equal teaches nothing, because the algorithm gives each of its
    episodes the advantage 0 (before advantages are whitened over the step)."""

    @abstractmethod
    def build(self) -> Algorithm:
        """Returns a new algorithm with these settings."""
