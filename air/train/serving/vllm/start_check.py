"""Checks a vLLM server before episodes begin: its responses must have the form that air's clients read, and
its log-probabilities must equal the trainer's, apart from rounding.

air's own server has a check of the same kind (`air.train.serving.self_check`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import torch

from air.errors import InferenceError, UsageError
from air.train.model.attention_mask_check import LIMITS
from air.train.model.logprobs import token_logprobs
from air.train.model.policy import Policy
from air.train.serving.vllm.locate import Launch

Generate = Callable[[Any], Any]
"""A function that sends the body of a request to vLLM's path `/inference/v1/generate`, and returns the body
of the response. Raises `httpx.HTTPError` if the server does not respond, or responds with an error status."""
_PROMPT, _REPLY = 16, 16
"""The maximum number of tokens of the prompt, and of the reply, in the comparison of log-probabilities."""


def check_form(generate: Generate, launch: Launch, token: int) -> None:
    """Checks that vLLM's responses have the form that the package `renderers` expects, in which a sampled
    token with the id N has the name `token_id:N`. For this, `generate` requests one token after the token
    with the id `token` from the server that `launch` describes. Raises InferenceError if the form is another
    one, or if vLLM does not respond."""
    try:
        ids, entries = _reply(generate, launch.name, [token], 1)
        name = entries[0]["token"]
        if name == f"token_id:{ids[0]}":
            return
        problem = f"it names a sampled token {name!r}"
    except (httpx.HTTPError, KeyError, IndexError, TypeError, ValueError) as error:
        problem = _line(error)
    raise InferenceError(
        f"vLLM {launch.vllm.version} answers in a form that rollouts cannot read "
        f"({problem}) — use 0.26 or 0.27 (`make vllm`)"
    )


def check_agreement(generate: Generate, launch: Launch, policy: Policy, name: str) -> None:
    """Checks that vLLM computes the same log-probabilities as the trainer. For this, `generate` requests a
    short reply from the server that `launch` describes; `name` is the model's name there. Raises UsageError
    if vLLM's log-probabilities differ from those of the trainer's model, `policy`, by more than rounding
    errors, and InferenceError if vLLM does not reply. No other thread may use `policy` during the call."""
    vocab = min(int(policy.model.config.vocab_size), len(policy.tokenizer))
    length = max(1, min(_PROMPT, launch.max_model_len - _REPLY))
    prompt = [number * 7919 % vocab for number in range(1, length + 1)]
    try:
        ids, entries = _reply(generate, name, prompt, min(_REPLY, launch.max_model_len - length))
        sampled = torch.tensor([float(entry["logprob"]) for entry in entries])
    except (httpx.HTTPError, KeyError, IndexError, TypeError, ValueError) as error:
        raise InferenceError(f"vLLM gives no log-probabilities ({_line(error)})") from error
    with torch.no_grad():
        row = torch.tensor([[*prompt, *ids]], device=policy.device)
        trained = token_logprobs(policy.model, row)[0, length:].cpu()
    difference = float((sampled - trained).abs().mean())
    types = (policy.model.dtype, getattr(torch, launch.chosen_dtype))
    if not difference <= max(LIMITS.get(dtype, 0.01) for dtype in types):
        raise UsageError(
            f"vLLM's log-probabilities differ from the trainer's by {difference:.2g} nats on average",
            where=policy.name,
            remedy='use embedded.inference = "transformers", or another version of vLLM',
        )


def _reply(
    generate: Generate, name: str, prompt: list[int], tokens: int
) -> tuple[list[int], list[dict[str, Any]]]:
    """Requests a reply of at most `tokens` tokens to the prompt `prompt` (token ids) from the model `name`.
    Returns the ids of the sampled tokens, and for each token vLLM's dict with its log-probability."""
    sampling = {"max_tokens": tokens, "logprobs": 1, "temperature": 1.0}
    body = {"model": name, "token_ids": prompt, "sampling_params": sampling}
    (choice,) = generate(body)["choices"]
    return choice["token_ids"], choice["logprobs"]["content"]


def _line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else repr(error)
