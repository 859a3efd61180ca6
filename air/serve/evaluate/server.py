"""The server of `air serve evaluate`, whose model answers proposed questions, to find out how hard they are.
`air.train.coevolve.evaluate_service` lets the model answer, and compares the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from air.rewards.proposals.agreement import check_equality
from air.sandbox.contract.box import NOT_ISOLATED
from air.serve.evaluate.row_files import RowFiles
from air.serve.evaluate.settings import EvaluateConfig
from air.serve.http import server as http_server
from air.serve.http.app import BaseServer, Protocol
from air.serve.http.boxes import QueueFull
from air.serve.http.log import Log
from air.serve.http.metrics import Metrics
from air.serve.http.request_queue import RequestQueue
from air.tools import ToolSet
from air.train.coevolve.evaluate_service import handle_evaluate
from air.train.coevolve.executor import Executor, open_executor


@dataclass(frozen=True)
class EvaluateServer(BaseServer):
    """The state that all requests to `air serve evaluate` share: settings, metrics, log, the model that
    answers proposed questions (`executor`), its tools, and the queue of requests."""

    config: EvaluateConfig
    executor: Executor
    tools: ToolSet
    queue: RequestQueue
    files: RowFiles | None = None
    """The folder with files of questions, if the server has one."""

    def health_fields(self) -> dict[str, Any]:
        queue = self.queue
        counts = {"running": queue.running, "max": queue.at_once, "queued": queue.waiting}
        model = (
            self.config.model_name or Path(self.config.model).name
        )  # its folder is nobody's business
        return {"model": model, "tools": list(self.tools.tools), "requests": counts}


class Evaluate(Protocol):
    """Serves `POST /evaluate`: the server's model answers each proposed question several times. The agreement
    of its answers shows how hard the question is."""

    name = "evaluate"

    def __init__(self, server: EvaluateServer) -> None:
        self._server = server

    def routes(self) -> Sequence[BaseRoute]:
        return [Route("/evaluate", self._evaluate, methods=["POST"])]

    async def _evaluate(self, request: Request) -> Response:
        try:
            server = self._server
            equality, defaults = server.config.equality, server.config.defaults
            return await handle_evaluate(
                request, server.executor, equality, server.queue.turn, defaults
            )
        except QueueFull as error:
            return JSONResponse({"error": str(error)}, 503, {"Retry-After": "1"})


@asynccontextmanager
async def opened(
    config: EvaluateConfig, metrics: Metrics, log: Log
) -> AsyncIterator[EvaluateServer]:
    """Async context manager: loads the tools and the model, and yields the state that all requests to `air
    serve evaluate` share. Raises UsageError if the tools, the model or the folder `files` cannot be used, or
    if the package that compares mathematical answers is needed but not installed."""
    check_equality(config.equality)
    files = RowFiles(config.files) if config.files is not None else None
    model, settings = config.model_and_settings()
    tools = config.tool_set(settings)
    if tools.box is not None and settings.envs[0].provider == "process":
        log.event("warning", text=NOT_ISOLATED)
    queue = RequestQueue(config.max_requests, config.max_queued, metrics)
    loading = open_executor(model, settings, config.seed, name=config.model_name, tools=tools)
    async with loading as executor:
        yield EvaluateServer(config, metrics, log, executor, tools, queue, files)
    log.event("stop", requests=queue.running)


async def serve_evaluate(
    config: EvaluateConfig,
    protocols: Sequence[Callable[[EvaluateServer], Protocol]],
    **options: Any,
) -> None:
    """Runs the server of `air serve evaluate` until SIGINT or SIGTERM. `protocols` are the classes of its
    protocols; each is called with the server's state. `options` are the keyword arguments `say` (prints the
    server's URL) and `log` of `air.serve.http.server.run`."""
    await http_server.run(
        config, lambda metrics, log: opened(config, metrics, log), protocols, **options
    )
