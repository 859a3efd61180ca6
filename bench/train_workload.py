"""What both sides of `bench/train.py` do: the cases, their prompts, and how a side talks to the benchmark.

This module needs only the standard library, because each side runs in a Python environment of its own.
A side is a process. It writes `READY`, then does one round (sampling, then one training step) for each line
that it reads, and writes what it measured as a line of JSON. At the end it writes its peak memory.
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
"""Episodes of a group. They share their prompt."""
LEARNING_RATE = 1e-6
MAX_NORM = 1.0
ROW_TOKENS = 8192
"""The most tokens (rows x longest row) that one forward and backward pass takes, on both sides."""


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
    """One step: groups of episodes with the same lengths, so that both sides have equally many tokens."""

    what: str
    groups: int
    prompt: int
    """Tokens of the prompt, which differs between groups and rounds."""
    reply: int
    """Tokens of each reply. No reply ends earlier."""
    turns: int = 1
    observation: int = 0
    """Tokens that follow each reply but the last, before the next one."""

    @property
    def episodes(self) -> int:
        """The number of episodes of a round."""
        return self.groups * GROUP

    @property
    def sampled(self) -> int:
        """The number of tokens that are sampled, and trained, in a round."""
        return self.episodes * self.turns * self.reply

    @property
    def length(self) -> int:
        """The tokens of a whole episode."""
        return self.prompt + self.turns * self.reply + (self.turns - 1) * self.observation

    def prompts(self, number: int, vocab: int) -> list[list[int]]:
        """Returns the prompts of round `number`, one for each group."""
        return [
            tokens(f"prompt {number} {group}", self.prompt, vocab) for group in range(self.groups)
        ]

    def observations(self, number: int, turn: int, vocab: int) -> list[list[int]]:
        """Returns what each episode of round `number` reads after its reply `turn`, counted from 0."""
        return [
            tokens(f"observation {number} {turn} {episode}", self.observation, vocab)
            for episode in range(self.episodes)
        ]


def tokens(seed: str, count: int, vocab: int) -> list[int]:
    """Returns `count` random token ids; 0, which pads, is not among them."""
    rng = random.Random(seed)
    return [rng.randrange(1, vocab) for _ in range(count)]


def reward(episode: int) -> float:
    """Returns the reward of an episode by its number: none is its group's mean, so that all are trained."""
    return float(episode % GROUP)


def cases(model: str) -> dict[str, Case]:
    """Returns the cases for a model. The smaller one plays more groups, so that a step is not too short."""
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
    """Returns a checksum of token lists, so that what the sides read can be compared."""
    text = json.dumps(list(values))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def arguments() -> tuple[Path, Case, int, int]:
    """Reads a side's command line; returns the model's folder, the case, and the rounds and threads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", choices=list(MODELS))
    parser.add_argument("case")
    parser.add_argument("rounds", type=int)
    parser.add_argument("threads", type=int)
    args = parser.parse_args()
    return args.folder, cases(args.model)[args.case], args.rounds, args.threads


class Wire:
    """A side's line to the benchmark. It keeps standard output for itself; others print to standard error."""

    def __init__(self) -> None:
        self._out: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def ready(self, **settings: Any) -> None:
        """Says that the rounds can begin, with the settings that decide the result."""
        self._say({**settings, "ready_mb": peak_mb()})

    def await_round(self) -> None:
        """Waits until the benchmark asks for the next round; ends this process if it has gone."""
        if not sys.stdin.readline():
            raise SystemExit("the benchmark has gone")

    def measured(self, **numbers: Any) -> None:
        """Says what a round measured."""
        self._say(numbers)

    def end(self) -> None:
        """Says the peak memory of this process."""
        self._say({"peak_mb": peak_mb()})

    def _say(self, line: dict[str, Any]) -> None:
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()


def peak_mb() -> float:
    """Returns the most memory, in MB, that this process has had in use (resident) so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def serve(wire: Wire, rounds: int, play: Callable[[int], dict[str, Any]]) -> None:
    """Plays the rounds as they are asked for."""
    for number in range(rounds):
        wire.await_round()
        wire.measured(**play(number))
    wire.end()
