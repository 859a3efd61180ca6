"""The server of `air serve rollouts`: handles `POST /rollouts`, which plays episodes with the model at a
given URL. It responds when all episodes of the request have ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from air.aio import while_connected
from air.errors import InfrastructureError, UsageError
from air.serve.http import server as http_server
from air.serve.http.app import LOG_FIELDS, BaseServer, Protocol, body_of
from air.serve.http.log import Log
from air.serve.http.metrics import Metrics
from air.serve.rollouts.episodes import rollouts
from air.serve.rollouts.messages import RolloutsRequest, RolloutsResponse, response
from air.serve.rollouts.settings import RolloutsConfig


@dataclass(frozen=True)
class RolloutsServer(BaseServer):
    """The state that all requests to `air serve rollouts` share: settings, metrics, log, and a semaphore that
    limits how many episodes of all requests together run at the same time."""

    config: RolloutsConfig
    episode_limit: asyncio.Semaphore


class Rollouts(Protocol):
    """Serves `POST /rollouts`, which plays episodes of air's tasks with the model whose URL is in the
    request."""

    name = "rollouts"

    def __init__(self, server: RolloutsServer) -> None:
        self._server = server
        self._running = 0

    def routes(self) -> Sequence[BaseRoute]:
        return [Route("/rollouts", self._rollouts, methods=["POST"])]

    def health_fields(self) -> dict[str, Any]:
        return {"requests": self._running, "max_episodes": self._server.config.max_episodes}

    async def _rollouts(self, request: Request) -> Response:
        try:
            body = await self._body(request)
        except ValidationError as error:
            rows = json.loads(error.json(include_url=False, include_input=False))
            return JSONResponse({"detail": rows}, 422)
        except ValueError as error:
            return JSONResponse({"detail": str(error)}, 413)
        wanted, most = len(body.ids) * body.n, self._server.config.max_rollouts
        if wanted > most:
            return JSONResponse(
                {"detail": f"{wanted} rollouts exceed the {most} of a request"}, 422
            )
        self._running += 1
        try:
            result = await while_connected(request.receive, lambda: self._play(body))
        except UsageError as error:
            return JSONResponse({"detail": str(error)}, 400)
        except InfrastructureError as error:
            return JSONResponse({"detail": str(error)}, 503)
        finally:
            self._running -= 1
        request.scope[LOG_FIELDS] |= {"env": body.env, "rollouts": wanted}
        return JSONResponse(result.model_dump(mode="json"))

    async def _body(self, request: Request) -> RolloutsRequest:
        return RolloutsRequest.model_validate_json(
            await body_of(request, self._server.config.max_body_mb)
        )

    async def _play(self, body: RolloutsRequest) -> RolloutsResponse:
        results = await rollouts(body, self._server.config, self._server.episode_limit)
        for one in results:
            text = "Episodes, by why they ended."
            self._server.metrics.add("air_serve_rollouts_total", text, why=one.stop_reason)
        return response(body.env, results)


@asynccontextmanager
async def opened(
    config: RolloutsConfig, metrics: Metrics, log: Log
) -> AsyncIterator[RolloutsServer]:
    """Async context manager: yields the state that all requests to `air serve rollouts` share: settings,
    metrics, log, and a semaphore that limits how many episodes run at the same time."""
    yield RolloutsServer(config, metrics, log, asyncio.Semaphore(config.max_episodes))


async def serve_rollouts(config: RolloutsConfig, **options: Any) -> None:
    """Runs the server of `air serve rollouts` until SIGINT or SIGTERM. `options` are the keyword arguments
    `say` (prints the server's URL) and `log` of `air.serve.http.server.run`."""
    await http_server.run(
        config, lambda metrics, log: opened(config, metrics, log), [Rollouts], **options
    )
