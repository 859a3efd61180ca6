"""Runs air's side of `bench/train`: in each round, air's sampler samples all replies, and air's trainer
makes one update."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from air.train.config.model_options import AdamWConfig
from air.train.loop.trainer import Trainer
from air.train.model import policy as policies
from air.train.serving.sampler import Sampler, SamplingParams
from air.train.serving.scheduler import Scheduler
from air.train.tree.sample import Sample
from bench.train import workload
from bench.train.workload import Case


@dataclass
class Episode:
    """The tokens of an episode so far, with a mask of the sampled ones and their log-probabilities."""

    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]

    def add(self, token_ids: list[int], logprobs: list[float] | None = None) -> None:
        """Appends tokens: a sampled reply with its log-probabilities or, without `logprobs`, tokens that the
        episode reads."""
        self.token_ids += token_ids
        self.mask += [logprobs is not None] * len(token_ids)
        self.logprobs += logprobs or [0.0] * len(token_ids)

    def given(self) -> list[int]:
        """Returns the tokens that were not sampled."""
        return [
            token for token, sampled in zip(self.token_ids, self.mask, strict=True) if not sampled
        ]


class Side:
    """Air's sampler and trainer on one model."""

    def __init__(self, folder: Path, case: Case) -> None:
        self.case = case
        self.policy = policies.load(folder)
        self.vocab = int(self.policy.model.config.vocab_size)
        sampler = Sampler(self.policy, max_batch=case.episodes, max_model_len=case.length + 1)
        self.scheduler = Scheduler(sampler)
        self.trainer = Trainer(
            self.policy,
            AdamWConfig(lr=workload.LEARNING_RATE, weight_decay=0.0, max_norm=workload.MAX_NORM),
            micro_batch_tokens=workload.ROW_TOKENS,
        )

    def __enter__(self) -> Side:
        self.scheduler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.scheduler.stop()

    def play(self, number: int) -> dict[str, Any]:
        """Runs the round `number` (sampling and one update), and returns its times and numbers of tokens."""
        case = self.case
        prompts = case.prompts(number, self.vocab)
        read = [case.observations(number, turn, self.vocab) for turn in range(case.turns - 1)]
        began = time.perf_counter()
        episodes = self._sample(number, prompts, read)
        sampled = time.perf_counter()
        mean = sum(map(workload.reward, range(workload.GROUP))) / workload.GROUP
        samples = [
            Sample(e.token_ids, e.mask, e.logprobs, workload.reward(at) - mean, temperature=1.0)
            for at, e in enumerate(episodes)
        ]
        with self.scheduler.exclusive():
            metrics = self.trainer.step(samples)
            self.scheduler.version += 1
        return {
            "sampling_s": sampled - began,
            "training_s": time.perf_counter() - sampled,
            "trained_tokens": int(metrics["tokens"]),
            "episode_tokens": sum(len(e.token_ids) for e in episodes),
            "given": workload.digest(e.given() for e in episodes),
        }

    def _sample(
        self, number: int, prompts: list[list[int]], read: list[list[list[int]]]
    ) -> list[Episode]:
        case = self.case
        episodes = [Episode([], [], []) for _ in range(case.episodes)]
        for at, episode in enumerate(episodes):
            episode.add(prompts[at // workload.GROUP])
        for turn in range(case.turns):
            futures = [
                self.scheduler.submit(
                    episode.token_ids,
                    SamplingParams(max_tokens=case.reply, seed=number * case.episodes + at),
                )
                for at, episode in enumerate(episodes)
            ]
            for at, (episode, future) in enumerate(zip(episodes, futures, strict=True)):
                completion = future.result().completion
                episode.add(completion.token_ids, completion.logprobs)
                if turn < len(read):
                    episode.add(read[turn][at])
        return episodes


def main() -> None:
    folder, case, rounds, threads = workload.arguments()
    wire = workload.Wire()
    torch.set_num_threads(threads)
    with Side(folder, case) as side:
        model = side.policy.model
        wire.ready(
            threads=torch.get_num_threads(),
            dtype=str(model.dtype),
            attention=model.config._attn_implementation,
            parameters=side.policy.parameters(),
            torch=torch.__version__,
        )
        workload.serve(wire, rounds, side.play)


if __name__ == "__main__":
    main()
