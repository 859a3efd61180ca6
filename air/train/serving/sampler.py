"""Samples replies to many requests at once; new requests can join the batch at any time.

Every running request has one row of the key-value cache, filled from the left; n requests use the rows 0…n-1.
When a request ends, the last row is moved into its row, so finished requests cost nothing. Each request has
its own random generator, and a token is drawn by inverting the cumulative distribution. So a request with a
seed gets the same tokens whatever else is in the batch, apart from rounding of the logits.

The reported log-probabilities are those of the distribution from which the token was sampled: the logits are
divided by the temperature, then restricted by top_k and top_p. With top_p = 1 and top_k = -1 they equal those
of `air.train.model.logprobs.token_logprobs`; at temperature 0 (greedy) they are those of temperature 1.

Only one thread may use a `Sampler`. Requests with the same prompt share no cache.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache

from air.train.model.attention import attention_mask
from air.train.model.policy import Policy

FinishReason = Literal["stop", "length"]
_COLUMNS = 256
"""The key-value cache grows in units of this many columns (tokens)."""


@dataclass(frozen=True)
class SamplingParams:
    """The sampling parameters of one reply."""

    temperature: float = 1.0
    """The number by which the logits are divided. With 0, the most likely token is always taken."""
    top_p: float = 1.0
    """Sample only from the most likely tokens that together reach this probability; 1 allows all tokens."""
    top_k: int = -1
    """Sample only from this number of most likely tokens; -1 or 0 allows all tokens."""
    max_tokens: int = 256
    stop_token_ids: frozenset[int] = frozenset()
    """Each of these tokens ends the reply, and is part of it."""
    seed: int | None = None
    """Seed of the request's random generator, which also depends on the prompt's length: so the turns of an
    episode with one seed draw different numbers. None takes a random seed."""


@dataclass(frozen=True)
class Completion:
    """One sampled reply: its tokens, their log-probabilities, and the reason why it ended."""

    token_ids: list[int]
    """The sampled tokens, the stop token included."""
    logprobs: list[float]
    """For each sampled token, its log-probability in the distribution from which it was sampled, in nats."""
    finish_reason: FinishReason
    """What ended the reply: a stop token (`stop`), or `max_tokens` or the context length (`length`)."""


@dataclass(eq=False)
class Row:
    """One request for which a reply is being sampled. It occupies one row of the key-value cache."""

    prompt: list[int]
    """The token ids of the prompt; at least one."""
    params: SamplingParams
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    """Why the reply has ended; None while it is being sampled."""
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        seed = self.params.seed
        self.rng = random.Random(None if seed is None else f"{seed} {len(self.prompt)}")

    @property
    def length(self) -> int:
        """Number of tokens of the request so far: prompt and sampled tokens."""
        return len(self.prompt) + len(self.token_ids)

    def completion(self) -> Completion:
        """Returns the complete reply. Call this only after the reply has ended."""
        assert self.finish_reason is not None
        return Completion(self.token_ids, self.logprobs, self.finish_reason)


class RowCache(Cache):
    """The key-value cache of all running requests: per layer two tensors [rows, kv_heads, columns, head_dim].
    A row belongs to one request, a column to one token. `update` writes one token into each active row (a row
    in use), at the position that `aim` has set for that row."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.positions = torch.empty(0, dtype=torch.long)
        self.index = torch.empty(0, dtype=torch.long)
        self.columns = 0

    def aim(self, positions: Tensor) -> None:
        """Sets, for each active row, the column into which the next `update` writes a token."""
        self.positions = positions
        self.index = torch.arange(len(positions), device=positions.device)
        self.columns = int(positions.max()) + 1
        self._reserve(len(positions), self.columns)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Stores the keys and values of one token per active row; returns all keys and values of the layer.
        Both arguments are [active rows, kv_heads, 1, head_dim]."""
        rows = len(self.index)
        in_use = []
        for store, new in ((self.keys, key_states), (self.values, value_states)):
            buffer = store[layer_idx]
            buffer[self.index, :, self.positions] = new[:, :, 0]
            in_use.append(buffer[:rows, :, : self.columns])
        return in_use[0], in_use[1]

    def fill(self, row: int, source: Any, source_row: int, length: int) -> None:
        """Fills row `row` with a prompt of `length` tokens: row `source_row` of another cache, `source`."""
        for layer in source.layers[len(self.keys) :]:
            self.keys.append(layer.keys[:0, :, :0].clone())
            self.values.append(layer.values[:0, :, :0].clone())
        self._reserve(row + 1, length)
        for number, layer in enumerate(source.layers):
            self.keys[number][row, :, :length] = layer.keys[source_row, :, -length:]
            self.values[number][row, :, :length] = layer.values[source_row, :, -length:]

    def move(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` columns (tokens) of row `source` into row `target`."""
        for store in (self.keys, self.values):
            for buffer in store:
                buffer[target, :, :length] = buffer[source, :, :length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns the number of columns in use, which is the token count of the longest request."""
        return self.columns

    def _reserve(self, rows: int, columns: int) -> None:
        have = self.keys[0].shape
        if have[0] >= rows and have[2] >= columns:
            return
        rows = max(have[0], rows, min(2 * have[0], 64))
        columns = max(have[2], -(-columns // _COLUMNS) * _COLUMNS)
        for store in (self.keys, self.values):
            for number, old in enumerate(store):
                new = old.new_zeros((rows, old.shape[1], columns, old.shape[3]))
                new[: have[0], :, : have[2]] = old
                store[number] = new


class Sampler:
    """Samples the replies to at most `max_batch` requests at a time, one token of each per `step`.

    The policy's weights may change only while no request is being sampled. A prompt and its reply have at
    most `max_model_len` tokens together. One forward pass reads at most `prefill_tokens` prompt tokens
    (number of prompts x longest prompt).
    """

    def __init__(
        self, policy: Policy, *, max_batch: int, max_model_len: int, prefill_tokens: int = 16384
    ) -> None:
        self.model = policy.model
        self.pad_id = policy.tokenizer.pad_token_id or 0
        self.max_batch = max_batch
        self.max_model_len = max_model_len
        self.prefill_tokens = prefill_tokens
        self.rows: list[Row] = []
        self.cache = RowCache()

    @property
    def room(self) -> int:
        """The number of further requests that can be added now."""
        return self.max_batch - len(self.rows)

    @torch.inference_mode()
    def add(self, rows: Sequence[Row]) -> list[Row]:
        """Adds requests and samples the first token of each; returns the requests that have ended with it.
        Raises ValueError if there is no room, or if a prompt is empty or not shorter than `max_model_len`."""
        if len(rows) > self.room:
            raise ValueError(f"{len(rows)} requests, room for {self.room}")
        if any(not 0 < len(row.prompt) < self.max_model_len for row in rows):
            raise ValueError(f"a prompt must have 1 to {self.max_model_len - 1} tokens")
        waiting = sorted(rows, key=lambda row: len(row.prompt))
        while waiting:
            count = 1
            while count < len(waiting) and (
                (count + 1) * len(waiting[count].prompt) <= self.prefill_tokens
            ):
                count += 1
            self._prefill(waiting[:count])
            waiting = waiting[count:]
        return self._sweep()

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """Samples one token for every running request; returns the requests that have ended with it."""
        if not self.rows:
            return []
        device = self.model.device
        last = torch.tensor([[row.token_ids[-1]] for row in self.rows], device=device)
        positions = torch.tensor([row.length - 1 for row in self.rows], device=device)
        self.cache.aim(positions)
        columns = torch.arange(self.cache.columns, device=device)[None]
        visible = (columns <= positions[:, None])[:, None, None, :]
        mask = attention_mask(self.model, visible, positions[:, None], columns)
        out = self.model(
            input_ids=last,
            attention_mask=mask,
            position_ids=positions[:, None],
            past_key_values=self.cache,
            use_cache=True,
        )
        self._draw(self.rows, out.logits[:, -1])
        return self._sweep()

    def drop(self, row: Row) -> None:
        """Removes a running request before its reply has ended, because no client waits for the reply."""
        self._remove(self.rows.index(row))

    def clear(self) -> None:
        """Removes all running requests and frees the key-value cache."""
        self.rows = []
        self.cache = RowCache()

    def _prefill(self, rows: list[Row]) -> None:
        width = max(len(row.prompt) for row in rows)
        ids = torch.full((len(rows), width), self.pad_id)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for number, row in enumerate(rows):
            ids[number, width - len(row.prompt) :] = torch.tensor(row.prompt)
            mask[number, width - len(row.prompt) :] = 1
        device = self.model.device
        cache = DynamicCache()
        out = self.model(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0).to(device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        for number, row in enumerate(rows):
            self.cache.fill(len(self.rows), cache, number, len(row.prompt))
            self.rows.append(row)
        self._draw(rows, out.logits[:, -1])

    def _draw(self, rows: Sequence[Row], logits: Tensor) -> None:
        ids, logprobs = sample(
            logits, [row.params for row in rows], [row.rng.random() for row in rows]
        )
        for row, token, logprob in zip(rows, ids, logprobs, strict=True):
            row.token_ids.append(token)
            row.logprobs.append(logprob)
            if token in row.params.stop_token_ids:
                row.finish_reason = "stop"
            elif len(row.token_ids) >= row.params.max_tokens or row.length >= self.max_model_len:
                row.finish_reason = "length"

    def _sweep(self) -> list[Row]:
        ended = [row for row in self.rows if row.finish_reason is not None]
        for row in ended:
            self._remove(self.rows.index(row))
        return ended

    def _remove(self, number: int) -> None:
        last = self.rows.pop()
        if number < len(self.rows):
            self.cache.move(len(self.rows), number, last.length)
            self.rows[number] = last


def sample(
    logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Draws each row's next token from `logits` [rows, vocabulary], by inverting the cumulative distribution.
    `uniforms` has one uniform random number between 0 and 1 for each row. Returns for each row the token id
    and its log-probability in nats."""
    device = logits.device
    greedy = torch.tensor([p.temperature == 0 for p in params], device=device)
    divisor = torch.tensor([p.temperature or 1.0 for p in params], device=device)
    logprobs = _cut(logits.float() / divisor[:, None], params).log_softmax(-1)
    # In double precision: single precision loses unlikely tokens of large vocabularies.
    cumulative = logprobs.double().exp().cumsum(-1)
    aim = torch.tensor(uniforms, dtype=torch.double, device=device)[:, None] * cumulative[:, -1:]
    ids = torch.searchsorted(cumulative, aim, right=True).clamp(max=logits.shape[-1] - 1)[:, 0]
    ids = torch.where(greedy, logprobs.argmax(-1), ids)
    chosen = logprobs.gather(-1, ids[:, None])[:, 0]
    return ids.tolist(), chosen.tolist()


def _cut(scaled: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Returns the logits `scaled` by temperature, with -inf for tokens that top_k or top_p excludes."""
    if all(p.top_p >= 1 and p.top_k <= 0 for p in params):
        return scaled
    device, vocab = scaled.device, scaled.shape[-1]
    top_k = torch.tensor([p.top_k if p.top_k > 0 else vocab for p in params], device=device)
    top_p = torch.tensor([p.top_p for p in params], device=device)
    ordered, order = scaled.sort(-1, descending=True)
    outside = torch.arange(vocab, device=device) >= top_k[:, None]
    probs = ordered.masked_fill(outside, -torch.inf).softmax(-1)
    # A token stays if the sum of all likelier ones is below top_p; the likeliest always stays.
    outside |= (probs.cumsum(-1) - probs >= top_p[:, None]) & (top_p[:, None] < 1)
    outside[:, 0] = False
    return scaled.masked_fill(torch.zeros_like(outside).scatter(-1, order, outside), -torch.inf)
