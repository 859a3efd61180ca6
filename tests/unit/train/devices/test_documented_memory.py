"""The numbers of README.md and docs/models.md for a model of Qwen3-0.6B's shape are those of the estimate."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

import air
from air.train.config import overrides
from air.train.config.run_config import RunConfig
from air.train.devices.memory import GB, PROGRAM, Memory
from air.train.loop.resources import memory_of_run
from air.train.model.policy import Policy
from tests.unit.train.families import NoPadding

ROOT = Path(air.__file__).parents[1]
LOW_MEMORY = ("@", "configs/embedded/low_memory.toml")
CACHE_OF_16_GB = 2 * GB / 2**20
"""`prefix_cache_mb` by default, an eighth of the free memory, if 16 GB are free."""


@pytest.fixture(scope="module")
def policy() -> Policy:
    """A model of Qwen3-0.6B's shape without weights: their memory is reserved, but never written or read."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    with torch.device("meta"):
        model: Any = Qwen3ForCausalLM(config)
    model.to_empty(device="cpu")
    model.tie_weights()
    return Policy(model, NoPadding(), "Qwen/Qwen3-0.6B")


def command() -> list[str]:
    """The arguments of README's command."""
    text = (ROOT / "README.md").read_text().replace("\\\n", " ")
    (line,) = re.findall(r"^rl (@ .*--model\.name Qwen/Qwen3-0\.6B .*)$", text, re.MULTILINE)
    return shlex.split(line)


def estimated(policy: Policy, arguments: list[str]) -> Memory:
    files = [str(ROOT / one) if one.endswith(".toml") else one for one in arguments]
    return memory_of_run(overrides.build(RunConfig, overrides.parse(files, RunConfig)), policy)


def in_gb(size: float) -> str:
    return f"{size / GB:.1f} GB"


def test_readme_says_what_its_command_needs(policy: Policy) -> None:
    (number,) = re.findall(r"By estimate this needs (\S+ GB)", (ROOT / "README.md").read_text())
    assert number == in_gb(estimated(policy, command()).peak)


def test_the_parts_in_the_documentation_are_those_of_the_estimate(policy: Policy) -> None:
    text = (ROOT / "docs/models.md").read_text()
    rows = re.findall(r"^\| (\d+) episodes, (.*?) \| (.*) \|$", text, re.MULTILINE)
    assert [(episodes, "low_memory" in keys) for episodes, keys, _ in rows] == [
        ("32", False),
        ("8", True),
    ]
    for episodes, keys, numbers in rows:
        arguments = [*command(), "--orchestrator.batch-size", episodes]
        if "low_memory" not in keys:
            place = arguments.index(LOW_MEMORY[1])
            arguments[place - 1 : place + 1] = []
            arguments += ["--embedded.prefix-cache-mb", str(CACHE_OF_16_GB)]
        need = estimated(policy, arguments)
        parts = [need.weights, need.gradients, need.optimizer - need.gradients, need.activations]
        parts += [need.gradient_copies, need.keys_values, need.weight_copies, need.peak]
        assert numbers.split(" | ") == [in_gb(part) for part in parts]
    assert f"The program itself takes another {in_gb(PROGRAM)}." in text
