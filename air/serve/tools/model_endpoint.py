"""The HTTP client for the model's endpoint: the server that runs the model whose chats and completions call
the tools of a tool server."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from air.errors import InferenceError
from air.serve.tools.settings import KEY_ENV, ToolsConfig

MOST_REPLY = 4 << 20
"""The maximum size in bytes of a response of the model's endpoint (the server that runs the model)."""


class ModelRefused(Exception):
    """Error: the model's endpoint rejected the request, for instance because the chat is too long for the
    model. `status` is the HTTP status for the client."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class ChatState:
    """The state of a chat or of the completion of a text, while it runs and at its end."""

    text: str = ""
    """Of a chat, the final answer; until there is one, the text of the model's last reply. Of a completion,
    all replies and results of tools so far."""
    reason: str = "length"
    """Why it ended: `stop` if the model gave a final answer, `length` if a limit ended it. While it runs, the
    value is `length`, too."""
    turns: int = 0
    calls: list[str] = field(default_factory=list)
    """The names of the tools that the model called, in the order of the calls."""
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def count(self, usage: Any) -> None:
        """Counts one reply, and adds its tokens: the field `usage` of the endpoint's response, which may be
        absent or malformed."""
        self.turns += 1
        for name in ("prompt_tokens", "completion_tokens"):
            value = usage.get(name) if isinstance(usage, Mapping) else None
            if isinstance(value, int) and value >= 0:
                setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class TextReply:
    """One reply of the model to a prompt that is a text."""

    text: str
    """The text without the string at which it was stopped."""
    reason: str
    """The endpoint's `finish_reason`: `stop` or `length`."""
    stopped_at: str
    """The string of the request's `stop` at which the reply was stopped. Empty: the model ended the reply by
    itself, or a limit did."""
    usage: Any


class Model:
    """HTTP client for the model's endpoint (the server that runs the model). Use it with `async with`."""

    def __init__(
        self, config: ToolsConfig, request_tools: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self._url = config.model_url.rstrip("/")
        self._name, self._seconds = config.model, config.model_seconds
        self._tools = list(request_tools)
        key = os.environ.get(KEY_ENV, "")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        # No proxy from the environment: it would send requests for this machine elsewhere.
        self._http = httpx.AsyncClient(
            timeout=self._seconds, trust_env=False, headers=headers, limits=httpx.Limits()
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.aclose()

    async def reply(
        self, messages: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Requests the model's next message, and returns the whole JSON response of the endpoint. `sampling`
        has further fields for the request, such as `temperature`. Raises ModelRefused if the endpoint rejects
        the request, and InferenceError if the endpoint fails or its response is malformed."""
        body = {"messages": list(messages), **sampling}
        body |= {"tools": self._tools} if self._tools else {}
        answer, shown = await self._post("/chat/completions", body)
        try:
            answer["choices"][0]["message"]["role"]
        except (LookupError, TypeError):
            raise InferenceError(f"the model's endpoint answered nonsense: {shown}") from None
        return dict(answer)

    async def complete(
        self, prompt: str, sampling: Mapping[str, Any], call_ends: Collection[str]
    ) -> TextReply:
        """Requests the text with which the model continues `prompt`. `sampling` has further fields for the
        request, such as `temperature`. `call_ends` are those strings of its `stop` at which a tool call may
        end; if there are some, the response must say at which string the model was stopped. Raises the errors
        of `reply`."""
        answer, shown = await self._post("/completions", {"prompt": prompt, **sampling})
        try:
            choice = answer["choices"][0]
            text, reason = choice["text"], choice["finish_reason"]
            usage = answer.get("usage")
        except (LookupError, TypeError, AttributeError):
            raise InferenceError(f"the model's endpoint answered nonsense: {shown}") from None
        if not isinstance(text, str) or reason not in ("stop", "length"):
            raise InferenceError(f"the model's endpoint answered nonsense: {shown}")
        stopped_at = _stopped_at(choice) if reason == "stop" and call_ends else ""
        return TextReply(text, reason, stopped_at, usage)

    async def _post(self, path: str, fields: Mapping[str, Any]) -> tuple[Any, str]:
        """Sends a request to the endpoint. Returns its response, any JSON value, and the beginning of the
        response's text for error messages."""
        try:
            status, data = await self._sent(f"{self._url}{path}", {"model": self._name, **fields})
        except (TimeoutError, httpx.TimeoutException):
            raise InferenceError(f"the model did not answer within {self._seconds:g} s") from None
        except ValueError:  # NaN, infinity, or half a character, which JSON cannot have
            raise ModelRefused(400, "a message has a value that JSON cannot hold") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise InferenceError(
                f"the model's endpoint: {error or type(error).__name__}"
            ) from error
        text = " ".join(data[:500].decode("utf-8", "replace").split())
        if status in (400, 413, 422):
            raise ModelRefused(400, text)
        if status != 200:
            raise InferenceError(f"the model's endpoint answered {status}: {text}")
        try:
            answer = json.loads(data)
            json.dumps(answer, ensure_ascii=False).encode()  # half a character cannot be sent on
        except (ValueError, RecursionError):
            raise InferenceError(f"the model's endpoint answered nonsense: {text}") from None
        return answer, text

    async def _sent(self, url: str, body: Mapping[str, Any]) -> tuple[int, bytearray]:
        async with asyncio.timeout(self._seconds):
            async with self._http.stream("POST", url, json=body) as response:
                data = bytearray()
                async for piece in response.aiter_bytes():
                    data += piece
                    if len(data) > MOST_REPLY:
                        raise InferenceError(f"the model's answer exceeds {MOST_REPLY} bytes")
                return response.status_code, data


def _stopped_at(choice: Mapping[str, Any]) -> str:
    """Returns the string at which a reply with the finish reason `stop` was stopped; an empty string if the
    model ended it. OpenAI's form does not say which, so this reads the field `stop_reason` of vLLM or
    `matched_stop` of SGLang. Raises InferenceError if the endpoint sends neither: then it is unknown whether
    the model has called a tool."""
    for name in ("stop_reason", "matched_stop"):
        if name in choice:
            value = choice[name]
            return value if isinstance(value, str) else ""  # a number is the id of an end token
    raise InferenceError(
        "the model's endpoint does not say at which string a completion stopped (field `stop_reason`); use "
        "vLLM or SGLang, or send chats"
    )
