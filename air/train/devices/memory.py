"""Estimates the memory that a run needs on the device of its policy, from the model's shapes.

An estimate is not a limit: it leaves out memory fragmentation and the boxes. Its purpose is to warn before a
run starts, not after an hour, that the run will not fit, and to name the setting that lowers each part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from air.errors import UsageError
from air.train.config.model_options import AdamWConfig, OptimizerConfig
from air.train.model.logprobs import CHUNK_LOGITS

GB = 10**9
CONTEXTS = 2 * GB
"""GPU memory in bytes that the trainer's and vLLM's programs need besides tensors, also while vLLM sleeps."""
LEAST_FOR_REPLIES = GB
"""The least memory in bytes that vLLM needs besides the model, for keys, values and its own tensors."""
PROGRAM = GB // 2
"""Memory in bytes that this program needs besides tensors. On a CPU, 0.4 to 0.5 GB were measured."""
_GRADIENT_COPIES = 3
"""Number of copies of the largest gradient that exist at once, besides the gradient itself. The backward pass
makes a whole copy for each use of a weight. Input embeddings and output head are often one weight, and the
head is used for each chunk of logits. Two copies and their sum wait until those of earlier passes are
added."""
_CHUNK_COPIES = 3
"""Copies of a chunk of float32 logits that exist at once: logits, log-probabilities, their gradient."""
_DIVERGENCE_COPIES = 3
"""Number of further such copies if the divergence from a reference is computed: the reference's logits and
log-probabilities, and the difference."""


_TITLES = {
    "keys_values": "keys and values",
    "gradient_copies": "copies of gradients",
    "other_models": "other models",
}
_OFTEN_NONE = {"gradient_copies", "other_models"}


@dataclass(frozen=True)
class Memory:
    """The parts of a run's memory on one device, in bytes."""

    weights: int
    """The model's weights, as they are used in sampling and training."""
    optimizer: int
    """Gradients, the optimiser's states, and float32 copies of trained weights in bfloat16."""
    activations: int
    """What the backward pass of one micro-batch needs from its forward pass, and the logits."""
    keys_values: int
    """Keys and values of the replies that are sampled at once, and the prefix cache. This memory is free
    while training."""
    gradient_copies: int = 0
    """Copies of the gradient of the largest weight, which the backward pass adds up."""
    program: int = 0
    """What this program needs besides tensors."""
    other_models: int = 0
    """Weights and optimisers of the models beside the policy, such as a reference."""

    @property
    def resident(self) -> int:
        """The bytes that are used during the whole run."""
        return self.weights + self.optimizer + self.other_models

    @property
    def peak(self) -> int:
        """The largest number of bytes used at one time. Sampling and training take turns."""
        return self.program + self.resident + max(self.training, self.keys_values)

    @property
    def training(self) -> int:
        """The bytes that a training step needs temporarily, in addition to `resident`."""
        return self.activations + self.gradient_copies

    def __str__(self) -> str:
        parts = (
            f"{_TITLES.get(f.name, f.name)} {getattr(self, f.name) / GB:.1f}"
            for f in fields(self)
            if f.name not in _OFTEN_NONE or getattr(self, f.name)
        )
        return f"{self.peak / GB:.1f} GB ({', '.join(parts)})"


def estimate(
    model: Any,
    optim: OptimizerConfig,
    *,
    micro_batch_tokens: int,
    seq_len: int,
    max_batch: int,
    batch_size: int = 0,
    prefix_cache: int = 0,
    gradient_checkpointing: bool = False,
    other_models: int = 0,
    divergence: bool = False,
) -> Memory:
    """Returns an estimate for a loaded model, with its LoRA adapter if it has one. `max_batch` replies of at
    most `seq_len` tokens are sampled at once in this process (0: another process samples). The prefix cache
    has the `batch_size` replies of a step, in at most `prefix_cache` bytes. With `gradient_checkpointing`,
    layers keep only their inputs, and are computed again one at a time. `other_models` is the bytes of the
    models beside the policy. `divergence` says whether whole predictions are compared with a reference's."""
    config = model.config.get_text_config()
    size = model.dtype.itemsize
    trained = [p for p in model.parameters() if p.requires_grad]
    states = 8 if isinstance(optim, AdamWConfig) else 4
    per_weight = {torch.float32: 4 + states}  # the gradient, and the states
    optimizer = sum(p.numel() * per_weight.get(p.dtype, 8 + states) for p in trained)
    largest = max((p.numel() * p.element_size() for p in trained), default=0)
    layers = int(config.num_hidden_layers)
    heads = int(config.num_attention_heads)
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    kv = int(getattr(config, "num_key_value_heads", None) or heads) * head_dim
    tokens = max(micro_batch_tokens, seq_len)
    values = _activation_values(model, config, heads * head_dim, kv)
    layer = tokens * values * size
    if config._attn_implementation == "eager":
        layer += heads * tokens * tokens * (size + 4)
    activations = layers * layer
    if gradient_checkpointing:
        activations = layer + layers * tokens * int(config.hidden_size) * size
    reply = seq_len * layers * 2 * kv * size
    copies = _CHUNK_COPIES + (_DIVERGENCE_COPIES if divergence else 0)
    logits = min(CHUNK_LOGITS, tokens * int(config.vocab_size)) * 4 * copies
    return Memory(
        weights=sum(p.numel() * p.element_size() for p in model.parameters()),
        optimizer=optimizer,
        activations=activations + logits,
        keys_values=max_batch * reply + (min(batch_size * reply, prefix_cache) if max_batch else 0),
        gradient_copies=_GRADIENT_COPIES * largest,
        program=PROGRAM,
        other_models=other_models,
    )


def _activation_values(model: Any, config: Any, queries: int, kv: int) -> int:
    """Returns the number of values per token that each layer keeps for its backward pass. They are inputs and
    results of norms; queries, keys and values before and after their rotation (and norm, in some families);
    the attention's result; and the gated feed-forward part. The formula was fitted to what torch keeps for
    Llama and Qwen 3."""
    hidden = int(config.hidden_size)
    inner = int(getattr(config, "intermediate_size", None) or 4 * hidden)
    normed = any(name.endswith("q_norm") for name, _ in model.named_modules())
    return 6 * hidden + 3 * queries + 3 * kv + 4 * inner + 2 * (queries + kv) * normed


def share_for_vllm(memory: Memory, total: int, model_bytes: int) -> float:
    """Returns the share of a GPU's memory of `total` bytes that vLLM may use if the trainer uses the same
    GPU. `model_bytes` is the size of the model in vLLM. While replies are sampled, the trainer keeps only
    `memory.resident`. Raises UsageError if too little is left for vLLM, or for training while vLLM sleeps."""
    left = total - memory.resident - CONTEXTS
    trained = memory.resident + memory.training + CONTEXTS
    if left < model_bytes + LEAST_FOR_REPLIES or trained > total:
        raise UsageError(
            f"the GPU's {total / GB:.1f} GB are too few for trainer and vLLM together: the trainer keeps "
            f"{memory.resident / GB:.1f} GB and needs {memory.training / GB:.1f} more to train, vLLM "
            f"needs {(model_bytes + LEAST_FOR_REPLIES) / GB:.1f}, both programs {CONTEXTS / GB:.1f}",
            where="embedded.inference",
            remedy="use [trainer.model.lora], a smaller embedded.micro_batch_tokens, "
            'embedded.device = "cpu", or inference = "transformers"',
        )
    return left / total


def split(memory: Memory, total: int, share: float) -> str:
    """Returns one line that says how trainer and vLLM share a GPU's memory of `total` bytes."""
    return (
        f"memory of {total / GB:.1f} GB: while sampling, trainer {memory.resident / GB:.1f} and vLLM "
        f"{share * total / GB:.1f} GB; while training, vLLM sleeps and the trainer uses about "
        f"{(memory.resident + memory.training) / GB:.1f} GB"
    )


def available(device: torch.device) -> int:
    """Returns the free bytes on a device: the GPU's memory, or the memory of this machine or container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(_available_memory())


def total(device: torch.device) -> int:
    """Returns the total memory of a GPU in bytes, whether free or in use."""
    return int(torch.cuda.mem_get_info(device)[1])


def _available_memory() -> Iterator[int]:
    """Yields the available bytes of this machine; then this container's memory limit, if it has one."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    yield next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = Path("/sys/fs/cgroup", name)
        if limit.is_file() and (text := limit.read_text().strip()).isdigit():
            yield int(text)


def warning(memory: Memory, available: int, device: str) -> str:
    """Returns a one-line warning if the run needs more than `available` bytes on `device`; else ""."""
    if memory.peak <= available:
        return ""
    remedies = []
    if memory.training > memory.keys_values:
        remedies.append("embedded.micro_batch_tokens or seq_len")
    elif memory.keys_values:
        remedies.append("embedded.max_batch or seq_len")
    if memory.optimizer > memory.weights:
        remedies.append("[trainer.model.lora], which trains few weights")
    return (
        f"this run may need about {memory}, and {device} has {available / GB:.1f} GB free; lower "
        + ", or use ".join(remedies or ["the size of the model"])
    )
