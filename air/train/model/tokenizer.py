"""Trains a small byte-level BPE tokenizer on given texts, in the style of Qwen's tokenizer.

Every text can be encoded, and decoding gives the same text, because the base alphabet is all 256 bytes and
texts are not normalised. The special tokens and the pre-tokenizer pattern are Qwen's, because Qwen3 renderers
(which turn chat messages into token ids) need them. The chat template is ChatML with thinking disabled. Qwen3
puts an empty think block before each reply. The template leaves this block in earlier replies, too, so that
the existing tokens of a conversation do not change when messages are added.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from air.errors import ConfigError

END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END)
MARKER_TOKENS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
"""Markers of the chat format, each a single token. As in Qwen3 they are not special tokens, so a decoder that
skips special tokens does not skip them."""
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The regular expression by which Qwen's pre-tokenizer splits a text into words (each with one leading
character), single digits, punctuation and white space."""
SCAFFOLD = "system\nuser\nassistant\n\n"
"""An additional training text for the tokenizer, used once after every other training text. It contains the
words and line ends that surround each chat message, so that they become few tokens."""
SMALLEST_VOCAB = 256 + len(SPECIAL_TOKENS) + len(MARKER_TOKENS)

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['role'] == 'assistant' %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    "{{- message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}"
)


def build_tokenizer(texts: Iterable[str], vocab: int, *, max_length: int) -> Any:
    """Trains a tokenizer on `texts` and returns it as a transformers `PreTrainedTokenizerFast`.

    The same texts give the same tokenizer.

    Args:
        vocab: largest number of tokens; the tokenizer has fewer if the texts are too short.
        max_length: longest sequence in tokens that the model allows.

    Raises:
        ConfigError: `vocab` is smaller than 256 (one token for each byte) plus the number of special and
            marker tokens.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if vocab < SMALLEST_VOCAB:
        raise ConfigError(f"a vocabulary of {vocab} is too small", remedy=f">= {SMALLEST_VOCAB}")
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(SPECIAL_TOKENS) - len(MARKER_TOKENS),
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    inner.train_from_iterator((part for t in texts for part in (t, SCAFFOLD)), trainer=trainer)
    inner.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIAL_TOKENS])
    inner.add_tokens([AddedToken(t, normalized=False) for t in MARKER_TOKENS])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=inner,
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[IM_START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=max_length,
        padding_side="left",
    )
