"""The policy: the causal language model that is trained, with its tokenizer.

`build` writes a small untrained model as a Hugging Face folder. `load` loads a model from such a folder or
from the Hugging Face hub, and can add a LoRA adapter. The model is always in evaluation mode (no dropout), so
that sampler and trainer compute the same probabilities.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from air.errors import MissingError, UsageError
from air.train.config.model_options import LoRAConfig
from air.train.model import adapters, attention_mask_check
from air.train.model.attention import check_supported
from air.train.model.tokenizer import END_OF_TEXT, IM_END, build_tokenizer

_ALIGNMENT = 64
"""The addresses of memory that torch allocates are multiples of this number of bytes."""


@dataclass
class Policy:
    """The causal language model that is trained, and its tokenizer."""

    model: Any
    """A transformers causal language model, in evaluation mode."""
    tokenizer: Any
    name: str
    """The model's folder, or its id on the Hugging Face hub. This is also the default of the model's name on
    the inference server."""
    renderer_config: Any = None
    """The config of the renderer (package `renderers`), which converts chat messages to token ids. None: the
    default for the model type."""

    @property
    def device(self) -> torch.device:
        """The torch device on which the weights are."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def max_length(self) -> int:
        """The largest number of tokens in a sequence that the model supports."""
        return int(self.model.config.max_position_embeddings)

    @property
    def eos_ids(self) -> frozenset[int]:
        """The ids of the tokens that end a reply: those in the model's generation config or, if it has none,
        the tokenizer's."""
        ids = self.model.generation_config.eos_token_id
        if ids is None:
            ids = self.tokenizer.eos_token_id
        return frozenset([ids] if isinstance(ids, int) else ids or [])

    def parameters(self) -> int:
        """Returns the model's number of parameters (single numbers, not tensors)."""
        return sum(p.numel() for p in self.model.parameters())

    def renderer(self) -> Any:
        """Returns a new renderer, which converts chat messages to token ids. A renderer must be used by one
        thread only."""
        from renderers import create_renderer

        config = self.renderer_config or default_renderer(self.model.config.model_type)
        return create_renderer(copy.deepcopy(self.tokenizer), config)

    @contextmanager
    def base_model(self) -> Iterator[None]:
        """Context manager that switches the LoRA adapter off during the `with` block, so that `model`
        computes the same as the base model under the adapter, for example as a reference model. Only the
        calling thread may use the model during the block. Raises ValueError if there is no adapter."""
        if not self.has_adapter:
            raise ValueError("the model has no adapter, so its weights are not the base model's")
        with adapters.switched_off(self.model):
            yield

    @property
    def has_adapter(self) -> bool:
        """Whether the model has a LoRA adapter."""
        return adapters.has_adapter(self.model)

    @property
    def base(self) -> str | None:
        """The folder or Hugging Face id of the base model under the LoRA adapter. None if there is no
        adapter."""
        return adapters.base_name(self.model) if self.has_adapter else None

    def save(self, folder: Path) -> None:
        """Writes weights, configs and tokenizer into `folder`, in the Hugging Face format. If the model has a
        LoRA adapter, writes only the adapter, in the format of the package `peft`, and the tokenizer."""
        with _no_progress_bars():
            self.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)


def default_renderer(model_type: str) -> Any:
    """Returns the default config of the renderer for a model type (such as `qwen3`). A renderer converts chat
    messages to token ids. It should append new messages without changing the tokens of earlier messages, so
    that an episode becomes one training sample. With Qwen3's renderer, a later user message changes earlier
    tokens unless thinking is disabled; so the default disables thinking for Qwen3."""
    from renderers import AutoRendererConfig, Qwen3RendererConfig

    if model_type == "qwen3":
        return Qwen3RendererConfig(enable_thinking=False)
    return AutoRendererConfig()


def build(
    folder: Path,
    texts: Iterable[str],
    *,
    hidden: int = 128,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 32,
    vocab: int = 512,
    max_length: int = 4096,
    initializer_range: float = 0.02,
    seed: int = 0,
) -> Path:
    """Writes a small untrained Qwen3 model with a tokenizer to `folder`, which must be new or empty, and
    returns `folder`.

    The tokenizer is trained on `texts`, and has at most `vocab` tokens, including special tokens.
    `max_length` is the largest number of tokens in a sequence. `hidden`, `layers`, `heads`, `kv_heads` and
    `head_dim` are the sizes of the model. `initializer_range` is the standard deviation of the random
    weights, and `seed` their seed. The default 0.02 suits large models; a model this small learns to use the
    whole prompt faster with 1/√`hidden`. The same arguments give the same model. After an error, no
    incomplete folder remains. Raises UsageError if the folder is not empty, and ConfigError if `vocab` is too
    small.
    """
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError("already exists", where=str(folder), remedy="remove it or name another")
    tokenizer = build_tokenizer(texts, vocab, max_length=max_length)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=max_length,
        initializer_range=initializer_range,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.convert_tokens_to_ids(IM_END),
        pad_token_id=tokenizer.convert_tokens_to_ids(END_OF_TEXT),
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    stops = [tokenizer.convert_tokens_to_ids(t) for t in (IM_END, END_OF_TEXT)]
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        eos_token_id=stops,
        pad_token_id=config.pad_token_id,
    )
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    unfinished.mkdir(parents=True)
    try:
        Policy(model, tokenizer, str(folder)).save(unfinished)
        if folder.exists():
            folder.rmdir()
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def load(
    name_or_path: str | Path,
    *,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    attention: str = "auto",
    lora: LoRAConfig | None = None,
) -> Policy:
    """Loads a model and its tokenizer from a folder, or by id from the Hugging Face hub or its local cache.

    `dtype` is the data type of the weights, such as `float32`, and `device` a torch device. If the folder
    contains a LoRA adapter, loads the adapter with its base model; the adapter is trainable only if `lora` is
    given. For any other model, `lora` adds a new adapter. `attention` is the name of an attention
    implementation of transformers, or `auto`. Checks that the model follows attention masks (see
    `agreement`).

    Raises MissingError if there is no such model, or if the hub cannot be reached. Raises UsageError if the
    model cannot be loaded, has layers that the embedded training engine does not support, or does not follow
    masks; also if `lora` does not match the model or the existing adapter.
    """
    name = str(name_or_path)
    check_source(name)
    is_adapter = adapters.is_adapter(name)
    model, tokenizer = _read(name, dtype, None if attention == "auto" else attention)
    check_supported(model.config, name)
    if is_adapter:
        if lora is not None:
            adapters.check_same(model, name, lora)
        adapters.set_trained(model, lora is not None)
        adapters.read_weights(model, name)
    elif lora is not None:
        adapters.add(model, lora, name)
    model.to(torch.device(device)).eval()
    _align(model)
    attention_mask_check.check(model, name)
    return Policy(model, tokenizer, name)


def _align(model: Any) -> None:
    """Moves weights to addresses at which torch allocates memory. The address of a weight that was read from
    a file depends on its place in the file, and the rounding of matrix products depends on the address.
    Without this function, a resumed run would round differently from a run that was never stopped."""
    for weights in model.parameters():
        if weights.data_ptr() % _ALIGNMENT:
            weights.data = weights.data.clone()


def merged(adapter: str | Path, dtype: str = "float32") -> Policy:
    """Loads the LoRA adapter in the folder `adapter`, and returns its base model with the adapter's matrices
    added to the weights. The sums are computed in float32, then rounded to `dtype`. Raises UsageError if the
    folder's adapter is not a LoRA adapter, and MissingError if its base model was a folder that no longer
    exists."""
    from transformers import AutoTokenizer

    model = adapters.merged(adapter).to(getattr(torch, dtype))
    return Policy(model, AutoTokenizer.from_pretrained(adapter), str(adapter))


def _read(name: str, dtype: str | torch.dtype, attention: str | None) -> tuple[Any, Any]:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if adapters.is_adapter(name):
        adapters.settings(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        with _no_progress_bars():
            model: Any = AutoModelForCausalLM.from_pretrained(
                name,
                dtype=getattr(torch, dtype) if isinstance(dtype, str) else dtype,
                attn_implementation=attention,
            )
    except (OSError, ValueError, SafetensorError) as error:
        raise _explained(name, attention, error) from error
    return model, tokenizer


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def check_source(name: str) -> None:
    """Raises MissingError if `name` is a path at which there is no model. Does not check a Hugging Face id,
    and loads nothing."""
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file() and not adapters.is_adapter(path):
            raise MissingError(
                "this folder holds no model (no config.json)",
                where=name,
                remedy="give a Hugging Face model folder, such as checkpoints/step_N",
            )
    elif path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise MissingError(
            "no such model folder", where=name, remedy="check the path, or give a hub id (org/name)"
        )


def _explained(name: str, attention: str | None, error: Exception) -> UsageError:
    text = " ".join(str(error).split())[:200]
    if attention is not None and "attention implementation" in text:
        return UsageError(
            f"{name} cannot be loaded with {attention} attention: {text.partition(' Please ')[0]}",
            where="embedded.attention",
            remedy="set it to auto" + (" or eager" if attention != "eager" else ""),
        )
    if Path(name).expanduser().is_dir():
        return UsageError(f"cannot be loaded: {text}", where=name, remedy="is the folder complete?")
    offline = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE")
    remedy = (
        "the hub is switched off (HF_HUB_OFFLINE): unset it, or give a local folder"
        if offline
        else "no such folder here, and the hub gave none: check name, network and HF_TOKEN"
    )
    return MissingError(f"no such model ({text})", where=name, remedy=remedy)
