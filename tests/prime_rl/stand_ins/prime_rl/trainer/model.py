"""Stands in for prime-rl's `trainer/model.py`, of which its orchestrator and launcher use two functions.

The real module imports torchtitan and kernels that are built for CUDA; a machine without a GPU has neither.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer


def setup_tokenizer(config: Any) -> Any:
    """The tokenizer of `[tokenizer]`; a chat template of its own is not supported here."""
    if config.chat_template is not None:
        raise NotImplementedError("the stand-in takes no chat_template")
    tokenizer = AutoTokenizer.from_pretrained(
        config.name, trust_remote_code=config.trust_remote_code
    )
    tokenizer.pad_token_id = tokenizer.eos_token_id
    return tokenizer


def pre_download_model(model_name: str, *, skip_weights: bool = False) -> None:
    """Does nothing for a folder, like the real one. Downloads are not supported here."""
    if not Path(model_name).exists():
        raise NotImplementedError(f"the stand-in downloads no model: {model_name}")
