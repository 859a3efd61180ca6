"""Estimates the memory that a run needs on its policy's device (GPU or CPU), from the shapes of the model.

The estimate omits memory fragmentation and the memory of boxes (the agents' containers). It serves to warn,
before a run starts, that the run will not fit into memory, and to name the settings that reduce the
memory.
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
"""GPU memory in bytes that the trainer's and vLLM's processes need together besides tensors (CUDA contexts).
This memory stays in use while vLLM sleeps (has freed its tensors for the training)."""
LEAST_FOR_REPLIES = GB
"""The least memory in bytes that vLLM needs besides the model's weights, for its key-value cache and
temporary tensors."""
PROGRAM = GB // 2
"""Memory in bytes that the trainer's process needs besides tensors. Measurements on a CPU gave 0.4 to 0.5
GB."""
_GRADIENT_COPIES = 3
"""The number of temporary tensors, each as large as the largest weight, that the backward pass holds at once
besides this weight's gradient. The backward pass makes such a tensor for each use of a weight. The largest
weight is often both the input embeddings and the output head, and the head is used for each chunk of logits.
So two of these tensors and their sum exist before the sum is added to the gradient."""
_CHUNK_COPIES = 3
"""The number of float32 tensors that the loss needs at the same time for a chunk of tokens, each with one
number per token and vocabulary entry: the logits, the log-probabilities, and their gradient."""
_DIVERGENCE_COPIES = 3
"""The number of further float32 tensors for a chunk of tokens, each with one number per token and vocabulary
entry, if the KL divergence from a reference model is computed: the reference's logits, its log-probabilities,
and the difference of both models' log-probabilities."""


_TITLES = {
    "keys_values": "keys and values",
    "weight_copies": "copies of weights",
    "gradient_copies": "copies of gradients",
    "other_models": "other models",
}
_OFTEN_NONE = {"weight_copies", "gradient_copies", "other_models"}


@dataclass(frozen=True)
class Memory:
    """An estimate, in bytes and broken down by purpose, of the memory that a training run needs on the device
    of the policy (the model that is trained)."""

    weights: int
    """The bytes of the policy's weights."""
    optimizer: int
    """The bytes of the gradients, of the optimiser's states, and of the float32 copies of trained weights
    that are in bfloat16."""
    activations: int
    """The bytes of the activations that the forward pass of one micro-batch stores for the backward pass, and
    of the logits."""
    keys_values: int
    """The bytes of the keys and values of the replies that are sampled at the same time, and of the prefix
    cache. This memory is free during training."""
    weight_copies: int = 0
    """The bytes of the sampler's copies of the weights, which are stored in an order that is faster to
    compute with on a CPU. This memory is free during training."""
    gradient_copies: int = 0
    """The bytes of temporary tensors of the size of the largest weight, in which the backward pass
    accumulates the gradient."""
    program: int = 0
    """The bytes that the trainer's process needs besides tensors."""
    other_models: int = 0
    """The bytes of weights and optimiser states of the further models, such as a reference or value model."""
    gradients: int = 0
    """The bytes of the gradients, which are also counted in `optimizer`. This memory is free while this
    process samples."""

    @property
    def resident(self) -> int:
        """The bytes that are in use all the time, both while sampling and while training."""
        return self.weights + self.optimizer + self.other_models

    @property
    def peak(self) -> int:
        """The largest number of bytes in use at one time. Sampling and training alternate, so this is the
        larger of their two totals."""
        return self.program + self.resident + max(self.training, self.sampling - self.gradients)

    @property
    def training(self) -> int:
        """The bytes that a training step needs temporarily, in addition to `resident`."""
        return self.activations + self.gradient_copies

    @property
    def sampling(self) -> int:
        """The bytes that sampling in this process needs temporarily, in addition to `resident`."""
        return self.keys_values + self.weight_copies

    def __str__(self) -> str:
        parts = (
            f"{_TITLES.get(f.name, f.name)} {getattr(self, f.name) / GB:.1f}"
            for f in fields(self)
            if f.name != "gradients" and (f.name not in _OFTEN_NONE or getattr(self, f.name))
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
    weight_copies: int = 0,
    gradient_checkpointing: bool = False,
    other_models: int = 0,
    divergence: bool = False,
) -> Memory:
    """Returns the estimated memory of a run that trains the loaded `model` (with a LoRA adapter, if it has
    one).

    `micro_batch_tokens` is the largest number of tokens in one forward and backward pass. `max_batch` is the
    number of replies that this process samples at the same time, each of at most `seq_len` tokens; 0 if
    another process samples. The prefix cache stores the `batch_size` replies of a step, in at most
    `prefix_cache` bytes. `weight_copies` is the memory in bytes of the reordered copies of weights with which
    the sampler computes faster on a CPU. With `gradient_checkpointing`, each layer stores only its input, and
    the backward pass computes the layers again one at a time. `other_models` is the memory in bytes of
    further models, such as a reference or value model. `divergence` says whether the KL divergence over the
    whole vocabulary is computed."""
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
        weight_copies=weight_copies if max_batch else 0,
        gradient_copies=_GRADIENT_COPIES * largest,
        program=PROGRAM,
        other_models=other_models,
        gradients=sum(p.numel() * 4 for p in trained),
    )


def _activation_values(model: Any, config: Any, queries: int, kv: int) -> int:
    """Returns the number of values per token that each layer stores for its backward pass: the inputs and
    results of norms; queries, keys and values before and after the rotary embedding (and norm, in some model
    families); the attention's result; and the gated feed-forward layer. The formula was fitted to the memory
    that torch uses for Llama and Qwen 3. `queries` and `kv` are the lengths of one token's query and key
    vectors, summed over all heads."""
    hidden = int(config.hidden_size)
    inner = int(getattr(config, "intermediate_size", None) or 4 * hidden)
    normed = any(name.endswith("q_norm") for name, _ in model.named_modules())
    return 6 * hidden + 3 * queries + 3 * kv + 4 * inner + 2 * (queries + kv) * normed


def share_for_vllm(memory: Memory, total: int, model_bytes: int) -> float:
    """Returns the share (0 to 1) of a GPU's memory that vLLM may use if the trainer uses the same GPU.
    `total` is the GPU's memory and `model_bytes` the size of the model's weights in vLLM, both in bytes. vLLM
    gets all memory except for `memory.resident` and `CONTEXTS`, since the trainer uses no more than these
    while vLLM samples. Raises UsageError if too little memory remains for vLLM, or for training while vLLM
    sleeps (has freed its memory)."""
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
    """Returns one line of text that says how trainer and vLLM share a GPU's memory of `total` bytes. `share`
    is the result of `share_for_vllm`."""
    return (
        f"memory of {total / GB:.1f} GB: while sampling, trainer {memory.resident / GB:.1f} and vLLM "
        f"{share * total / GB:.1f} GB; while training, vLLM sleeps and the trainer uses about "
        f"{(memory.resident + memory.training) / GB:.1f} GB"
    )


def available(device: torch.device) -> int:
    """Returns the free bytes of a device's memory. For the CPU, this is the smaller of the machine's
    available memory and the memory limit of the container in which this process runs. Without such a limit,
    it is the machine's available memory."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(_available_memory())


def total(device: torch.device) -> int:
    """Returns the total memory of a GPU in bytes, whether free or in use."""
    return int(torch.cuda.mem_get_info(device)[1])


def _available_memory() -> Iterator[int]:
    """Yields the machine's available memory in bytes, then the memory limit of the container (cgroup) in
    which this process runs, if it has a limit."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    yield next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = Path("/sys/fs/cgroup", name)
        if limit.is_file() and (text := limit.read_text().strip()).isdigit():
            yield int(text)


def warning(memory: Memory, available: int, device: str) -> str:
    """Returns a one-line warning, with a remedy, if the run needs more than `available` bytes on `device`;
    otherwise an empty string. `device` is the device's name in the warning."""
    if memory.peak <= available:
        return ""
    remedies = []
    if memory.training > memory.sampling - memory.gradients:
        remedies.append("embedded.micro_batch_tokens or seq_len")
    elif memory.keys_values:
        remedies.append("embedded.max_batch or seq_len")
    if memory.optimizer > memory.weights:
        remedies.append("[trainer.model.lora], which trains few weights")
    return (
        f"this run may need about {memory}, and {device} has {available / GB:.1f} GB free; lower "
        + ", or use ".join(remedies or ["the size of the model"])
    )
