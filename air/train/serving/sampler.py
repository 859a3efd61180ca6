"""Samples the replies to many requests in one batch, for air's own inference server. Between any two steps,
each of which samples one token of every reply, new requests can join the batch.

Every running request has one row of the key-value cache; n requests use the rows 0…n-1. When a request ends,
the last row is moved into its place, so finished requests cost nothing. Each request has its own random
generator, and a token is drawn by inverting the cumulative distribution. So the tokens of a request with a
seed do not depend on the other requests in the batch, except through rounding of the logits.

The reported log-probabilities are those of the distribution from which the token was sampled: the logits are
divided by the temperature, then restricted by top_k and top_p. With top_p = 1 and top_k = -1 they equal the
trainer's (`air.train.model.logprobs.token_logprobs`). At temperature 0 (greedy), the log-probabilities of
temperature 1 are reported.

Keys and values are cached by prefix (`PrefixCache`). So a prompt that several requests have in common is
computed once, and the next turn of an episode computes only the tokens after the last reply. Requests that
run at the same time read a shared prefix from one copy. Apart from rounding, the cache does not change the
sampled tokens. Only one thread may use a `Sampler`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from air.train.model.attention import attention_mask
from air.train.model.heap import trim_heap
from air.train.model.logprobs import at_least_float32
from air.train.model.policy import Policy
from air.train.serving.kv_cache import RowCache
from air.train.serving.llama_decoder import LlamaDecoder
from air.train.serving.prefix_cache import Part, PrefixCache
from air.train.serving.row_attention import RowMask, bias_of

FinishReason = Literal["stop", "length"]
_CHUNK = 512
"""The largest number of tokens of one prompt that a forward pass computes; a longer prompt takes several
passes. This number bounds the size of the attention mask."""
_PREFILL_TOKENS = 8192
"""The largest number of tokens of all prompts together, including padding, that a forward pass computes."""
_SCORES = 2**22
"""A limit of memory. If a forward pass has at most this number of attention scores in one layer, attention
reads shared prefixes directly in the prefix cache (class `RowMask`). For more scores, the model's ordinary
attention is used, which needs less memory."""
_WORTH_SHARING = 64
"""Requests with a common prefix read its keys and values from one shared copy if this saves the reading of at
least this number of tokens in each forward pass. Otherwise, each request gets its own copy."""
_LONG = 256
"""The minimum length, in tokens, of a prefix that a request reads directly in the prefix cache even if no
other request uses it. The cache stores a prefix in pieces; the first piece must have this length. A shorter
prefix is copied."""
_WORTH_WAITING = 16
"""If two prompts have this number of uncached tokens in common, the second prompt waits until the first one
is computed and cached."""


@dataclass(frozen=True)
class SamplingParams:
    """The parameters with which the reply to one request is sampled."""

    temperature: float = 1.0
    """The number by which the logits are divided. With 0, the most probable token is always chosen."""
    top_p: float = 1.0
    """Restricts sampling to the most probable tokens whose probabilities together reach this number; 1: no
    restriction."""
    top_k: int = -1
    """Restricts sampling to this many of the most probable tokens; -1 or 0: no restriction."""
    max_tokens: int = 256
    stop_token_ids: frozenset[int] = frozenset()
    """The ids of the tokens that end the reply. The reply includes the token that ends it."""
    seed: int | None = None
    """The seed of the request's random generator; None: a random seed. The length of the prompt is part of
    the seed, too. So the turns of an episode draw different random numbers although this field is the
    same."""


@dataclass(frozen=True)
class Completion:
    """A complete sampled reply: its tokens, their log-probabilities, and the reason why it ended."""

    token_ids: list[int]
    """The sampled tokens, the stop token included."""
    logprobs: list[float]
    """For each sampled token, its log-probability in the distribution from which it was sampled, in nats."""
    finish_reason: FinishReason
    """Why the reply ended: `stop` for a stop token; `length` for `max_tokens` or the context length."""


@dataclass(eq=False)
class Row:
    """A request, with the part of its reply that has been sampled so far. A running request occupies one row
    of the key-value cache."""

    prompt: list[int]
    """The token ids of the prompt, at least one."""
    params: SamplingParams
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    """Why the reply has ended; None while it is being sampled."""
    cached: int = 0
    """The number of tokens at the beginning of the prompt whose keys and values were read from the prefix
    cache."""
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        seed = self.params.seed
        self.rng = random.Random(None if seed is None else f"{seed} {len(self.prompt)}")

    @property
    def length(self) -> int:
        """The number of tokens of the prompt and of the reply so far."""
        return len(self.prompt) + len(self.token_ids)

    @property
    def new_tokens(self) -> int:
        """The number of prompt tokens whose keys and values must be computed, because the prefix cache did
        not have them."""
        return len(self.prompt) - self.cached

    def completion(self) -> Completion:
        """Returns the complete reply. The reply must have ended (`finish_reason` is set)."""
        assert self.finish_reason is not None
        return Completion(self.token_ids, self.logprobs, self.finish_reason)


class Sampler:
    """Samples the replies to at most `max_batch` requests at the same time. Each call of `step` samples one
    token of each reply.

    The weights of `policy` (the sampled model) may only be changed while no request is running, and after a
    call of `release`. A prompt and its reply have at most `max_model_len` tokens together. The keys and
    values of prompts and replies are cached for later prompts with the same prefix, in at most
    `prefix_cache_bytes` bytes; 0: no cache.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        max_batch: int,
        max_model_len: int,
        prefix_cache_bytes: int = 256 * 2**20,
    ) -> None:
        self.model = policy.model
        config = policy.model.config.get_text_config()
        self._heads = int(config.num_attention_heads)
        self._sdpa = config._attn_implementation == "sdpa"
        self._decoder = LlamaDecoder.of(policy.model)
        self.pad_id = policy.tokenizer.pad_token_id or 0
        self.max_batch = max_batch
        self.max_model_len = max_model_len
        self.rows: list[Row] = []
        self.cache = RowCache(max_batch)
        self.prefixes = PrefixCache(prefix_cache_bytes)

    @property
    def room(self) -> int:
        """The number of further requests that `add` can take now."""
        return self.max_batch - len(self.rows)

    @torch.inference_mode()
    def add(self, rows: Sequence[Row]) -> list[Row]:
        """Adds requests to the batch, computes their prompts, and samples the first token of each of their
        replies. Returns those requests whose replies ended with this token; they are no longer in the batch.
        Raises ValueError if the batch has no room for all `rows`, or if a prompt is empty or not shorter than
        `max_model_len`."""
        if len(rows) > self.room:
            raise ValueError(f"{len(rows)} requests, room for {self.room}")
        if any(not 0 < len(row.prompt) < self.max_model_len for row in rows):
            raise ValueError(f"a prompt must have 1 to {self.max_model_len - 1} tokens")
        waiting = list(rows)
        leaders: set[tuple[int, ...]] = set()
        while waiting:
            batch = self._next_batch(waiting, leaders)
            computed = self._prefill(batch)
            waiting = [row for row in waiting if row not in batch]
            self._admit(batch, computed, waiting)
        return self._sweep()

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """Samples one token for every running request. Returns the requests whose replies ended with this
        token; they have left the batch."""
        if not self.rows:
            return []
        last = [row.token_ids[-1:] for row in self.rows]
        logits = self._forward(self.cache, 0, last, [row.length - 1 for row in self.rows])
        self._draw(self.rows, logits)
        return self._sweep()

    @torch.inference_mode()
    def drop(self, row: Row) -> None:
        """Removes a running request from the batch before its reply has ended, for example because its client
        has disconnected."""
        self._remove(self.rows.index(row))

    def release(self) -> None:
        """Frees the memory of all keys and values, and of the decoder's copies of the weights. Must only be
        called while no request is running."""
        assert not self.rows
        self.clear()
        if self._decoder is not None:
            self._decoder.release()
        trim_heap()

    def clear(self) -> None:
        """Removes all running requests and frees the memory of all keys and values."""
        self.rows = []
        self.cache = RowCache(self.max_batch)
        self.prefixes.clear()

    def _next_batch(self, waiting: Sequence[Row], leaders: set[tuple[int, ...]]) -> list[Row]:
        """Returns those requests in `waiting` whose prompts are to be computed next, in descending order of
        the number of uncached tokens. Sets the field `cached` of the requests.

        If the uncached parts of several prompts have the same beginning, only the first of these prompts is
        returned. The others wait until its keys and values are in the prefix cache. `leaders` is the set of
        beginnings for which an earlier call returned a prompt; this call adds its own. If a beginning in
        `leaders` is still uncached, the prefix cache had no room for it, so no prompt waits for it.
        """
        ready: list[Row] = []
        leading: set[tuple[int, ...]] = set()
        for row in waiting:
            row.cached = min(self.prefixes.match(row.prompt), len(row.prompt) - 1)
            beginning = tuple(row.prompt[: row.cached + _WORTH_WAITING])
            if row.new_tokens > _WORTH_WAITING and self.prefixes.limit:
                if beginning in leading and beginning not in leaders:
                    continue
                leading.add(beginning)
            ready.append(row)
        leaders |= leading
        ready.sort(key=lambda row: -row.new_tokens)
        width = ready[0].new_tokens
        most = max(1, _PREFILL_TOKENS // min(width, _CHUNK))
        # Rows that are much shorter than the longest would consist mostly of padding.
        return [row for row in ready[:most] if 2 * row.new_tokens + 32 >= width]

    def _prefill(self, rows: Sequence[Row]) -> RowCache:
        """Computes the prompts of `rows`, and samples the first token of each reply. `rows` must be sorted by
        the number of uncached tokens, in descending order. Adds the prompts to the prefix cache. Returns a
        new row cache with the keys and values of these prompts."""
        cache = RowCache(len(rows))
        for number, row in enumerate(rows):
            cache.place(number, self.prefixes.read(row.prompt[: row.cached]), [])
        logits: list[Tensor] = []
        done = 0
        while done < rows[0].new_tokens:
            active = [row for row in rows if row.new_tokens > done]
            starts = [row.cached + done for row in active]
            parts = [row.prompt[s : s + _CHUNK] for row, s in zip(active, starts, strict=True)]
            out = self._forward(cache, 0, parts, starts)
            done += _CHUNK
            # Rows whose prompt is complete come last.
            complete = sum(row.new_tokens <= done for row in active)
            logits = [*out[len(active) - complete :], *logits]
        for number, row in enumerate(rows):
            self.prefixes.insert(row.prompt, partial(cache.read, number))
        self._draw(rows, torch.stack(logits))
        return cache

    def _admit(self, rows: Sequence[Row], computed: RowCache, waiting: Sequence[Row]) -> None:
        """Adds `rows` to the running requests; `computed` has the keys and values of their prompts. Then
        decides, for every running request, which parts of its prompt it reads from the shared copy in the
        prefix cache. The decision depends on how many running requests and requests in `waiting` have the
        same prefix."""
        first = len(self.rows)
        self.rows.extend(rows)
        paths = [self.prefixes.read(row.prompt) for row in self.rows]
        others = [self.prefixes.read(row.prompt) for row in waiting]
        readers = Counter(id(part.block) for path in (*paths, *others) for part in path)
        for number, (row, path) in enumerate(zip(self.rows, paths, strict=True)):
            shared = _worth_sharing(path, readers)
            count = sum(part.count for part in shared)
            length = (
                row.length - 1
            )  # The last token was sampled, but never passed through the model.
            if number >= first:
                self.cache.place(number, shared, computed.read(number - first, count, length))
            # Otherwise the row keeps its shared parts, which the prefix cache may have removed.
            elif count >= self.cache.offset(number) and not self.cache.has(number, shared):
                self.cache.place(number, shared, self.cache.read(number, count, length))

    def _forward(
        self,
        cache: RowCache,
        first: int,
        tokens: Sequence[Sequence[int]],
        starts: Sequence[int],
    ) -> Tensor:
        """Computes the model for new tokens of consecutive rows (requests) of `cache`. Row `first` + n gets
        the tokens `tokens[n]` after the `starts[n]` tokens that it already has. Returns, for each row, the
        logits for the token after its last token: [rows, vocabulary]."""
        device = self.model.device
        width = max(len(part) for part in tokens)
        padded = [[*[self.pad_id] * (width - len(part)), *part] for part in tokens]
        length = max(s + len(part) for s, part in zip(starts, tokens, strict=True))
        # For several new tokens, torch's fused attention is faster than `attend`.
        in_parts = self._sdpa and (self._decoder is None or width == 1)
        in_parts = in_parts and len(tokens) * width * length * self._heads <= _SCORES
        cache.aim(first, starts, [len(part) for part in tokens], device, in_parts)
        ends = torch.tensor([s + len(part) for s, part in zip(starts, tokens, strict=True)])
        # Padding is at the beginning; it gets position 0 and sees the first token.
        positions = (ends[:, None] + torch.arange(-width, 0)).clamp(min=0).to(device)
        columns = cache.positions(device)
        visible = (columns[:, None] <= positions[..., None])[:, None]
        inputs = torch.tensor(padded, device=device)
        if self._decoder is not None:
            return self._decoder.logits(inputs, positions, cache, bias_of(visible))
        mask = attention_mask(self.model, visible, positions, columns)
        if in_parts:
            mask = RowMask.wrap(mask, cache)
        out = self.model(
            input_ids=inputs,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = out.logits[:, -1]
        return logits

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
            number = self.rows.index(row)
            # The last token was sampled, but never passed through the model.
            tokens = [*row.prompt, *row.token_ids[:-1]]
            self.prefixes.insert(tokens, partial(self.cache.read, number))
            self._remove(number)
        return ended

    def _remove(self, number: int) -> None:
        last = self.rows.pop()
        if number < len(self.rows):
            self.cache.move(len(self.rows), number, last.length - 1)
            self.rows[number] = last
        else:
            self.cache.free(number)


def _worth_sharing(path: Sequence[Part], readers: Mapping[int, int]) -> Sequence[Part]:
    """Returns the parts at the beginning of `path` that a request should read directly in the prefix cache.
    The request should copy the other parts, because each part that is read directly costs time in every
    forward pass.

    `path` has the cached parts of the request's prompt, in order. `readers` maps the `id()` of each block of
    tokens to the number of requests whose prompts contain this block.
    """
    worth = [
        number
        for number, part in enumerate(path, 1)
        if (readers[id(part.block)] - 1) * part.count >= _WORTH_SHARING
        or (number == 1 and part.count >= _LONG)
    ]
    return path[: max(worth, default=0)]


def sample(
    logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Draws the next token of each request (row) from `logits` [rows, vocabulary], according to the sampling
    parameters `params` of the request, by inverting the cumulative distribution. `uniforms` has one random
    number for each request, uniformly distributed between 0 and 1. Returns the token ids, and the
    log-probabilities of these tokens in nats."""
    device = logits.device
    divisor = torch.tensor([p.temperature or 1.0 for p in params], device=device)
    logprobs = _cut(at_least_float32(logits) / divisor[:, None], params).log_softmax(-1)
    # The sum is in double precision; single precision would lose unlikely tokens of large vocabularies.
    cumulative = _cumulative(logprobs.exp(), torch.double)
    aim = torch.tensor(uniforms, dtype=torch.double, device=device)[:, None] * cumulative[:, -1:]
    ids = torch.searchsorted(cumulative, aim, right=True).clamp(max=logits.shape[-1] - 1)[:, 0]
    greedy = [p.temperature == 0 for p in params]
    if any(greedy):
        ids = torch.where(torch.tensor(greedy, device=device), logprobs.argmax(-1), ids)
    chosen = logprobs.gather(-1, ids[:, None])[:, 0]
    return ids.tolist(), chosen.tolist()


def _cumulative(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the cumulative sums of each row of `values` (the probabilities of all tokens), computed in the
    type `dtype`. If torch is set to deterministic algorithms, computes the sums on the CPU, because torch has
    no deterministic algorithm for them on GPUs."""
    if not torch.are_deterministic_algorithms_enabled():
        return values.cumsum(-1, dtype=dtype)
    return values.cpu().cumsum(-1, dtype=dtype).to(values.device)


def _cut(scaled: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Returns `scaled` (the logits divided by the temperature, [rows, vocabulary]), with -inf in place of the
    tokens that top_k or top_p of the request in this row excludes."""
    if all(p.top_p >= 1 and p.top_k <= 0 for p in params):
        return scaled
    device, vocab = scaled.device, scaled.shape[-1]
    top_k = torch.tensor([p.top_k if p.top_k > 0 else vocab for p in params], device=device)
    top_p = torch.tensor([p.top_p for p in params], device=device)
    ordered, order = scaled.sort(-1, descending=True)
    outside = torch.arange(vocab, device=device) >= top_k[:, None]
    probs = ordered.masked_fill(outside, -torch.inf).softmax(-1)
    # A token stays if the sum over all more likely tokens is below top_p; the most likely token always stays.
    outside |= (_cumulative(probs, probs.dtype) - probs >= top_p[:, None]) & (top_p[:, None] < 1)
    outside[:, 0] = False
    return scaled.masked_fill(torch.zeros_like(outside).scatter(-1, order, outside), -torch.inf)
