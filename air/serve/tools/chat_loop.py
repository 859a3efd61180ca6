"""Runs the loop of one chat: gets a reply of the model, performs the tool call in the reply, and sends the
result back to the model, until the model gives a final answer."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from air.actions import ActionFormat, FormatError, Message, MessageCall
from air.errors import BoxEndedError, InferenceError
from air.serve.tools.sessions import BOX_ENDED, Session
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
    """The state of a chat, while it runs and at its end."""

    text: str = ""
    """The final answer. Until there is one, the text of the model's last reply."""
    reason: str = "length"
    """Why the chat ended: `stop` if the model gave a final answer, `length` if a limit ended the chat. While
    the chat runs, the value is `length`, too."""
    turns: int = 0
    calls: list[str] = field(default_factory=list)
    """The names of the tools that the model called, in the order of the calls."""
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Model:
    """HTTP client for the model's endpoint (the server that runs the model). Use it with `async with`."""

    def __init__(self, config: ToolsConfig, request_tools: Sequence[Mapping[str, Any]]) -> None:
        url = config.model_url.rstrip("/")
        self._url = f"{url}/chat/completions"
        self._name, self._seconds = config.model, config.model_seconds
        self._tools = list(request_tools)
        key = os.environ.get(KEY_ENV, "")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        # No proxy from the environment: it would send requests for this machine elsewhere.
        self._http = httpx.AsyncClient(
            timeout=self._seconds, trust_env=False, headers=headers, limits=httpx.Limits()
        )

    async def __aenter__(self) -> Model:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.aclose()

    async def reply(
        self, messages: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Requests the model's next message, and returns the whole JSON response of the endpoint. `sampling`
        has further fields for the request, such as `temperature`. Raises ModelRefused if the endpoint rejects
        the request, and InferenceError if the endpoint fails or its response is malformed."""
        body = {"model": self._name, "messages": list(messages), **sampling}
        body |= {"tools": self._tools} if self._tools else {}
        try:
            async with asyncio.timeout(self._seconds):
                async with self._http.stream("POST", self._url, json=body) as response:
                    data = bytearray()
                    async for piece in response.aiter_bytes():
                        data += piece
                        if len(data) > MOST_REPLY:
                            raise InferenceError(f"the model's answer exceeds {MOST_REPLY} bytes")
        except (TimeoutError, httpx.TimeoutException):
            raise InferenceError(f"the model did not answer within {self._seconds:g} s") from None
        except ValueError:  # NaN, infinity, or half a character, which JSON cannot have
            raise ModelRefused(400, "a message has a value that JSON cannot hold") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise InferenceError(
                f"the model's endpoint: {error or type(error).__name__}"
            ) from error
        text = " ".join(data[:500].decode("utf-8", "replace").split())
        if response.status_code in (400, 413, 422):
            raise ModelRefused(400, text)
        if response.status_code != 200:
            raise InferenceError(f"the model's endpoint answered {response.status_code}: {text}")
        try:
            answer = json.loads(data)
            answer["choices"][0]["message"]["role"]
            json.dumps(answer, ensure_ascii=False).encode()  # half a character cannot be sent on
        except (ValueError, LookupError, TypeError, RecursionError):
            raise InferenceError(f"the model's endpoint answered nonsense: {text}") from None
        return dict(answer)


async def run_chat(
    model: Model,
    form: ActionFormat,
    session: Session,
    messages: Sequence[Mapping[str, Any]],
    sampling: Mapping[str, Any],
    max_turns: int,
) -> ChatState:
    """Runs a chat until the model gives a final answer, has written `max_turns` replies, or writes a reply
    that is cut off at the limit of tokens. Returns the chat's final state. `form` is the action format, which
    finds the tool call in a reply, and `session` has the opened tools.

    Raises the errors of `Model.reply` and `Session.call`, except for BoxEndedError: if the model's own
    commands ended the box (container) of its tools, the model is told so and can still answer.
    """
    state = ChatState()
    history = [dict(message) for message in messages]
    while state.turns < max_turns:
        answer = await model.reply(history, sampling)
        state.turns += 1
        choice = answer["choices"][0]
        _count(state, answer.get("usage"))
        message = _message(choice["message"])
        state.text = message.text
        if choice.get("finish_reason") == "length":
            return state  # a reply that was cut off is no action
        observation, ended = await _perform(state, form, session, message)
        if ended:
            state.reason = "stop"
            return state
        history += [_as_sent(message), *form.observation(message, observation)]
    return state


async def _perform(
    state: ChatState, form: ActionFormat, session: Session, message: Message
) -> tuple[str, bool]:
    """Performs the tool call in a model's message. Returns a pair: the text that the model gets as the
    result, and whether the chat has ended. A final answer ends it, and a tool can do so. If the message is
    malformed, the text says why."""
    try:
        action = form.read(message)
    except FormatError as error:
        return str(error), False
    if action.tool is None:
        state.text = action.answer or action.text
        return "", True
    state.calls.append(action.tool.name)
    try:
        result = await session.call(action.tool.name, dict(action.tool.arguments or {}))
    except BoxEndedError:
        return BOX_ENDED, False  # the model can still answer
    if result.status == "finish":
        state.text = result.prediction
        return "", True
    return result.observation, False


def _count(state: ChatState, usage: Any) -> None:
    for name in ("prompt_tokens", "completion_tokens"):
        value = usage.get(name) if isinstance(usage, Mapping) else None
        if isinstance(value, int) and value >= 0:
            setattr(state, name, getattr(state, name) + value)


def _message(raw: Mapping[str, Any]) -> Message:
    """Converts a message in the endpoint's response to air's class `Message`. Raises InferenceError if the
    message is malformed."""
    try:
        calls = tuple(
            MessageCall(
                str(call.get("id") or ""), call["function"]["name"], call["function"]["arguments"]
            )
            for call in raw.get("tool_calls") or ()
        )
        text = raw.get("content") or ""
        reasoning = raw.get("reasoning_content") or raw.get("reasoning") or ""
        parts = [text, reasoning, *(part for call in calls for part in (call.name, call.arguments))]
    except (AttributeError, LookupError, TypeError) as error:
        raise InferenceError(f"the model's message is malformed: {error!r}") from None
    if not all(isinstance(part, str) for part in parts):
        raise InferenceError("the model's message is malformed: a text is none")
    return Message(text, calls, reasoning)


def _as_sent(message: Message) -> dict[str, Any]:
    """Converts a message of the model to the JSON object with which the next requests to the model contain
    it, as a part of the chat so far."""
    sent: dict[str, Any] = {"role": "assistant", "content": message.text}
    if message.tool_calls:
        sent["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return sent
