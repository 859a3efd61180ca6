"""Runs one case of `bench/memory` in a process of its own, so that the process's peak memory is that of
the case.

    python -m bench.memory.step FOLDER MODEL          writes the model
    python -m bench.memory.step FOLDER CASE STEP      makes the step (JSON); prints a line of JSON
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

GB = 10**9
MODELS: dict[str, dict[str, int]] = {
    "0.6B": {  # Qwen3-0.6B
        "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    },
    "tiny": {
        "vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    },
}  # fmt: skip
"""The shapes of the models. All of them are Qwen3 models with tied embeddings."""


class Step(NamedTuple):
    """A GRPO step of one group, and the settings of `[embedded]` that decide its memory."""

    episodes: int
    tokens: int
    """The number of tokens of an episode."""
    prompt: int
    """The number of tokens at the beginning that all episodes share."""
    reply: int
    """The number of tokens at the end of an episode that are sampled and trained."""
    max_batch: int
    prefix_cache_mb: int
    micro_batch_tokens: int


def build(folder: Path, model: str) -> None:
    """Writes a model with random weights in bfloat16, as most models are published, and a tokenizer."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import (
        GenerationConfig,
        PreTrainedTokenizerFast,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    from air.train.model.policy import Policy

    shape = MODELS[model]
    inner = Tokenizer(models.WordLevel({"t0": 0, "<end>": shape["vocab_size"]}, unk_token="t0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", pad_token="t0")
    config = Qwen3Config(
        **shape,  # type: ignore[arg-type]
        max_position_embeddings=40960,
        tie_word_embeddings=True,
        eos_token_id=None,
        pad_token_id=0,
        bos_token_id=None,
        dtype=torch.bfloat16,
    )
    torch.manual_seed(0)
    written = Qwen3ForCausalLM(config).to(torch.bfloat16)
    # An id beyond the vocabulary is never sampled, so all replies are equally long.
    written.generation_config = GenerationConfig(eos_token_id=shape["vocab_size"], pad_token_id=0)
    folder.mkdir()
    Policy(written, tokenizer, str(folder)).save(folder)


class Peak:
    """Measures the peak memory of this process, as the kernel's high-water mark of its resident memory."""

    def __init__(self) -> None:
        self.overall = 0.0

    def since_the_last(self) -> float:
        """Returns the peak in GB since the last call of this method, and resets the peak."""
        lines = Path("/proc/self/status").read_text().splitlines()
        kib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
        Path("/proc/self/clear_refs").write_text("5")  # sets the mark to the present memory
        peak = kib * 1024 / GB
        self.overall = max(self.overall, peak)
        return peak


def play(folder: Path, case: str, step: Step) -> dict[str, Any]:
    """Makes one GRPO step; returns its peak memory, its times and the estimated memory."""
    import torch

    from air.train.config.model_options import AdamWConfig, LoRAConfig
    from air.train.devices import memory
    from air.train.loop.trainer import Trainer
    from air.train.model import policy as policies
    from air.train.serving.llama_decoder import copied_bytes
    from air.train.serving.sampler import Sampler
    from air.train.serving.scheduler import Scheduler
    from air.train.tree.sample import Sample

    what, dtype = case.split("-")
    peak = Peak()
    policy = policies.load(folder, dtype=dtype, lora=LoRAConfig() if what == "lora" else None)
    optim = AdamWConfig(lr=1e-6)
    prefix_bytes = step.prefix_cache_mb * 2**20
    estimate = memory.estimate(
        policy.model,
        optim,
        micro_batch_tokens=step.micro_batch_tokens,
        seq_len=step.tokens,
        max_batch=min(step.max_batch, step.episodes),
        batch_size=step.episodes,
        prefix_cache=prefix_bytes,
        weight_copies=copied_bytes(policy.model),
        gradient_checkpointing=True,
    )
    sampler = Sampler(
        policy,
        max_batch=step.max_batch,
        max_model_len=step.tokens + 1,
        prefix_cache_bytes=prefix_bytes,
    )
    trainer = Trainer(
        policy,
        optim,
        micro_batch_tokens=step.micro_batch_tokens,
        gradient_checkpointing=True,
    )
    trainer.step([Sample([1, 2], [False, True], [0.0, -1.0], 1.0, temperature=1.0)])  # the states
    loading = peak.since_the_last()
    scheduler = Scheduler(sampler)
    scheduler.start()
    began = time.perf_counter()
    samples = _sample(scheduler, step, int(policy.model.config.vocab_size))
    sampled = time.perf_counter()
    sampling = peak.since_the_last()
    with scheduler.exclusive():
        metrics = trainer.step(samples)
    trained = time.perf_counter()
    scheduler.stop()
    training = peak.since_the_last()
    return {
        "case": case,
        "threads": torch.get_num_threads(),
        "loading_gb": loading,
        "sampling_gb": sampling,
        "training_gb": training,
        "peak_gb": peak.overall,
        "estimate_gb": estimate.peak / GB,
        "estimate": str(estimate),
        "sampling_s": sampled - began,
        "training_s": trained - sampled,
        "trained_tokens": int(metrics["tokens"]),
        "forward_tokens": int(metrics["train_tokens"] - metrics["shared_tokens"]),
    }


def _sample(scheduler: Any, step: Step, vocab: int) -> list[Any]:
    """Samples the end of each episode, and returns the group's samples."""
    from air.train.serving.sampler import SamplingParams
    from air.train.tree.sample import Sample

    rng = random.Random(0)
    shared = [rng.randrange(1, vocab) for _ in range(step.prompt)]
    own = step.tokens - step.prompt - step.reply
    prompts = [
        [*shared, *(rng.randrange(1, vocab) for _ in range(own))] for _ in range(step.episodes)
    ]
    futures = [
        scheduler.submit(prompt, SamplingParams(max_tokens=step.reply, seed=number))
        for number, prompt in enumerate(prompts)
    ]
    samples = []
    for number, (prompt, future) in enumerate(zip(prompts, futures, strict=True)):
        reply = future.result().completion
        mask = [False] * len(prompt) + [True] * len(reply.token_ids)
        logprobs = [0.0] * len(prompt) + reply.logprobs
        advantage = number - step.episodes / 2 + 0.25  # none is 0
        samples.append(
            Sample([*prompt, *reply.token_ids], mask, logprobs, advantage, temperature=1.0)
        )
    return samples


def main() -> None:
    folder, what, *step = sys.argv[1:]
    if not step:
        build(Path(folder), what)
        return
    print(json.dumps(play(Path(folder), what, Step(**json.loads(step[0])))))


if __name__ == "__main__":
    main()
