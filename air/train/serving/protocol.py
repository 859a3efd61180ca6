"""Checks the requests to air's own inference server, and builds its responses, in the format of vLLM.

The fields are those of two interfaces of vLLM: its OpenAI-compatible server, and its endpoint for token ids,
which the package `renderers` 0.1.12 uses (`renderers/client.py`). A request is refused if it contains an
unsupported field that would change the sampled distribution. Fields that concern only vLLM's internals are
ignored.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from air.errors import AirError
from air.train.serving.sampler import Completion, SamplingParams

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "stream": (False,),
    "n": (1,),
    "best_of": (1,),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "logit_bias": ({},),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "stop": ([], ""),
    "prompt_logprobs": (),
    "structured_outputs": (),
    "guided_json": (),
    "response_format": ({"type": "text"},),
    "top_logprobs": (0,),
    "echo": (False,),
    "use_beam_search": (False,),
    "top_a": (0,),
    "typical_p": (1,),
    "functions": ([],),
}
"""The fields of requests that the server does not support. For each field, the values that are accepted
nevertheless, because they have no effect."""


class BadRequest(AirError):
    """Raised if the server refuses a request. The response to the client has the HTTP status `status` and the
    message of this error."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """The limits of the served model that every request must respect."""

    max_model_len: int
    """The largest number of tokens of a prompt and its reply together."""
    vocab_size: int
    """The number of tokens in the vocabulary; valid token ids are 0 to `vocab_size` - 1."""
    eos_ids: frozenset[int]
    """The ids of the end-of-sequence tokens. Each of these tokens ends a reply."""


def sampling_params(
    fields: Mapping[str, Any], prompt: Sequence[int], limits: Limits
) -> SamplingParams:
    """Checks the prompt of a request (token ids) and the request's fields about sampling, and returns the
    sampling parameters. In the result, `max_tokens` is at most the number of tokens that fit into the context
    after the prompt; this number is also the default. Raises BadRequest if a field is invalid or not
    supported, or if the prompt is empty, too long or has invalid token ids."""
    for name, neutral in NEUTRAL.items():
        value = fields.get(name)
        if value is not None and value not in neutral:
            raise BadRequest(f"`{name}` = {value!r:.60} is not supported by this server")
    room = limits.max_model_len - len(prompt)
    if not prompt:
        raise BadRequest("The prompt is empty")
    if room <= 0:
        raise BadRequest(
            f"This model's maximum context length is {limits.max_model_len} tokens. However, your "
            f"request has {len(prompt)} input tokens. Please reduce the length of the input "
            "messages."
        )
    if any(type(i) is not int or not 0 <= i < limits.vocab_size for i in prompt):
        raise BadRequest(f"token ids must be integers from 0 to {limits.vocab_size - 1}")
    limit = fields.get("max_completion_tokens")
    if limit is None:
        limit = fields.get("max_tokens")
    stops = fields.get("stop_token_ids") or []
    if not isinstance(stops, list) or any(type(i) is not int for i in stops):
        raise BadRequest("`stop_token_ids` must be a list of integers")
    return SamplingParams(
        temperature=_number(fields, "temperature", 1.0, 0.0, 100.0),
        top_p=_number(fields, "top_p", 1.0, 1e-6, 1.0),
        top_k=_whole(fields, "top_k", -1, -1),
        max_tokens=min(room, _whole({"max_tokens": limit}, "max_tokens", room, 1)),
        stop_token_ids=limits.eos_ids | frozenset(stops),
        seed=None if fields.get("seed") is None else _whole(fields, "seed", 0, None),
    )


def _number(fields: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = default if fields.get(name) is None else fields[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadRequest(f"`{name}` must be a number, got {value!r:.60}")
    if not low <= value <= high:
        raise BadRequest(f"`{name}` must be from {low:g} to {high:g}, got {value}")
    return float(value)


def _whole(fields: Mapping[str, Any], name: str, default: int, low: int | None) -> int:
    value = default if fields.get(name) is None else fields[name]
    if type(value) is not int or (low is not None and value < low):
        at_least = "" if low is None else f" of at least {low}"
        raise BadRequest(f"`{name}` must be an integer{at_least}, got {value!r:.60}")
    return value


def error_body(message: str, status: int) -> dict[str, Any]:
    """Returns the JSON body of an error response with the HTTP status `status`, in the format of vLLM."""
    kinds = {400: "BadRequestError", 404: "NotFoundError"}
    kind = kinds.get(status, "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def models_body(name: str, max_model_len: int, version: int) -> dict[str, Any]:
    """Returns the JSON body of the response to `GET /v1/models`: a list whose only entry describes the served
    model. The field `weights_version`, the version number of the weights, does not exist in vLLM."""
    card = {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "air",
        "root": name,
        "parent": None,
        "max_model_len": max_model_len,
        "weights_version": version,
    }
    return {"object": "list", "data": [card]}


def usage_body(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Returns the content of a response's field `usage`: the numbers of tokens of prompt and reply, and their
    sum."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def logprob_entries(tokens: Sequence[str], logprobs: Sequence[float]) -> list[dict[str, Any]]:
    """Returns one dict for each sampled token, in OpenAI's format, with the text of the token and its
    log-probability. `tokens` has the texts of the tokens; names such as `token_id:5` (for the token with the
    id 5) may replace them."""
    return [
        {"token": token, "logprob": value, "bytes": list(token.encode()), "top_logprobs": []}
        for token, value in zip(tokens, logprobs, strict=True)
    ]


def generate_body(request_id: str, prompt_tokens: int, completion: Completion) -> dict[str, Any]:
    """Returns the JSON body of the response to `POST /inference/v1/generate` with the sampled reply
    `completion`. `prompt_tokens` is the number of tokens in the prompt. In the list of log-probabilities, the
    token with the id N has the name `token_id:N`."""
    names = [f"token_id:{token}" for token in completion.token_ids]
    return {
        "request_id": request_id,
        "choices": [
            {
                "index": 0,
                "token_ids": completion.token_ids,
                "logprobs": {"content": logprob_entries(names, completion.logprobs)},
                "finish_reason": completion.finish_reason,
            }
        ],
        "usage": usage_body(prompt_tokens, len(completion.token_ids)),
        "prompt_logprobs": None,
        "kv_transfer_params": None,
    }


def chat_message(parsed: Any) -> dict[str, Any]:
    """Converts a sampled reply to an assistant message in OpenAI's format. `parsed` is the reply after
    parsing by the method `parse_response` of a renderer (package `renderers`), with text, reasoning and tool
    calls. Tool calls that the renderer could not parse are left out."""
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content or ""}
    if parsed.reasoning_content:
        message["reasoning_content"] = parsed.reasoning_content
    calls = [call for call in parsed.tool_calls if str(call.status) == "ok" and call.name]
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for number, call in enumerate(calls)
        ]
    return message


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value or {})
