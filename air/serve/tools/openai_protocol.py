"""The common part of the two requests in OpenAI's form that a tool server answers: chats (`chat`) and
completions of a text (`completions`). In both, the model at the URL `model_url` (a setting) calls the
server's tools in a loop.

Errors have OpenAI's form. If air or the model's endpoint fails, the status is 502 or 503.
"""

from __future__ import annotations

import time
import uuid
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from air.aio import run_concurrently, while_connected
from air.config import first_problem
from air.errors import InferenceError, InfrastructureError, MissingError, UserCodeError
from air.serve.http.app import LOG_FIELDS, Protocol, body_of
from air.serve.http.boxes import NoBoxInTime
from air.serve.tools.model_endpoint import ChatState, ModelRefused
from air.serve.tools.server import ToolsServer
from air.serve.tools.sessions import Session

_SAMPLING = (
    *("temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "seed"),
    *("presence_penalty", "frequency_penalty"),
)
MOST_TOKENS = 2**24
"""The largest `max_tokens` of a request. It bounds how often the server asks for half as many tokens."""


class ModelRequest(BaseModel):
    """The fields that the bodies of both requests have. A request with a field that its class does not
    declare is refused; the error names the field."""

    model_config = ConfigDict(extra="forbid")

    model: str
    n: int = Field(1, ge=1, le=128)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    max_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    max_completion_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
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


RequestT = TypeVar("RequestT", bound=ModelRequest)


class OpenAIProtocol(Protocol, Generic[RequestT]):
    """Base class of a protocol that answers one of the requests. A subclass says how the model is asked for
    one answer, and what the response looks like."""

    paths: ClassVar[Sequence[str]]
    """The paths of the request."""
    request_class: type[RequestT]

    def __init__(self, server: ToolsServer) -> None:
        self._server = server

    def routes(self) -> Sequence[BaseRoute]:
        return [Route(path, self._answer, methods=["POST"]) for path in self.paths]

    @abstractmethod
    async def answer(self, body: RequestT, session: Session, sample: int) -> ChatState:
        """Runs the loop of model and tools for one of the `n` answers, and returns its final state. `session`
        has newly opened tools, and `sample` is the position of the answer, from 0."""

    @abstractmethod
    def response(self, answers: Sequence[ChatState]) -> Mapping[str, Any]:
        """Returns the fields of the response that `_answer` does not add: `id`, `object` and `choices`."""

    async def _answer(self, request: Request) -> Response:
        config = self._server.config
        try:
            data = await body_of(request, config.max_body_mb)
            body = self.request_class.model_validate_json(data)
        except ValidationError as error:
            bad = first_problem(error, data, quote=False)
            if bad.path:
                return failed(400, bad.message, param=bad.name)
            return failed(400, bad.reason, param=bad.reason.partition(":")[0])
        except ValueError as error:
            return failed(413, str(error))
        if body.model != config.model:
            text = f"the model {body.model!r:.100} is not here: it is {config.model!r}"
            return failed(404, text, param="model", code="model_not_found")
        try:
            answers = await while_connected(request.receive, lambda: self._answers(body))
        except ModelRefused as error:
            return failed(error.status, f"the model's endpoint refused the {self.name}: {error}")
        except NoBoxInTime as error:
            return failed(503, str(error), kind="server_error")
        except InferenceError as error:
            return failed(502, str(error), kind="server_error")
        except (InfrastructureError, MissingError, UserCodeError) as error:
            return failed(503, str(error), kind="server_error")
        calls = [name for one in answers for name in one.calls]
        request.scope[LOG_FIELDS] |= {
            "turns": sum(one.turns for one in answers),
            "calls": len(calls),
        }
        common = {"created": int(time.time()), "model": config.model, "usage": _usage(answers)}
        return JSONResponse({**self.response(answers), **common})

    async def _answers(self, body: RequestT) -> list[ChatState]:
        """Runs the loop of a request `body.n` times in parallel, each time with newly opened tools. Returns
        the final states in order."""
        sessions, config = self._server.sessions, self._server.config
        await sessions.admit(body.n, config.queue_seconds)

        async def one(sample: int) -> ChatState:
            key = f"chat {body.seed} {sample}" if body.seed is not None else uuid.uuid4().hex
            async with sessions.open(key) as session:
                return await self.answer(body, session, sample)

        try:
            answers = await run_concurrently([one(sample) for sample in range(body.n)])
        finally:
            sessions.free(body.n)
        for name in (name for each in answers for name in each.calls):
            if name in sessions.tools.tools:
                self._server.count(name)
        return answers


def _usage(answers: Sequence[ChatState]) -> dict[str, int]:
    prompt = sum(one.prompt_tokens for one in answers)
    completion = sum(one.completion_tokens for one in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
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
