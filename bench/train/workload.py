"""Defines the work that both sides of `bench/train` do: the cases, their prompts, and the protocol between
a side and the benchmark.

This module needs only the standard library, because each side runs in a Python environment of its own. A side
is a process. It writes a line with its settings when it is ready. Then it runs one round (sampling, then one
training step) for each line that it reads, and writes the round's measurements as a line of JSON. At the end
it writes its peak memory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

GROUP = 8
"""The number of episodes in a group. The episodes of a group share their prompt."""
LEARNING_RATE = 1e-6
MAX_NORM = 1.0
ROW_TOKENS = 8192
"""The largest number of tokens in one forward and backward pass, on both sides: the number of rows of the
batch times the length of the longest row."""


@dataclass(frozen=True)
class Model:
    """The shape of a Qwen3 model with random weights, tied embeddings and heads of 64 dimensions."""

    hidden: int
    layers: int
    vocab: int
    heads: int = 0
    kv_heads: int = 2


MODELS = {
    "9M": Model(hidden=256, layers=7, vocab=8192, heads=4),
    "50M": Model(hidden=512, layers=12, vocab=8192, heads=8),
    "tiny": Model(hidden=64, layers=2, vocab=256, heads=2, kv_heads=1),
}


@dataclass(frozen=True)
class Case:
    """The lengths of one training step's episodes. All episodes have the same lengths, so that both sides
    have equally many tokens."""

    what: str
    groups: int
    prompt: int
    """The number of tokens of a prompt. Prompts differ between groups and rounds."""
    reply: int
    """The number of tokens of each reply. No reply is shorter."""
    turns: int = 1
    observation: int = 0
    """The number of tokens that the episode reads between two replies."""

    @property
    def episodes(self) -> int:
        """The number of episodes of a round."""
        return self.groups * GROUP

    @property
    def sampled(self) -> int:
        """The number of tokens that are sampled and trained in a round."""
        return self.episodes * self.turns * self.reply

    @property
    def length(self) -> int:
        """The number of tokens of a whole episode."""
        return self.prompt + self.turns * self.reply + (self.turns - 1) * self.observation

    def prompts(self, number: int, vocab: int) -> list[list[int]]:
        """Returns the prompts of round `number` as token ids, one prompt for each group."""
        return [
            tokens(f"prompt {number} {group}", self.prompt, vocab) for group in range(self.groups)
        ]

    def observations(self, number: int, turn: int, vocab: int) -> list[list[int]]:
        """Returns the tokens that each episode of the round `number` reads after its reply `turn`, counted
        from 0."""
        return [
            tokens(f"observation {number} {turn} {episode}", self.observation, vocab)
            for episode in range(self.episodes)
        ]


def tokens(seed: str, count: int, vocab: int) -> list[int]:
    """Returns `count` random token ids from 1 to `vocab` − 1. The id 0 is excluded, because it is the padding
    token."""
    rng = random.Random(seed)
    return [rng.randrange(1, vocab) for _ in range(count)]


def reward(episode: int) -> float:
    """Returns the reward of an episode, which depends on its number only. No reward equals the mean of its
    group, so that every episode has an advantage and is trained."""
    return float(episode % GROUP)


def cases(model: str) -> dict[str, Case]:
    """Returns the cases for a model, by name. The smaller model gets more groups, so that a step is not too
    short to time."""
    if model == "tiny":
        return {
            "long": Case("24 + 4 tokens", 2, 24, 4),
            "short": Case("8 + 4 tokens", 2, 8, 4),
            "turns": Case("3 turns: 16 + 3 x 4, 2 x 3 observed", 1, 16, 4, 3, 3),
        }
    small = model == "9M"
    return {
        "long": Case("512 + 64 tokens", 2 if small else 1, 512, 64),
        "short": Case("128 + 64 tokens", 4 if small else 1, 128, 64),
        "turns": Case("5 turns: 1024 + 5 x 32, 4 x 64 observed", 1, 1024, 32, 5, 64),
    }


def digest(values: Iterable[Sequence[int]]) -> str:
    """Returns a checksum of token lists, by which the tokens that the two sides read can be compared."""
    text = json.dumps(list(values))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def arguments() -> tuple[Path, Case, int, int]:
    """Returns the arguments of a side's command line: the model's folder, the case, and the numbers of rounds
    and of threads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", choices=list(MODELS))
    parser.add_argument("case")
    parser.add_argument("rounds", type=int)
    parser.add_argument("threads", type=int)
    args = parser.parse_args()
    return args.folder, cases(args.model)[args.case], args.rounds, args.threads


class Wire:
    """A side's connection to the benchmark: it reads standard input and writes standard output. Everything
    else that the side prints goes to standard error."""

    def __init__(self) -> None:
        self._out: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def ready(self, **settings: Any) -> None:
        """Reports to the benchmark that rounds can begin, with the settings that affect the result."""
        self._say({**settings, "ready_mb": peak_mb()})

    def await_round(self) -> None:
        """Waits until the benchmark asks for the next round. Ends this process if the benchmark has ended."""
        if not sys.stdin.readline():
            raise SystemExit("the benchmark has gone")

    def measured(self, **numbers: Any) -> None:
        """Reports the measurements of a round to the benchmark."""
        self._say(numbers)

    def end(self) -> None:
        """Reports the peak memory of this process to the benchmark."""
        self._say({"peak_mb": peak_mb()})

    def _say(self, line: dict[str, Any]) -> None:
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()


def peak_mb() -> float:
    """Returns the peak resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def serve(wire: Wire, rounds: int, play: Callable[[int], dict[str, Any]]) -> None:
    """Runs `rounds` rounds, each when the benchmark asks for it, and reports their measurements. `play` runs
    the round with the given number."""
    for number in range(rounds):
        wire.await_round()
        wire.measured(**play(number))
    wire.end()
