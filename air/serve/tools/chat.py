"""Serves OpenAI's chat completions with tools: the model at the URL `model_url` (a setting) calls the
server's tools in a loop, and the client gets only the model's last message. The path without `/v1` also
exists, because Agent0's evaluation service uses it.

Errors have OpenAI's form. If air or the model's endpoint fails, the status is 502 or 503.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from air.aio import run_concurrently, while_connected
from air.errors import InferenceError, InfrastructureError, MissingError, UserCodeError
from air.serve.http.app import LOG_FIELDS, Protocol, body_of
from air.serve.http.boxes import NoBoxInTime
from air.serve.tools.chat_loop import ChatState, Model, ModelRefused, run_chat
from air.serve.tools.server import ToolsServer

PATHS = ("/v1/chat/completions", "/chat/completions")
_SAMPLING = (
    *("temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "seed"),
    *("presence_penalty", "frequency_penalty"),
)


class ChatMessage(BaseModel):
    """One message of a chat. Additional fields are forwarded to the model."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None


class ChatBody(BaseModel):
    """The body of a chat completion request, in OpenAI's form. A request with a field that this class does
    not declare is refused; the error names the field."""

    model_config = ConfigDict(extra="forbid")

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    n: int = Field(1, ge=1, le=128)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    stream: bool | None = None
    user: str | None = None
    """The name of the client's user, which is ignored."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.stream:
            raise ValueError("stream: answers are not streamed; leave it out")
        return self

    def sampling(self, sample: int) -> dict[str, Any]:
        """Returns the sampling settings that are sent to the model for one of the `n` answers, as a dict by
        name. `sample` is the position of the answer, from 0. It is added to the request's seed (if set), so
        that the answers differ."""
        given = {name: getattr(self, name) for name in _SAMPLING}
        given = {name: value for name, value in given.items() if value is not None}
        if self.seed is not None:
            given["seed"] = self.seed + sample
        return given


class Chat(Protocol):
    """Serves OpenAI's chat completions and `/v1/models`: a model calls the server's tools in a loop, and the
    client gets the model's final answer."""

    name = "chat"

    def __init__(self, server: ToolsServer) -> None:
        self._server = server
        self._form = server.config.action_format(server.sessions.tools)
        self._model = Model(server.config, self._form.request_tools)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._model:
            yield

    def routes(self) -> Sequence[BaseRoute]:
        paths = [Route(path, self._answer, methods=["POST"]) for path in PATHS]
        return [*paths, Route("/v1/models", self._models)]

    def health_fields(self) -> dict[str, Any]:
        return {"model": self._server.config.model, "format": self._server.config.format}

    async def _models(self, _: Request) -> Response:
        one = {"id": self._server.config.model, "object": "model", "created": 0, "owned_by": "air"}
        return JSONResponse({"object": "list", "data": [one]})

    async def _answer(self, request: Request) -> Response:
        config = self._server.config
        try:
            body = ChatBody.model_validate_json(await body_of(request, config.max_body_mb))
        except ValidationError as error:
            row = json.loads(error.json(include_url=False, include_input=False))[0]
            where = ".".join(map(str, row["loc"]))
            text = f"{where}: {row['msg']}" if where else row["msg"].removeprefix("Value error, ")
            return failed(400, text, param=where or text.partition(":")[0])
        except ValueError as error:
            return failed(413, str(error))
        if body.model != config.model:
            text = f"the model {body.model!r:.100} is not here: it is {config.model!r}"
            return failed(404, text, param="model", code="model_not_found")
        try:
            chats = await while_connected(request.receive, lambda: self._chats(body))
        except ModelRefused as error:
            return failed(error.status, f"the model's endpoint refused the chat: {error}")
        except NoBoxInTime as error:
            return failed(503, str(error), kind="server_error")
        except InferenceError as error:
            return failed(502, str(error), kind="server_error")
        except (InfrastructureError, MissingError, UserCodeError) as error:
            return failed(503, str(error), kind="server_error")
        calls = [name for one in chats for name in one.calls]
        request.scope[LOG_FIELDS] |= {"turns": sum(one.turns for one in chats), "calls": len(calls)}
        return JSONResponse(_completion(config.model, chats))

    async def _chats(self, body: ChatBody) -> list[ChatState]:
        """Runs the chat of a request `body.n` times in parallel, each time with newly opened tools. Returns
        the finished chats in order."""
        sessions, config = self._server.sessions, self._server.config
        messages = with_instructions(
            [one.model_dump(exclude_unset=True) for one in body.messages], self._form.instructions
        )
        await sessions.admit(body.n, config.queue_seconds)

        async def one(sample: int) -> ChatState:
            key = f"chat {body.seed} {sample}" if body.seed is not None else uuid.uuid4().hex
            async with sessions.open(key) as session:
                return await run_chat(
                    self._model,
                    self._form,
                    session,
                    messages,
                    body.sampling(sample),
                    config.max_turns,
                )

        try:
            chats = await run_concurrently([one(sample) for sample in range(body.n)])
        finally:
            sessions.free(body.n)
        for name in (name for each in chats for name in each.calls):
            if name in sessions.tools.tools:
                self._server.count(name)
        return chats


def with_instructions(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Returns the messages of a chat, with `text` (the instructions on how to call tools) at the end of the
    system message. If the chat has no system message, one is inserted at the beginning. If `text` is empty,
    returns `messages` unchanged."""
    first = messages[0]
    if not text:
        return messages
    if first["role"] in ("system", "developer"):
        content = first.get("content") or ""
        if isinstance(content, str):
            joined: Any = f"{content}\n\n{text}".strip()
        else:
            joined = [*content, {"type": "text", "text": text}]
        return [{**first, "content": joined}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _completion(model: str, chats: Sequence[ChatState]) -> Mapping[str, Any]:
    prompt = sum(one.prompt_tokens for one in chats)
    completion = sum(one.completion_tokens for one in chats)
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": number,
                "message": {"role": "assistant", "content": one.text, "refusal": None},
                "logprobs": None,
                "finish_reason": one.reason,
            }
            for number, one in enumerate(chats)
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        },
    }


def failed(
    status: int,
    text: str,
    *,
    kind: str = "invalid_request_error",
    param: str | None = None,
    code: str | None = None,
) -> Response:
    """Returns an HTTP response that reports an error in OpenAI's form, with the message `text`. `kind`,
    `param` and `code` are the error's fields `type`, `param` (the wrong field of the request) and `code`."""
    error = {"message": text, "type": kind, "param": param, "code": code}
    headers = {"Retry-After": "1"} if status == 503 else {}
    return JSONResponse({"error": error}, status, headers)
