"""Checks that sampler and trainer compute the same probabilities, before air's own inference server answers
requests.

Loading a model already checks that the model follows attention masks (see the module
`air.train.model.attention_mask_check`). But the sampler also reads keys and values from a cache, in which
requests share a prefix. Some models may use such a cache in another way. Without this check, they would be
trained on wrong log-probabilities, and no error would be raised.
"""

from __future__ import annotations

import torch

from air.errors import UsageError
from air.train.model.attention_mask_check import FAILURES, LIMITS, short
from air.train.model.logprobs import token_logprobs
from air.train.model.policy import Policy
from air.train.serving.sampler import Row, Sampler, SamplingParams

_ROWS, _PROMPT, _REPLY = 5, 16, 3
"""The size of the check: the number of requests, the number of tokens of their common prompt, and the number
of tokens of each reply. With these numbers, the requests share one copy of the prompt in the cache (see
`sampler._WORTH_SHARING`)."""


def check(policy: Policy, max_model_len: int) -> None:
    """Samples a few short replies with the model `policy`. Raises UsageError if the model cannot be sampled
    with a cache of keys and values, or if the sampler's log-probabilities differ from the trainer's by more
    than rounding errors. `max_model_len` is the maximum number of tokens of a prompt and its reply
    together."""
    vocab = int(policy.model.config.get_text_config().vocab_size)
    length = max(1, min(_PROMPT, max_model_len - _REPLY))
    prompt = [number * 7919 % vocab for number in range(1, length + 1)]
    sampler = Sampler(policy, max_batch=_ROWS, max_model_len=max_model_len)
    rows = [Row(prompt, SamplingParams(max_tokens=_REPLY, seed=n)) for n in range(_ROWS)]
    try:
        sampler.add(rows)
        while sampler.rows:
            sampler.step()
    except FAILURES as error:
        raise _refusal(policy, f"the sampler fails with this model: {short(error)}") from error
    ids = torch.tensor([[*prompt, *row.token_ids] for row in rows], device=policy.device)
    with torch.no_grad():
        trained = token_logprobs(policy.model, ids)[:, length:].cpu()
    difference = float((torch.tensor([row.logprobs for row in rows]) - trained).abs().mean())
    if not difference <= LIMITS.get(policy.model.dtype, 0.01):
        raise _refusal(
            policy,
            f"the sampler's log-probabilities differ from the trainer's by {difference:.2g} nats on average",
        )


def _refusal(policy: Policy, problem: str) -> UsageError:
    return UsageError(
        problem,
        where=policy.name,
        remedy='try embedded.attention = "eager" or "sdpa", or use prime-rl with vLLM',
    )
