"""HTTP service `POST /evaluate`: a model, the executor, answers each question k times, and the response says
how far the answers agree.

`air coevolve` runs the service on the loopback interface, and rewards the proposer, the model that writes the
questions, by the responses. `air serve evaluate` runs it for any client. `air.worlds.proposals.scorer` shows
the JSON of request and response. `p_hat` in a response follows the definition `as_coded` if the request has
the proposer's own answer, else `published` (`air.rewards.proposals.agreement`).

The status is 400 for a malformed request, 413 for a request that is too large, and 503 if the executor fails.
It is 500, with `"stop": true` in the JSON, if a tool of the user hangs; the client should then stop its run.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import uvicorn
from pydantic import Field, ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from air.aio import ClientLeft, cancel_and_wait, wait_shielded, while_connected
from air.config import BaseConfig, first_problem
from air.errors import InferenceError, InfrastructureError, UserCodeError
from air.rewards.proposals.agreement import Definition, Equality, agreement, equal_answers, p_hat
from air.rewards.proposals.reading import LONGEST_QUESTION
from air.train.coevolve.executor import Answerer
from air.train.serving.cross_site_requests import RefusingOtherSites
from air.worlds.proposals.comparison_threads import compare_in_thread
from air.worlds.proposals.scorer import STOP, Answered

LARGEST_BODY = 8 * 2**20
MOST_TASKS = 1024
"""The maximum number of questions in one request."""
MOST_ANSWERS = 64
"""The maximum number `k` of answers to each question."""
CLIENT_CLOSED_REQUEST = 499
"""The HTTP status that logs and metrics show for a request whose client disconnected before it got a
response."""
_START_SECONDS = 30.0


class SamplingBody(BaseConfig):
    """The sampling settings in a request `POST /evaluate`, which asks a model (the executor) to answer
    questions. `max_tokens` is the largest number of tokens in a reply. For a setting that is None, the
    executor's own setting is used."""

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    max_tokens: int | None = Field(None, ge=1, le=1_000_000)


class TaskBody(BaseConfig):
    """One question in a request `POST /evaluate`, which asks a model (the executor) to answer questions. `id`
    is any name that the client gives to the question; the response repeats this name. `answer` is the answer
    of the proposer, the model that wrote the question; it may be None."""

    id: str
    question: str = Field(pattern=r"\S", max_length=LONGEST_QUESTION)
    answer: str | None = Field(None, max_length=LONGEST_QUESTION)


class EvaluateBody(BaseConfig):
    """The JSON body of a request `POST /evaluate`, which asks a model (the executor) to answer questions: the
    questions (`tasks`), the number `k` of answers to each question, and the settings for answering."""

    tasks: list[TaskBody] = Field(min_length=1, max_length=MOST_TASKS)
    k: int | None = Field(None, ge=1, le=MOST_ANSWERS)
    """None: the number that the server has for such requests (`RequestDefaults`)."""
    max_turns: int | None = Field(None, ge=1, le=64)
    """The largest number of turns in one answer. None: 4 if the executor has tools, else 1."""
    sampling: SamplingBody = SamplingBody()


@dataclass(frozen=True)
class RequestDefaults:
    """The settings of requests that do not set their own: the number `k` of answers to each question, and
    `sampling` settings, such as `top_p`."""

    k: int = 10
    sampling: Mapping[str, Any] = field(default_factory=dict)


async def handle_evaluate(
    request: Request,
    executor: Answerer,
    equality: Equality,
    turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    defaults: RequestDefaults = RequestDefaults(),
) -> Response:
    """Handles a request to `/evaluate` and returns the response. Its status is 200, 400 (malformed request),
    413 (request too large), 503 (the executor fails) or 500 (a tool of the user hangs).

    The executor works inside the context manager that `turn` returns; this can make the request wait, for
    example in a queue. `equality` is the rule by which two answers are equal. `defaults` are the settings of
    a request that does not set its own. If the client disconnects, stops waiting and ends the episodes and
    comparisons of this request. Raises the errors of `turn`.
    """
    body = await _read(request)
    if isinstance(body, Response):
        return body
    sampling = {**defaults.sampling, **body.sampling.model_dump(exclude_none=True)}
    questions = [task.question for task in body.tasks]

    async def results() -> list[dict[str, Any]]:
        async with turn():
            answered = await executor.answers(
                questions, body.k or defaults.k, body.max_turns, sampling
            )
            return [
                await compare_in_thread(partial(result, task, one, equality))
                for task, one in zip(body.tasks, answered, strict=True)
            ]

    try:
        found = await while_connected(request.receive, results)
    except InfrastructureError as error:
        return JSONResponse({"error": str(error)}, 503)
    except UserCodeError as error:
        return JSONResponse({"error": str(error), "stop": True}, STOP)
    except ClientLeft:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    return JSONResponse({"results": found})


async def _read(request: Request) -> EvaluateBody | Response:
    """Reads the body of a request to `/evaluate`. Returns an error response if the body is malformed or too
    large, or the client has disconnected."""
    data = bytearray()
    try:
        async for piece in request.stream():
            data += piece
            if len(data) > LARGEST_BODY:
                return JSONResponse({"error": f"more than {LARGEST_BODY} bytes"}, 413)
    except ClientDisconnect:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    try:
        return EvaluateBody.model_validate_json(bytes(data))
    except ValidationError as error:
        return JSONResponse({"error": first_problem(error, bytes(data), quote=False).message}, 400)


def application(executor: Answerer, equality: Equality) -> Starlette:
    """Returns the HTTP application, with the paths `/evaluate` and `/health`, that a co-evolution runs while
    it trains the proposer (the model that writes questions). `executor` answers the questions; `equality` is
    the rule by which two answers are equal. The application refuses requests from web pages of other
    sites."""

    async def evaluate(request: Request) -> Response:
        return await handle_evaluate(request, executor, equality)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    routes = [Route("/evaluate", evaluate, methods=["POST"]), Route("/health", health)]
    return Starlette(routes=routes, middleware=[Middleware(RefusingOtherSites)])


def result(task: TaskBody, answered: Answered, equality: Equality) -> dict[str, Any]:
    """Returns the entry for one question (`task`) in the JSON response. `answered` has the executor's k
    answers.

    The entry has the question's `id`; `p_hat`, the share of the k answers that equal the most frequent answer
    (but, if `task` has the proposer's own answer, 0 if this share is at most 0.1 or the most frequent answer
    differs from the proposer's); `majority`, the most frequent answer; `n_valid`, the number of readable
    answers (found in the reply, and neither blank nor too long); `k`; all `answers`; and `tool_calls_mean`,
    the mean number of tool calls in an answer. `equality` is the rule by which two answers are equal. Raises
    InfrastructureError if a comparison of answers fails.
    """
    found = agreement(answered.answers, equal_answers(equality, task.question))
    definition: Definition = "published" if task.answer is None else "as_coded"
    return {
        "id": task.id,
        "p_hat": p_hat(found, task.answer, definition),
        "majority": found.majority,
        "n_valid": found.valid,
        "k": found.k,
        "tool_calls_mean": answered.tool_calls,
        "answers": list(answered.answers),
    }


@asynccontextmanager
async def serving_evaluations(executor: Answerer, equality: Equality) -> AsyncIterator[str]:
    """Async context manager: serves `/evaluate` on a free port of the loopback interface, in the running
    event loop, and yields the URL of the server. `executor` answers the questions; `equality` is the rule by
    which two answers are equal. Raises InferenceError if the server does not start."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    with contextlib.closing(listener):
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            application(executor, equality),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=2,
        )
        server = _Http(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        begins = asyncio.create_task(server.up.wait())
        try:
            await asyncio.wait(
                [task, begins], timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if task.done() or not begins.done():
                raise InferenceError("the service /evaluate did not start")
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            await cancel_and_wait(begins)
            server.should_exit = True
            await wait_shielded(task)


class _Http(uvicorn.Server):
    """The HTTP server of the package uvicorn without its signal handlers, because the training run handles
    signals itself. The event `up` is set when the server accepts requests."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
