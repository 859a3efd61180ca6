"""The policy: the causal language model that is trained, with its tokenizer.

`build` writes a small untrained model as a Hugging Face folder. `load` reads such a folder, or a model from
the Hugging Face hub. The model always stays in evaluation mode (no dropout), so that sampling and training
give the same probabilities.
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
from air.train.model.tokenizer import END_OF_TEXT, IM_END, build_tokenizer

FULL_ATTENTION = "full_attention"


@dataclass
class Policy:
    """The causal language model that is trained, and its tokenizer."""

    model: Any
    """A transformers causal language model, in evaluation mode."""
    tokenizer: Any
    """The fast tokenizer of the model."""
    name: str
    """The model's folder, or its id on the Hugging Face hub. The inference server serves the model under this
    name, too."""
    renderer_config: Any = None
    """Config of the renderer (package `renderers`), which turns chat messages into token ids. None: the
    result of `default_renderer`."""

    @property
    def device(self) -> torch.device:
        """The torch device that holds the weights."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def max_length(self) -> int:
        """The longest sequence, in tokens, that the model allows."""
        return int(self.model.config.max_position_embeddings)

    @property
    def eos_ids(self) -> frozenset[int]:
        """The ids of the tokens that end a reply.

        They come from the model's generation config, or, if it has none, from the tokenizer.
        """
        ids = self.model.generation_config.eos_token_id
        if ids is None:
            ids = self.tokenizer.eos_token_id
        return frozenset([ids] if isinstance(ids, int) else ids or [])

    def parameters(self) -> int:
        """Returns the number of parameters (single weights) of the model."""
        return sum(p.numel() for p in self.model.parameters())

    def renderer(self) -> Any:
        """Returns a new renderer, which turns chat messages into token ids.

        Each renderer has its own copy of the tokenizer. A renderer must not be shared between threads.
        """
        from renderers import create_renderer

        config = self.renderer_config or default_renderer(self.model.config.model_type)
        return create_renderer(copy.deepcopy(self.tokenizer), config)

    def save(self, folder: Path) -> None:
        """Writes weights, configs and tokenizer into `folder`, in the Hugging Face format."""
        with _no_progress_bars():
            self.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)


def default_renderer(model_type: str) -> Any:
    """Returns the default renderer config for a model type. A renderer turns chat messages into token ids.

    For `qwen3` the result is the Qwen3 renderer with thinking disabled; for other types the package
    `renderers` chooses. A renderer must append new messages without changing the tokens of earlier messages,
    so that an episode is one training sample. Across user messages, Qwen3's renderer does so only if thinking
    is disabled.
    """
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
    seed: int = 0,
) -> Path:
    """Writes a small untrained Qwen3 model and a tokenizer to `folder`, and returns `folder`.

    The same arguments give the same model. After an error, no incomplete folder remains.

    Args:
        folder: the new folder; must not exist, or must be empty.
        texts: the texts on which the tokenizer is trained.
        vocab: largest size of the vocabulary, including special tokens.
        max_length: longest sequence in tokens.
        seed: the seed of the random weights.

    Raises:
        UsageError: the folder is not empty.
        ConfigError: `vocab` is too small.
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


def load(name_or_path: str | Path, *, dtype: str = "float32", device: str = "cpu") -> Policy:
    """Loads a model and its tokenizer, and returns them as a `Policy`.

    Args:
        name_or_path: the model's folder, or its id on the Hugging Face hub. A model of the hub may come from
            the hub's local cache.
        dtype: the name of the weights' torch type.
        device: the name of the torch device that will hold the weights.

    Raises:
        MissingError: the folder does not exist or contains no model, or the hub has no such model or cannot
            be reached.
        UsageError: the model in the folder cannot be loaded, or has attention layers that the embedded
            training engine does not support.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    name = str(name_or_path)
    _check_source(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        with _no_progress_bars():
            model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=getattr(torch, dtype))
    except (OSError, ValueError) as error:
        raise _explained(name, error) from error
    kinds = set(getattr(model.config, "layer_types", None) or [FULL_ATTENTION])
    if kinds != {FULL_ATTENTION}:
        raise UsageError(
            f"has layers of kind {', '.join(sorted(kinds - {FULL_ATTENTION}))}",
            where=name,
            remedy="the embedded engine samples from full attention only; use prime-rl with vLLM",
        )
    model.to(torch.device(device)).eval()
    return Policy(model, tokenizer, name)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _check_source(name: str) -> None:
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise MissingError(
                "this folder holds no model (no config.json)",
                where=name,
                remedy="give a Hugging Face model folder, such as checkpoints/step_N",
            )
    elif path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise MissingError(
            "no such model folder", where=name, remedy="check the path, or give a hub id (org/name)"
        )


def _explained(name: str, error: Exception) -> UsageError:
    text = " ".join(str(error).split())[:200]
    if Path(name).expanduser().is_dir():
        return UsageError(f"cannot be loaded: {text}", where=name, remedy="is the folder complete?")
    offline = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE")
    remedy = (
        "the hub is switched off (HF_HUB_OFFLINE): unset it, or give a local folder"
        if offline
        else "no such folder here, and the hub gave none: check name, network and HF_TOKEN"
    )
    return MissingError(f"no such model ({text})", where=name, remedy=remedy)
