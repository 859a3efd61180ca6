"""Stands in for prime-rl's `trainer/model.py`, of which its orchestrator uses `setup_tokenizer` alone.

The real module imports torchtitan and kernels that are built for CUDA; a machine without a GPU has neither.
"""

from __future__ import annotations

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
