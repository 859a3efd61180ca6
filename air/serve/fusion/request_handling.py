"""Defines `Endpoint`: one HTTP endpoint of SandboxFusion's protocol. It parses a request, calls a handler,
and converts errors to responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from air.aio import while_connected
from air.errors import InfrastructureError
from air.serve.fusion.programs import BadRequest
from air.serve.http.app import LOG_FIELDS, Server, body_of
from air.serve.http.boxes import NoBoxInTime

Handler = Callable[[Any, dict[str, Any]], Awaitable[BaseModel]]
"""The type of functions that handle a request and return the response body. The first argument is the parsed
request. The second is a dict to which the function adds fields for the line about this request in the
server's log."""


@dataclass(frozen=True)
class Endpoint:
    """One path for POST requests: the classes of the request and response bodies, and the function that
    handles a request."""

    path: str
    request: type[BaseModel]
    answer: type[BaseModel]
    handle: Handler

    def route(self, server: Server) -> Route:
        """Returns the HTTP route for this endpoint on `server`."""

        async def answered(request: Request) -> Response:
            try:
                body = await body_of(request, server.config.max_body_mb)
            except ValueError as error:
                return JSONResponse({"detail": str(error)}, 413)
            log_fields = request.scope[LOG_FIELDS]
            try:
                message = self.request.model_validate_json(body)
                result = await while_connected(
                    request.receive, lambda: self.handle(message, log_fields)
                )
            except ValidationError as error:
                return _invalid(error.errors(include_url=False, include_context=False))
            except BadRequest as error:
                return _refused(error)
            except NoBoxInTime as error:
                # Most clients retry only after 504; `Retry-After` is for those that read it.
                headers = {"Retry-After": "1"}
                return JSONResponse({"detail": str(error)}, 504, headers)
            except InfrastructureError as error:  # a grader's: never a wrong answer of the model
                return JSONResponse({"detail": f"the server failed: {error}"}, 503)
            return Response(result.model_dump_json(), media_type="application/json")

        return Route(self.path, answered, methods=["POST"])


def _refused(error: BadRequest) -> Response:
    if error.status != 422:
        return JSONResponse({"detail": str(error)}, error.status)
    return _invalid([{"type": "value_error", "loc": (error.field,), "msg": str(error)}])


def _invalid(errors: Sequence[Any]) -> Response:
    """Returns the response (status 422) to an invalid request. It has one entry for each error, which names
    the wrong field."""
    details = [
        {"type": each["type"], "loc": ["body", *each["loc"]], "msg": each["msg"]} for each in errors
    ]
    return JSONResponse({"detail": details}, 422)
