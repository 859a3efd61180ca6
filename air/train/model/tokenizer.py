"""Trains a small byte-level BPE tokenizer on given texts, in the style of Qwen's tokenizer.

Decoding an encoded text always gives the same text, because the base alphabet has all 256 bytes and texts are
not normalised. The special tokens and the pre-tokenizer pattern are Qwen's, because the renderers for Qwen3,
which convert chat messages to token ids, need them. The chat template is ChatML with an empty `<think>` block
before every reply, including earlier replies, so that adding messages does not change the tokens of earlier
ones.
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
"""Markers of the chat format, each of which is a single token. As in Qwen3, they are not special tokens, so
decoding with `skip_special_tokens` keeps them in the text."""
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen's pre-tokenizer pattern (a regular expression). It splits texts into words (with a leading space, for
example), single digits, punctuation and white space."""
SCAFFOLD = "system\nuser\nassistant\n\n"
"""A text with the role names and line breaks of the chat format. It is added to the tokenizer's training data
once for each text, so that role names and line breaks become few tokens."""
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
    """Trains a tokenizer on `texts` and returns it (a fast tokenizer of transformers). The same texts give
    the same tokenizer. It has at most `vocab` tokens; fewer if the texts are short. `max_length` is the
    largest number of tokens in a sequence of the model. Raises ConfigError if `vocab` is smaller than
    `SMALLEST_VOCAB`."""
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
