"""Serves OpenAI's completions of a text with tools, as Agent0's evaluation service does: the client sends a
prompt that is a text, usually a chat in the template of the model. The model continues it. When the model has
written a tool call, it is stopped there, the server performs the call, appends the result to the text, and
lets the model continue. The client gets all that was appended to the prompt.

The syntaxes of tool calls and results are those of verl-tool (`air.serve.tools.verl_tool_calls`). The paths
with and without `/v1` exist.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

from air.serve.tools.completion_loop import CompletionLoop
from air.serve.tools.model_endpoint import ChatState, Model
from air.serve.tools.openai_protocol import ModelRequest, OpenAIProtocol
from air.serve.tools.server import ToolsServer
from air.serve.tools.sessions import Session
from air.serve.tools.verl_tool_calls import call_ends

MAX_TOKENS = 512
"""The maximum number of tokens of one reply if the request does not say, as in Agent0. OpenAI's own default,
16 tokens, is too low for a tool call."""


class CompletionBody(ModelRequest):
    """The body of a request for the completion of a text, in OpenAI's form. The prompt is one text; lists of
    texts or tokens are refused, as in Agent0."""

    prompt: str
    echo: Literal[False] | None = None
    logprobs: None = None
    suffix: None = None


class Completions(OpenAIProtocol[CompletionBody]):
    """Serves OpenAI's completions: a model continues a text, and calls the server's tools on the way."""

    name = "completion"
    paths = ("/v1/completions", "/completions")
    request_class = CompletionBody

    def __init__(self, server: ToolsServer) -> None:
        super().__init__(server)
        config, tools = server.config, list(server.sessions.tools.tools)
        self._model = Model(config)
        ends = config.call_ends or call_ends(tools)
        self._loop = CompletionLoop(self._model, tools, ends, config.max_turns)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._model:
            yield

    def health_fields(self) -> dict[str, Any]:
        return {"call_ends": list(self._loop.call_ends)}

    async def answer(self, body: CompletionBody, session: Session, sample: int) -> ChatState:
        sampling = body.sampling(sample)
        most = sampling.pop("max_completion_tokens", MAX_TOKENS)  # the endpoint lacks this field
        stop = sampling.pop("stop", [])
        stop = [stop] if isinstance(stop, str) else stop
        return await self._loop.run(session, body.prompt, stop, {"max_tokens": most} | sampling)

    def response(self, answers: Sequence[ChatState]) -> Mapping[str, Any]:
        return {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "choices": [
                {"index": number, "text": one.text, "logprobs": None, "finish_reason": one.reason}
                for number, one in enumerate(answers)
            ],
        }
