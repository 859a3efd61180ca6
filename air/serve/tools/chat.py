"""Serves OpenAI's chat completions with tools: the model at the URL `model_url` (a setting) calls the
server's tools in a loop, and the client gets only the model's last message. The path without `/v1` also
exists, because Agent0's evaluation service uses it.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from air.serve.tools.chat_loop import run_chat
from air.serve.tools.model_endpoint import ChatState, Model
from air.serve.tools.openai_protocol import ModelRequest, OpenAIProtocol
from air.serve.tools.server import ToolsServer
from air.serve.tools.sessions import Session


class ChatMessage(BaseModel):
    """One message of a chat. Additional fields are forwarded to the model."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None


class ChatBody(ModelRequest):
    """The body of a chat completion request, in OpenAI's form."""

    messages: list[ChatMessage] = Field(min_length=1)


class Chat(OpenAIProtocol[ChatBody]):
    """Serves OpenAI's chat completions and `/v1/models`: a model calls the server's tools in a loop, and the
    client gets the model's final answer."""

    name = "chat"
    paths = ("/v1/chat/completions", "/chat/completions")
    request_class = ChatBody

    def __init__(self, server: ToolsServer) -> None:
        super().__init__(server)
        self._form = server.config.action_format(server.sessions.tools)
        self._model = Model(server.config, self._form.request_tools)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._model:
            yield

    def routes(self) -> Sequence[BaseRoute]:
        return [*super().routes(), Route("/v1/models", self._models)]

    def health_fields(self) -> dict[str, Any]:
        return {"model": self._server.config.model, "format": self._server.config.format}

    async def _models(self, _: Request) -> Response:
        one = {"id": self._server.config.model, "object": "model", "created": 0, "owned_by": "air"}
        return JSONResponse({"object": "list", "data": [one]})

    async def answer(self, body: ChatBody, session: Session, sample: int) -> ChatState:
        messages = with_instructions(
            [one.model_dump(exclude_unset=True) for one in body.messages], self._form.instructions
        )
        return await run_chat(
            self._model,
            self._form,
            session,
            messages,
            body.sampling(sample),
            self._server.config.max_turns,
        )

    def response(self, answers: Sequence[ChatState]) -> Mapping[str, Any]:
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "choices": [
                {
                    "index": number,
                    "message": {"role": "assistant", "content": one.text, "refusal": None},
                    "logprobs": None,
                    "finish_reason": one.reason,
                }
                for number, one in enumerate(answers)
            ],
        }


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
