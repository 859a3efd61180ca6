"""Makes a policy for each seed of an experiment, and summarises the seeds' results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from air import paths
from air.cli.runs import sft
from air.train.config import overrides
from air.train.config.sft_config import SFTRunConfig
from air.train.model import policy as policies
from air.train.model.demonstrations import read_examples

CONFIGS = paths.shipped("configs")


def warm_start(folder: Path, data: Path, seed: int) -> Path:
    """Builds a policy with this seed, trains it on the demonstrations in `data`, and returns its folder."""
    texts = [message["content"] for talk in read_examples(data) for message in talk]
    policies.build(folder / "base", texts, seed=seed)
    flags = [f"@{CONFIGS / 'sft' / 'warmstart.toml'}", "--model.name", str(folder / "base")]
    flags += ["--data.name", str(data), "--data.seed", str(seed)]
    flags += ["--output-dir", str(folder), "--run.name", "warm"]
    return sft.train(overrides.build(SFTRunConfig, overrides.parse(flags, SFTRunConfig)))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean and its standard error, where each value is one data point. The error is infinite for
    one value."""
    if len(values) < 2:
        return values[0], math.inf
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
