"""Serves `POST /get_observation`, the protocol of verl-tool's tool server. Agent0's training code uses it: it
sends replies of a model, and gets the results of the tool calls in them.

    {"trajectory_ids": […], "actions": […], "extra_fields"?: […], "finish"?: […], "is_last_step"?: […]}
        → {"observations": […], "dones": […], "valids": […], "processing_time_ms"}

All lists have one entry per action. An action is a whole reply of a model (see
`air.serve.tools.verl_tool_calls`). A trajectory is a sequence of actions that share the state of their tools.
`valids` says whether the action called one of the server's tools. `dones` says whether the action's
trajectory has ended: by the flag `finish`, by a final answer, by a tool, or because its code ended its box
(container). The flag `is_last_step` ends the trajectory after the action, but does not change `dones`. If air
itself fails, the status is 503. If the server has already ended the trajectory, the status is 410. A failure
is never returned as an observation.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, Field, ValidationError, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from air.aio import while_connected
from air.errors import BoxEndedError, InfrastructureError, MissingError, UserCodeError
from air.serve.http.app import LOG_FIELDS, Protocol, body_of
from air.serve.http.boxes import NoBoxInTime
from air.serve.tools.server import ToolsServer
from air.serve.tools.sessions import BOX_ENDED
from air.serve.tools.trajectories import Trajectories, Trajectory, TrajectoryLost
from air.serve.tools.verl_tool_calls import ParsedCall, TrajectoryEnd, read

LONGEST_ID = 256
LONGEST_REPLY = 1_000_000
"""The maximum number of characters of an action (a reply of a model). A longer one counts as an action
without a tool call."""


class ObservationRequest(BaseModel):
    """The body of a request to `/get_observation`: actions (replies of a model), each with the id of its
    trajectory, the sequence of actions that share the state of their tools. All lists have the same length.
    Fields that are not declared here are ignored, as in verl-tool."""

    trajectory_ids: list[str] = Field(min_length=1)
    actions: list[str]
    extra_fields: list[dict[str, Any] | None] | None = None
    finish: list[bool] | None = None
    is_last_step: list[bool] | None = None

    @model_validator(mode="after")
    def _of_one_length(self) -> Self:
        count = len(self.trajectory_ids)
        for name in ("actions", "extra_fields", "finish", "is_last_step"):
            values = getattr(self, name)
            if values is not None and len(values) != count:
                raise ValueError(
                    f"`{name}` has {len(values)} entries; `trajectory_ids` has {count}"
                )
        if len(set(self.trajectory_ids)) < count:
            raise ValueError("`trajectory_ids` has an id twice: send one action after the other")
        if any(len(name) > LONGEST_ID for name in self.trajectory_ids):
            raise ValueError(f"`trajectory_ids` has an id of more than {LONGEST_ID} characters")
        return self

    def extra(self, index: int) -> dict[str, Any]:
        """Returns the entry of `extra_fields` for the action at position `index` (from 0), or an empty dict
        if it has none."""
        return (self.extra_fields[index] if self.extra_fields else None) or {}

    def flag(self, name: str, index: int) -> bool:
        """Returns the flag `name` (`finish` or `is_last_step`) of the action at position `index` (from 0). A
        flag in the action's entry of `extra_fields` takes precedence over the request's list."""
        values: list[bool] | None = getattr(self, name)
        return bool(self.extra(index).get(name, values[index] if values else False))


@dataclass(frozen=True)
class ActionResult:
    """The result of one action: its entries in the lists `observations`, `dones` (whether the trajectory has
    ended) and `valids` (whether the action called a tool) of the response."""

    observation: str | dict[str, str]
    done: bool
    valid: bool


def _parsed_actions(
    body: ObservationRequest, tools: Collection[str]
) -> list[ParsedCall | TrajectoryEnd | None]:
    """Returns a list with one entry for each action (a reply of a model): the tool call in it, or
    `TrajectoryEnd` if the reply ends the trajectory. The entry is None if the action does neither, has the
    flag `finish`, or is too long. `tools` are the names of the server's tools."""
    return [
        None
        if body.flag("finish", n) or len(action) > LONGEST_REPLY
        else read(action, tools, body.extra(n))
        for n, action in enumerate(body.actions)
    ]


class Observations(Protocol):
    """Serves `POST /get_observation`, with which clients of verl-tool send actions (replies of a model) and
    get observations (results of tool calls)."""

    name = "observations"

    def __init__(self, server: ToolsServer) -> None:
        self._server = server
        self._trajectories = Trajectories(server.sessions, server.config, server.metrics)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._trajectories.running():
            yield

    def routes(self) -> Sequence[BaseRoute]:
        return [Route("/get_observation", self._get, methods=["POST"])]

    def health_fields(self) -> dict[str, Any]:
        return {"trajectories": len(self._trajectories.open)}

    async def _get(self, request: Request) -> Response:
        since, config = time.monotonic(), self._server.config
        try:
            body = ObservationRequest.model_validate_json(
                await body_of(request, config.max_body_mb)
            )
        except ValidationError as error:
            rows = json.loads(error.json(include_url=False, include_input=False))
            return JSONResponse({"detail": rows}, 422)
        except ValueError as error:
            return JSONResponse({"detail": str(error)}, 413)
        if len(body.actions) > config.max_actions:
            text = f"{len(body.actions)} actions exceed the {config.max_actions} of a request"
            return JSONResponse({"detail": text}, 422)
        request.scope[LOG_FIELDS]["actions"] = len(body.actions)
        try:
            results = await while_connected(request.receive, lambda: self._results(body))
        except TrajectoryLost as error:
            return JSONResponse({"detail": str(error)}, 410)
        except (NoBoxInTime, InfrastructureError, MissingError, UserCodeError) as error:
            return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})
        return JSONResponse(
            {
                "observations": [one.observation for one in results],
                "dones": [one.done for one in results],
                "valids": [one.valid for one in results],
                "processing_time_ms": round(1000 * (time.monotonic() - since), 3),
            }
        )

    async def _results(self, body: ObservationRequest) -> list[ActionResult]:
        """Performs all actions of a request at the same time, and returns their results in order. If air
        itself fails in one action, the other actions are still finished; then the error is raised."""
        tools, ids = self._server.sessions.tools.tools, body.trajectory_ids
        present = self._trajectories.present(ids)
        actions = await asyncio.to_thread(_parsed_actions, body, tools)
        fields = {
            ids[n]: self._public(body.extra(n))
            for n, action in enumerate(actions)
            if isinstance(action, ParsedCall) and action.tool in tools
        }
        async with self._trajectories.used(fields) as used:
            trajectories = {**present, **used}
            works = (
                self._act(body, n, action, trajectories.get(ids[n]))
                for n, action in enumerate(actions)
            )
            results = await asyncio.gather(*works, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [one for one in results if isinstance(one, ActionResult)]

    def _public(self, extra: dict[str, Any]) -> dict[str, Any]:
        return {name: extra[name] for name in self._server.config.public if name in extra}

    async def _act(
        self,
        body: ObservationRequest,
        index: int,
        action: ParsedCall | TrajectoryEnd | None,
        trajectory: Trajectory | None,
    ) -> ActionResult:
        """Performs the action at position `index` of the request `body`, and returns its result. An action is
        a reply of a model; `action` is what was found in it: a tool call, the end of the trajectory, or None.
        `trajectory` is the open trajectory (a sequence of actions with common state) to which the action
        belongs. If it is None, the action must not be a tool call."""
        name = body.trajectory_ids[index]
        if body.flag("finish", index):
            await self._trajectories.finish(name, trajectory)
            return ActionResult("", done=True, valid=False)
        result = await self._result(action, trajectory)
        if result.done or body.flag("is_last_step", index):
            await self._trajectories.finish(name, trajectory)
        return result

    async def _result(
        self, action: ParsedCall | TrajectoryEnd | None, trajectory: Trajectory | None
    ) -> ActionResult:
        tools = self._server.sessions.tools.tools
        if isinstance(action, TrajectoryEnd):
            return ActionResult("", done=True, valid=False)
        if action is None or action.tool not in tools:
            reason = {"obs": "", "invalid_reason": "the action asks for none of the tools"}
            return ActionResult(
                reason | {"available_tools": ", ".join(tools)}, done=False, valid=False
            )
        assert trajectory is not None  # `used` yields one for every call of a tool
        self._server.count(action.tool)
        try:
            result = await self._trajectories.call(trajectory, action.tool, action.arguments)
        except BoxEndedError:
            return ActionResult(action.format_observation(BOX_ENDED), done=True, valid=True)
        if result.status == "finish":
            return ActionResult("", done=True, valid=True)
        return ActionResult(
            action.format_observation(result.observation.strip(" \n")), done=False, valid=True
        )
