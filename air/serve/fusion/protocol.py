"""The routes of SandboxFusion's protocol, and the form of its errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from air.serve.app import FACTS, Protocol, Server, body_of, while_connected
from air.serve.boxes import NoBoxInTime
from air.serve.fusion.languages import available
from air.serve.fusion.messages import RunCodeAnswer, RunCodeRequest
from air.serve.fusion.programs import BadRequest, Programs

R = TypeVar("R", bound=BaseModel)
START_SECONDS = 120.0
_RUNS = "air_serve_runs_total"


class Fusion(Protocol):
    """SandboxFusion's protocol on one server."""

    name = "sandboxfusion"

    def __init__(self, server: Server) -> None:
        self._server = server
        self._programs = Programs(server)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        spec = self._programs.spec()
        async with self._server.boxes.lend(spec, within=START_SECONDS) as box:
            self._programs.languages = await available(box)
        yield

    def facts(self) -> dict[str, Any]:
        return {"languages": list(self._programs.languages)}

    def routes(self) -> Sequence[BaseRoute]:
        return [
            Route("/v1/ping", _ping),
            Route("/run_code", self._posted(RunCodeRequest, self._run_code), methods=["POST"]),
        ]

    async def _run_code(self, request: RunCodeRequest, facts: dict[str, Any]) -> RunCodeAnswer:
        facts["language"] = request.language
        answer = await self._programs.run(request)
        self._count(answer.status, request.language, facts)
        if answer.message:
            facts["message"] = answer.message
        return answer

    def _count(self, status: str, language: str, facts: dict[str, Any]) -> None:
        facts["result"] = status
        self._server.metrics.add(
            _RUNS, "Programs and notebooks that ran.", status=status, language=language
        )

    def _posted(
        self, kind: type[R], handle: Callable[[R, dict[str, Any]], Awaitable[BaseModel]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Returns a route's function: reads a request of the class `kind` and answers with JSON."""

        async def answer(request: Request) -> Response:
            try:
                body = await body_of(request, self._server.config.max_body_mb)
            except ValueError as error:
                return JSONResponse({"detail": str(error)}, 413)
            facts = request.scope[FACTS]
            try:
                message = kind.model_validate_json(body)
                result = await while_connected(request, lambda: handle(message, facts))
            except ValidationError as error:
                return _invalid(error.errors(include_url=False, include_context=False))
            except BadRequest as error:
                return _refused(error)
            except NoBoxInTime as error:
                return JSONResponse({"detail": str(error)}, 504)
            return Response(result.model_dump_json(), media_type="application/json")

        return answer


async def _ping(_: Request) -> Response:
    return JSONResponse("pong")


def _refused(error: BadRequest) -> Response:
    if error.status != 422:
        return JSONResponse({"detail": str(error)}, error.status)
    return _invalid([{"type": "value_error", "loc": (error.field,), "msg": str(error)}])


def _invalid(errors: Sequence[Any]) -> Response:
    """Returns the answer to a request that is not valid: one entry for each fault, with the field's place."""
    details = [
        {"type": each["type"], "loc": ["body", *each["loc"]], "msg": each["msg"]} for each in errors
    ]
    return JSONResponse({"detail": details}, 422)
