"""Loads the models that an algorithm needs besides the policy, and runs them on the sampled tokens of each
step.

The models are a value model, a reference model or a teacher. They give, for each sampled token, a value, the
log-probability under the reference or teacher, or the KL divergence from the reference. These numbers are
computed after the step's episodes have ended and before the advantages. This module also reads the baseline
reward from the greedy episodes. A model is loaded only if the algorithm needs it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import torch

from air.errors import ConfigError, UsageError
from air.train.algorithms.base import Need
from air.train.algorithms.opd import OPDConfig
from air.train.config.further_models_config import TeacherConfig, ValueModelConfig
from air.train.config.model_options import AdamWConfig
from air.train.config.run_config import RunConfig
from air.train.further_models.frozen_model import (
    FrozenModel,
    InProcessModel,
    WithoutAdapter,
    check_same_tokens,
    divergences,
)
from air.train.further_models.teacher_endpoint import TeacherEndpoint
from air.train.further_models.value_model import ValueModel, ValueTarget
from air.train.loop.rollout import Group
from air.train.loop.samples import AlgorithmInputs, branch_masks
from air.train.model import adapters, policy
from air.train.model.attention import check_length
from air.train.model.policy import Policy
from air.train.tree.sample import Sample

SAMPLING_SOURCE = "orchestrator.algo.sampling.source"
"""The key, in the run file, of the settings of a teacher model that samples the replies of training episodes
in place of the policy."""


class Scorer(Protocol):
    """Interface of a model that computes the log-probabilities of given tokens: a `InProcessModel` in this
    process, or a `TeacherEndpoint` on a server."""

    def score(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Returns, for each sample, the log-probabilities of the tokens for which `Sample.mask` is true, in
        nats."""

    def close(self) -> None:
        """Frees the model's memory, or closes the connections to its server."""


@dataclass(frozen=True)
class Divergence:
    """A callable object that computes, at each sampled token, the Kullback-Leibler divergence of the policy's
    distribution over the whole vocabulary from that of the model `reference`."""

    policy: Policy
    reference: InProcessModel
    micro_batch_tokens: int

    def __call__(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Computes the Kullback-Leibler divergence of the policy, with its present weights, from the
        reference model. Returns one list for each sample, with one divergence, in nats, for each sampled
        token."""
        return divergences(self.policy, self.reference, samples, self.micro_batch_tokens)


@dataclass(frozen=True)
class FurtherModels:
    """The models that a run's algorithm needs besides the policy. A field is None, or lacks a key, if the
    algorithm does not need that model."""

    scorers: Mapping[Need, Scorer]
    """The models that compute log-probabilities, under the keys `reference` and `teacher`."""
    values: ValueModel | None
    greedy: bool
    """Whether the algorithm needs, for each group, the reward of one more episode, sampled at temperature
    0."""
    temperature: float
    """The sampling temperature of the policy."""
    divergence: Divergence | None = None
    """Computes the KL divergence of the policy from the reference model. None if the algorithm does not need
    it."""

    @property
    def scores_here(self) -> bool:
        """Whether the method `score` runs a model in this process, instead of only asking a teacher's server.
        If so, the inference server must not sample during the call (see `Server.exclusive`)."""
        local = [one for one in self.scorers.values() if not isinstance(one, TeacherEndpoint)]
        return bool(local) or self.values is not None

    def score(self, groups: Sequence[Group]) -> AlgorithmInputs:
        """Runs the needed models on the sampled tokens of a step's groups, and returns the numbers that the
        algorithm needs: log-probabilities, divergences, values, and the rewards of greedy episodes (sampled
        at temperature 0). If there is a teacher, the result's metric `ref_kl` is the mean, over all sampled
        tokens, of the teacher's log-probability minus the policy's, as in prime-rl (another trainer). Raises
        InferenceError if the teacher's server fails."""
        greedy = [_greedy_reward(group) for group in groups] if self.greedy else None
        tokens: dict[Need, dict[int, list[float]]] = {}
        metrics: dict[str, float] = {}
        if self.scorers or self.values is not None:
            samples = list(conversations(groups, self.temperature))
            for need, scorer in self.scorers.items():
                scores = scorer.score(samples)
                tokens[need] = by_node(samples, scores)
                if need == "teacher" and samples:
                    metrics["ref_kl"] = _mean_difference(samples, scores)
            if self.divergence is not None:
                tokens["divergence"] = by_node(samples, self.divergence(samples))
            if self.values is not None:
                tokens["values"] = by_node(samples, self.values.values(samples))
        return AlgorithmInputs(tokens=tokens, greedy=greedy, metrics=metrics)

    def train(self, samples: Sequence[Sample], inputs: AlgorithmInputs) -> dict[str, float]:
        """Trains the value model on the returns of the samples, and returns its metrics; an empty dict if
        there is no value model. `inputs` is the result of `score` for the same step. Raises
        InfrastructureError if the gradients are not finite."""
        if self.values is None:
            return {}
        old = inputs.tokens["values"]
        return self.values.train(
            [
                ValueTarget(sample, _of_sample(old, sample), _sampled(sample, "returns"))
                for sample in samples
            ]
        )

    def trains_policy(self, step: int) -> bool:
        """Returns whether training step `step` updates the policy. During the value model's warm-up steps
        only the value model is trained."""
        return self.values is None or step > self.values.config.warmup_steps

    def loaded_bytes(self) -> int:
        """Returns the size in bytes of the weights of all models in this process except the policy."""
        models = [s.policy.model for s in self.scorers.values() if isinstance(s, FrozenModel)]
        weights = [p for model in models for p in model.parameters()]
        weights += [] if self.values is None else self.values.parameters
        return sum(int(p.numel() * p.element_size()) for p in weights)

    def training_bytes(self) -> int:
        """Returns the bytes of the value model's gradients and optimiser states; 0 if there is no value
        model."""
        if self.values is None:
            return 0
        states = 8 if isinstance(self.values.config.optim, AdamWConfig) else 4
        return sum(int(p.numel()) for p in self.values.parameters) * (4 + states)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the value model, for a checkpoint; an empty dict if there is no value
        model."""
        return {} if self.values is None else {"values": self.values.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state of the value model from a result of `state_dict`. If `state` is empty, because
        the earlier run had no value model, the value model keeps its initial weights."""
        if self.values is not None and "values" in state:
            self.values.load_state_dict(state["values"])

    def close(self) -> None:
        """Closes all scorers: frees their memory, and ends connections to a teacher's server."""
        for scorer in self.scorers.values():
            scorer.close()


def load(
    needs: Collection[Need],
    config: RunConfig,
    model: Policy,
    say: Callable[[str], None],
    stopping: threading.Event | None = None,
) -> FurtherModels:
    """Loads the models that `needs` names, with the settings of `config`. `model` is the policy; the other
    models are loaded onto its device.

    If the teacher is on a server that does not answer yet, calls `say` with one line for the user and waits
    for the server; setting the event `stopping` ends the wait. A teacher that only plays episodes
    (`config.sampling_source`) is checked, but not loaded. Raises UsageError if a model cannot be loaded
    or has another vocabulary than the policy. Raises InferenceError if the teacher's server does not answer
    or the wait was stopped.
    """
    embedded = config.embedded
    context = min(config.seq_len, model.max_length)
    loader = _ModelLoader(model, embedded.attention, embedded.micro_batch_tokens, context)
    scorers: dict[Need, Scorer] = {}
    divergence = None
    if "reference" in needs:
        reference = loader.reference(embedded.reference.model or config.model.name)
        scorers["reference"] = reference
        if "divergence" in needs:
            divergence = Divergence(model, reference, embedded.micro_batch_tokens)
    if "teacher" in needs:
        algo = config.orchestrator.algo
        assert isinstance(algo, OPDConfig)
        scorers["teacher"] = loader.teacher(algo.teacher, say, stopping)
    if (source := config.sampling_source) is not None:
        endpoint = TeacherEndpoint(source, say, key=SAMPLING_SOURCE, stopping=stopping)
        endpoint.wait()
        endpoint.check_tokens(model.tokenizer)
    values = None
    if "values" in needs:
        values = loader.value_model(embedded.value_model, config.model.name)
    temperature = config.orchestrator.train.sampling.temperature
    return FurtherModels(scorers, values, "greedy" in needs, temperature, divergence)


def conversations(groups: Sequence[Group], temperature: float) -> Iterator[Sample]:
    """Yields one sample for each branch (linear conversation in the record of an episode) of the episodes
    that did not fail, so that further models can score its tokens. `temperature` is the policy's sampling
    temperature. The samples are not trained on, so their advantages are 0. If several branches contain the
    same reply, `Sample.mask` is true for this reply only in the first of these samples."""
    for group in groups:
        for rollout in group.rollouts:
            for trace in rollout.traces if rollout.ok else []:
                for branch, mask in branch_masks(trace):
                    if any(mask):
                        nodes = tuple(branch.nodes)
                        ids, logprobs = branch.token_ids, branch.logprobs
                        yield Sample(ids, mask, logprobs, 0.0, temperature, nodes)


def by_node(
    samples: Sequence[Sample], numbers: Sequence[Sequence[float]]
) -> dict[int, list[float]]:
    """Regroups numbers of sampled tokens by message. `numbers` has, for each sample, a list with one number
    per sampled token. Returns a dict from the `id()` of each message (`verifiers`' node) that has sampled
    tokens to the list of its numbers."""
    found: dict[int, list[float]] = {}
    for sample, of_sample in zip(samples, numbers, strict=True):
        remaining = iter(of_sample)
        for node, count in _sampled_nodes(sample):
            found[id(node)] = [next(remaining) for _ in range(count)]
    return found


def _of_sample(numbers: Mapping[int, Sequence[float]], sample: Sample) -> list[float]:
    return [value for node, _ in _sampled_nodes(sample) for value in numbers[id(node)]]


def _sampled_nodes(sample: Sample) -> Iterator[tuple[Any, int]]:
    """Yields, for each message of the sample that has sampled tokens, the message and the number of these
    tokens."""
    start = 0
    for node in sample.nodes:
        end = start + len(node.mask)
        if count := sum(sample.mask[start:end]):
            yield node, count
        start = end


def _sampled(sample: Sample, name: str) -> list[float]:
    return [v for v, sampled in zip(sample.arrays[name], sample.mask, strict=True) if sampled]


def _greedy_reward(group: Group) -> float | None:
    """Returns the reward of the group's greedy episode (sampled at temperature 0), or None if there is no
    such episode or it failed. If the episode is divided into segments at its gradings, each with a reward,
    returns the mean of these rewards."""
    greedy = group.greedy
    if greedy is None or not greedy.ok or not greedy.traces:
        return None
    return fmean(float(trace.reward) for trace in greedy.traces)


def _mean_difference(samples: Sequence[Sample], scores: Sequence[Sequence[float]]) -> float:
    logprobs = [
        p for s in samples for p, sampled in zip(s.logprobs, s.mask, strict=True) if sampled
    ]
    flat = [score for of_sample in scores for score in of_sample]
    return fmean(score - p for score, p in zip(flat, logprobs, strict=True))


@dataclass(frozen=True)
class _ModelLoader:
    """Loads the reference model, the teacher and the value model of a run, with one method for each. They are
    loaded onto the device of `policy`, and use the attention implementation `attention`."""

    policy: Policy
    attention: str
    micro_batch_tokens: int
    context: int
    """The largest number of tokens in a sample."""

    def reference(self, name: str) -> InProcessModel:
        """Returns the reference model `name` (a folder or Hugging Face id). If this model is the base model
        under the policy's LoRA adapter, returns the policy with its adapter switched off, so that no second
        copy is loaded."""
        name = _expanded(name)
        if self.policy.has_adapter and self.policy.base == adapters.lasting_name(name):
            return WithoutAdapter(self.policy, self.micro_batch_tokens)
        other = self._load(name, "embedded.reference.model", self.policy.model.dtype)
        return FrozenModel(other, self.micro_batch_tokens)

    def teacher(
        self, config: TeacherConfig, say: Callable[[str], None], stopping: threading.Event | None
    ) -> Scorer:
        """Returns the teacher model: loads it if `config` names a folder or a Hugging Face id; if the teacher
        is on a server, waits until the server answers. `say` is called with one line for the user if the
        server does not answer at once; setting `stopping` ends the wait with InferenceError."""
        if config.base_url is None:
            key = "orchestrator.algo.teacher.name"
            other = self._load(_expanded(config.name), key, self.policy.model.dtype)
            return FrozenModel(other, self.micro_batch_tokens, temperature=1.0)
        endpoint = TeacherEndpoint(config, say, stopping=stopping)
        try:
            endpoint.wait()
        except BaseException:  # interrupts too: nobody else closes the endpoint
            endpoint.close()
            raise
        return endpoint

    def value_model(self, config: ValueModelConfig, start: str) -> ValueModel:
        """Returns a new value model. It starts from the weights of the model that `config` names or, if it
        names none, of the model `start` (a folder or Hugging Face id). The weights are float32, because
        rounding to bfloat16 would lose small updates."""
        name = _expanded(config.model or start)
        other = self._load(name, "embedded.value_model.model", torch.float32)
        return ValueModel(other, config, self.micro_batch_tokens)

    def _load(self, name: str, key: str, dtype: torch.dtype) -> Policy:
        device = self.policy.device
        try:
            other = policy.load(name, dtype=dtype, device=device, attention=self.attention)
        except UsageError as error:
            raise ConfigError(str(error), where=key) from error
        check_same_tokens(self.policy, other, key)
        check_length(other.model.config, other.name, self.context, "seq_len")
        return other


def _expanded(name: str) -> str:
    return str(Path(name).expanduser()) if name.startswith("~") else name
