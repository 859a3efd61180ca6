"""Serves SandboxFusion's protocol as one protocol of the sandbox server: its endpoints run programs and
notebook cells in boxes (containers), and grade a model's answers to programming problems."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from air.serve.fusion import openapi
from air.serve.fusion.datasets import messages as datasets
from air.serve.fusion.datasets.endpoints import Datasets
from air.serve.fusion.datasets.store import Store
from air.serve.fusion.languages import available
from air.serve.fusion.messages import (
    Answer,
    RunCodeAnswer,
    RunCodeRequest,
    RunJupyterAnswer,
    RunJupyterRequest,
)
from air.serve.fusion.notebooks import Notebooks
from air.serve.fusion.programs import Programs
from air.serve.fusion.request_handling import Endpoint
from air.serve.http.app import Protocol, Server

START_SECONDS = 120.0
_RUNS = "air_serve_runs_total"
_GETS = {
    "/v1/ping": 'Returns "pong".',
    "/list_datasets": "Returns the names of the server's datasets.",
}


class Fusion(Protocol):
    """SandboxFusion's HTTP interface on a sandbox server: endpoints that run programs and notebook cells, and
    endpoints that grade completions (a model's answers to programming problems)."""

    name = "sandboxfusion"

    def __init__(self, server: Server) -> None:
        self._server = server
        self._programs = Programs(server)
        self._notebooks = Notebooks(self._programs)
        self._store = Store(self._programs, server.config.datasets)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        spec = self._programs.spec()
        async with self._server.boxes.lend(spec, within=START_SECONDS) as box:
            self._programs.languages = await available(box)
            await self._notebooks.look(box)
        yield

    def health_fields(self) -> dict[str, Any]:
        return {
            "languages": list(self._programs.languages),
            "jupyter": self._notebooks.available,
            "datasets": self._store.datasets,
        }

    def routes(self) -> Sequence[BaseRoute]:
        endpoints = self._endpoints()
        text = openapi.description(endpoints, _GETS)
        page = openapi.page(text)

        async def described(_: Request) -> Response:
            return JSONResponse(text)

        async def shown(_: Request) -> Response:
            return HTMLResponse(page)

        async def listed(_: Request) -> Response:
            return JSONResponse(self._store.datasets)

        return [
            Route("/v1/ping", _ping),
            Route("/list_datasets", listed),
            Route("/openapi.json", described),
            Route("/docs", shown),
            *(each.route(self._server) for each in endpoints),
        ]

    def _endpoints(self) -> list[Endpoint]:
        served = Datasets(self._store)
        asked = datasets.GetPromptsRequest
        return [
            Endpoint("/run_code", RunCodeRequest, RunCodeAnswer, self._run_code),
            Endpoint("/run_jupyter", RunJupyterRequest, RunJupyterAnswer, self._run_jupyter),
            Endpoint("/list_ids", asked, datasets.Ids, served.list_ids),
            Endpoint("/get_prompts", asked, datasets.Prompts, served.get_prompts),
            Endpoint(
                "/get_prompt_by_id",
                datasets.GetPromptByIdRequest,
                datasets.Prompt,
                served.get_prompt_by_id,
            ),
            Endpoint("/submit", datasets.SubmitRequest, datasets.EvalResult, served.submit),
            Endpoint(
                "/get_metrics", datasets.GetMetricsRequest, datasets.Metrics, served.get_metrics
            ),
            Endpoint(
                "/get_metrics_function",
                datasets.DatasetRequest,
                datasets.MetricsFunction,
                served.get_metrics_function,
            ),
        ]

    async def _run_code(self, request: RunCodeRequest, log_fields: dict[str, Any]) -> RunCodeAnswer:
        """Handles `/run_code`: compiles and runs a client's program in a box (container) of its own, and
        returns the response. Adds the program's language to `log_fields`, which appear in the server's log
        line about this request."""
        log_fields["language"] = request.language
        answer = await self._programs.run(request)
        self._count(answer, request.language, log_fields)
        return answer

    async def _run_jupyter(
        self, request: RunJupyterRequest, log_fields: dict[str, Any]
    ) -> RunJupyterAnswer:
        """Handles `/run_jupyter`: runs notebook cells in a new Jupyter kernel in a box (container) of its
        own, and returns the response. Adds the number of cells to `log_fields`, which appear in the server's
        log line about this request."""
        log_fields["cells"] = len(request.cells)
        answer = await self._notebooks.run(request)
        self._count(answer, "jupyter", log_fields)
        return answer

    def _count(self, answer: Answer, language: str, log_fields: dict[str, Any]) -> None:
        """Counts one run of a program or notebook in the metrics, and adds its status to `log_fields`, which
        appear in the line about this request in the server's log."""
        log_fields["result"] = answer.status
        if answer.message:
            log_fields["message"] = answer.message
        self._server.metrics.add(
            _RUNS, "Programs and notebooks that ran.", status=answer.status, language=language
        )


async def _ping(_: Request) -> Response:
    return JSONResponse("pong")
