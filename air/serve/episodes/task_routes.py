"""Handles requests for the names of the splits (`train` and `validation`), and for the list of episodes in a
split, which the protocols call tasks. The servers for OpenEnv and ORS clients share this module."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from air.errors import UsageError
from air.serve.episodes.catalogue import Catalogue
from air.serve.episodes.server import EpisodesServer
from air.serve.http.app import body_of

NAME = "air"
"""The name of the one environment that a server of air offers. In OpenEnv and ORS, the paths of requests
contain an environment's name."""
T = TypeVar("T", bound=BaseModel)


class Refused(Exception):
    """Error: a request is refused with the HTTP status `status`. `detail` is the reason, as any JSON
    value."""

    def __init__(self, status: int, detail: Any) -> None:
        super().__init__(str(detail))
        self.status, self.detail = status, detail

    def response(self) -> Response:
        """Returns the HTTP response for this error, with the JSON body `{"detail": …}`."""
        return JSONResponse({"detail": self.detail}, self.status)


class StrictBody(BaseModel):
    """Base class of the bodies of clients' requests and messages. Bodies with unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class _Split(StrictBody):
    split: str


class _Task(_Split):
    index: int


class _Range(_Split):
    start: int | None = Field(None, ge=0)
    stop: int | None = Field(None, ge=0)


def answering(
    handler: Callable[[Request], Awaitable[Any]],
) -> Callable[[Request], Awaitable[Response]]:
    """Converts `handler`, an async function that returns a JSON value, to a handler for a route, which
    returns the value as a JSON response. If `handler` raises Refused or UsageError, the response reports this
    error (with status 400 for UsageError)."""

    async def endpoint(request: Request) -> Response:
        try:
            result = await handler(request)
        except Refused as error:
            return error.response()
        except UsageError as error:
            return Refused(400, str(error)).response()
        return result if isinstance(result, Response) else JSONResponse(result)

    return endpoint


async def body(request: Request, kind: type[T], most_mb: float) -> T:
    """Reads a request's JSON body, and returns it as an object of the class `kind`. Raises Refused if the
    body is malformed or larger than `most_mb` MiB."""
    try:
        return kind.model_validate_json(await body_of(request, most_mb) or b"{}")
    except ValidationError as error:
        raise Refused(422, problems(error)) from None
    except ValueError as error:
        raise Refused(413, str(error)) from None


def problems(error: ValidationError) -> list[dict[str, Any]]:
    """Converts pydantic's error about an invalid body or message to a list with one JSON object per problem
    (its place, type and text), the form that clients of OpenEnv and ORS expect."""
    rows: list[dict[str, Any]] = json.loads(error.json(include_url=False, include_input=False))
    return rows


def routes(server: EpisodesServer, prefixes: Sequence[str] = ("/{env}",)) -> Sequence[BaseRoute]:
    """Returns the HTTP routes for the requests about splits (`train`, `validation`) and their episodes. For
    each of `prefixes`, there is one route for each request, whose path begins with the prefix."""
    tasks, most = server.catalogue, server.config.max_body_mb

    async def environments(_: Request) -> list[str]:
        return [NAME]

    async def splits(request: Request) -> list[dict[str, str]]:
        check(request)
        return [{"name": name, "type": name} for name in tasks.splits]

    async def listed(request: Request) -> dict[str, Any]:
        check(request)
        split = (await body(request, _Split, most)).split
        return {"tasks": _range(tasks, split, 0, None), "env_name": NAME}

    async def count(request: Request) -> dict[str, int]:
        check(request)
        tasks.entry((await body(request, _Split, most)).split, 0)
        return {"num_tasks": tasks.count()}

    async def one(request: Request) -> dict[str, Any]:
        check(request)
        wanted = await body(request, _Task, most)
        return {"task": spec(tasks, wanted.split, wanted.index), "env_name": NAME}

    async def some(request: Request) -> dict[str, Any]:
        check(request)
        wanted = await body(request, _Range, most)
        rows = _range(tasks, wanted.split, wanted.start or 0, wanted.stop)
        return {"tasks": rows, "env_name": NAME}

    posts = {"tasks": listed, "num_tasks": count, "task": one, "task_range": some}
    return [
        Route("/list_environments", answering(environments)),
        *(Route(f"{prefix}/splits", answering(splits)) for prefix in prefixes),
        *(
            Route(f"{prefix}/{path}", answering(handler), methods=["POST"])
            for path, handler in posts.items()
            for prefix in prefixes
        ),
    ]


def spec(tasks: Catalogue, split: str, index: int) -> dict[str, Any]:
    """Returns the description of the episode at `index` (from 0) in a split, as clients get it: `{"task": ID,
    "seed": SEED}`. Raises UsageError if there is no such split or index."""
    task, seed = tasks.entry(split, index)
    return {"task": task, "seed": seed}


def _range(tasks: Catalogue, split: str, start: int, stop: int | None) -> list[dict[str, Any]]:
    stop = tasks.count() if stop is None else min(stop, tasks.count())
    tasks.entry(split, 0)
    return [spec(tasks, split, index) for index in range(start, stop)]


def check(request: Request) -> None:
    """Raises Refused (status 404) if the request's path contains an environment name other than `NAME`."""
    if request.path_params.get("env", NAME) != NAME:
        raise Refused(404, f"unknown environment {request.path_params['env']!r}: it is {NAME!r}")
