"""A world (an environment in which an agent acts) whose episodes run on an OpenEnv server.

A failure of the server or the network raises `InfrastructureError`, and so does every later step: the
episode gets no reward and is never continued in another environment. A mistake of the agent, such as an
action that the server's schema rejects, is an observation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from air.actions.base import Action
from air.errors import InfrastructureError
from air.worlds.base import Observation, Step
from air.worlds.openenv.connection import Connection, ServerError, request, send
from air.worlds.openenv.failure_rerun import Attempt
from air.worlds.openenv.options import OpenEnvOptions
from air.worlds.openenv.result import read, tools_of
from air.worlds.remote.attribution import (
    SERVER_LOCKS,
    History,
    Unanswered,
    caused_by_agent,
    error_comes_again,
)
from air.worlds.remote.conversion import (
    OVER,
    Malformed,
    RemoteTool,
    Rewards,
    RewardsOfServer,
    action_text,
    as_observation,
    call,
    json_object,
    observation_text,
    reward_of,
    sendable,
    single_text,
    usage,
)


class Server:
    """Data about one server that all episodes share: the schema of actions and the number of tasks. The
    schema and the number are each requested only once."""

    def __init__(self, url: str, options: OpenEnvOptions) -> None:
        self.url, self.options = url, options
        self._schema: Mapping[str, Any] | None = None
        self._place: tuple[str, int] | None = None
        self.rewards = RewardsOfServer(url)

    async def action_schema(self) -> Mapping[str, Any]:
        """Returns the JSON schema of actions. Raises InfrastructureError if the server does not provide
        it."""
        if self._schema is None:
            answer = await request(self.url, self.options, "GET", "/schema")
            schema = answer.get("action") if isinstance(answer, dict) else None
            if not (isinstance(schema, dict) and isinstance(schema.get("properties"), dict | None)):
                raise InfrastructureError(f"{self.url}/schema: no schema of actions")
            self._schema = schema
        return self._schema

    async def index(self, seed: int) -> int:
        """Returns the index, from 0, of the task that `seed` selects in the split that the setting `split`
        names: the seed modulo the number of tasks. Raises InfrastructureError if the server does not say how
        many tasks there are."""
        if self._place is None:
            names = await request(self.url, self.options, "GET", "/list_environments")
            name = names[0] if isinstance(names, list) and names else ""
            body = {"split": self.options.split}
            path = f"/{name}/num_tasks"
            answer = await request(self.url, self.options, "POST", path, body)
            count = answer.get("num_tasks") if isinstance(answer, dict) else None
            if not isinstance(count, int) or count < 1:
                raise InfrastructureError(f"{self.url}{path}: no number of tasks")
            self._place = (str(name), count)
        return seed % self._place[1]


class OpenEnvWorld:
    """A world (an agent's environment) that runs one episode on `server`, a server with the protocol
    OpenEnv."""

    def __init__(self, server: Server) -> None:
        self._server, self._options = server, server.options
        self._connection = Connection(server.url, server.options)
        self._schema: Mapping[str, Any] = {}
        self._field = self._options.field
        self._tools: list[RemoteTool] | None = None
        self._reset: tuple[dict[str, Any], int] = ({}, 0)
        """The data of the episode's `reset` message, and the episode's seed. `Attempt` starts a repetition of
        the episode with both."""
        self._history = History()
        self._rewards = Rewards(server.rewards)
        self._actions = self._valid = 0
        self._done = False

    async def reset(self, seed: int) -> Observation:
        """Connects, starts the episode, and returns the first observation. Waits while the server is full.
        Raises InfrastructureError if the server stays full or does not start the episode."""
        reset: dict[str, Any] = {"seed": seed}
        if self._options.task:
            reset["task"] = self._options.task
        if self._options.split:
            reset |= {"split": self._options.split, "index": await self._server.index(seed)}
        self._reset = reset, seed
        try:
            data = await self._connection.open(reset, seed)
            if not self._field or self._options.tools is None:
                self._schema = await self._server.action_schema()
            reward_of(data.get("reward"), self._server.url)
            if data.get("done"):
                raise InfrastructureError(f"{self._server.url}: the episode was over at `reset`")
            if self._with_tools:
                listed = await self._connection.ask("step", {"type": "list_tools"})
                self._tools = tools_of(listed, self._server.url)
        except ServerError as error:
            raise InfrastructureError(
                f"{self._server.url}: `reset` failed ({error.code}): {error}"
            ) from error
        self._field = self._field or single_text(self._schema)
        first = observation_text(data.get("observation"))
        self._history.began(first)
        return as_observation("\n\n".join(filter(None, (first, self._usage()))))

    async def step(self, action: Action) -> Step:
        """Sends one action to the server and returns its result. After an InfrastructureError, every further
        step raises an InfrastructureError, too."""
        if self._done:
            return Step(as_observation(OVER), done=True)
        if self._connection.lost:
            raise InfrastructureError(self._connection.lost)
        self._actions += 1
        try:
            return await self._step(action)
        except InfrastructureError as error:
            self._connection.lost = self._connection.lost or str(error)
            raise

    async def _step(self, action: Action) -> Step:
        try:
            body = sendable(self._body(action))
        except Malformed as error:
            return Step(as_observation(str(error)))
        await SERVER_LOCKS.wait(self._server.url)
        try:
            result = read(await self._connection.ask("step", body), self._server.url)
        except ServerError as error:
            return await self._after(error, body)
        except Unanswered as failure:
            return await self._unanswered(failure, body)
        self._history.answered(body, result)
        self._valid += result.valid
        reward = self._rewards.counted(result.reward, done=result.done)
        self._done = result.done
        return Step(as_observation(result.text), done=result.done, reward=reward)

    async def close(self) -> dict[str, Any]:
        """Ends the episode on the server, and returns numbers about the episode by name, such as
        `num_actions` (see `facts`)."""
        await self._connection.close()
        return dict(self.facts())

    def facts(self) -> Mapping[str, float]:
        """Returns three numbers about the episode so far, by name: `num_actions`, how many actions the agent
        took; `action_is_valid`, the share of these that the server carried out without an error (0 if there
        are none); and `num_null_rewards`, how many of the server's rewards were null, which count as 0."""
        share = self._valid / self._actions if self._actions else 0.0
        return {
            "num_actions": float(self._actions),
            "action_is_valid": share,
            "num_null_rewards": float(self._rewards.null),
        }

    @property
    def _with_tools(self) -> bool:
        if self._options.tools is not None:
            return self._options.tools
        return "tool_name" in (self._schema.get("properties") or {})

    def _usage(self) -> str:
        """Returns the instructions for the form of an action; empty if an action is plain text."""
        if self._tools is not None:
            return usage(self._tools)
        if self._field:
            return ""
        return f"An action is a JSON object with this schema: {json.dumps(self._schema)}"

    def _body(self, action: Action) -> dict[str, Any]:
        if self._tools is not None:
            name, arguments = call(action, self._tools)
            return {"type": "call_tool", "tool_name": name, "arguments": arguments}
        if self._field:
            return {self._field: action_text(action)}
        return json_object(action_text(action))

    async def _after(self, error: ServerError, body: dict[str, Any]) -> Step:
        """Handles the error that the server reported for an action with the data `body`. Returns a step if
        the agent caused the error, and raises InfrastructureError otherwise."""
        if error.code == "VALIDATION_ERROR":  # the action has not reached the environment
            return Step(as_observation(f"[error] {error}"))
        failure = Unanswered(f"{self._server.url}: {error.code}: {error}", error.code)
        if error.code != "EXECUTION_ERROR":
            raise failure from error
        if self._options.errors == "probe":
            try:
                await self._connection.ask("state")
            except (ServerError, InfrastructureError):
                # Perhaps the action broke the environment.
                return await self._unanswered(failure, body)
        if not await self._caused_by_agent(body, error.code):
            raise failure from error
        self._history.refused(body, error.code)
        return Step(as_observation(f"[error] {error}"))

    async def _caused_by_agent(self, body: dict[str, Any], code: str) -> bool:
        """Returns whether the agent counts as the cause of an error. `code` is the error code that the server
        reported for the action with the data `body`. The setting `errors` decides: always, never, or if the
        same error comes again when the episode is repeated in another environment."""
        if self._options.errors != "probe":
            return self._options.errors == "observation"

        async def again() -> None:
            self._history.refused(body, code)  # the environment has this action twice
            await send(self._connection, body)

        # The episode holds a place while it waits, so no episode may wait for another's place.
        at_once = self._options.model_copy(update={"wait": 0.0})
        return await error_comes_again(
            lambda: self._attempt(at_once), self._history, body, code, again=again
        )

    async def _unanswered(self, failure: Unanswered, body: dict[str, Any]) -> Step:
        """Closes the connection after an action that got no result, and determines whether the agent or the
        server is the cause. `body` is the data of the action.

        If the agent is the cause, returns a step that ends the episode. Otherwise raises `failure`, and every
        later step raises InfrastructureError.
        """
        await self._connection.close()  # it may hold the last free environment
        guilty = self._options.errors == "probe" and await caused_by_agent(
            lambda: self._attempt(self._options),
            self._history,
            body,
            failure.kind,
            alone=SERVER_LOCKS.of(self._server.url),
        )
        if not guilty:
            self._connection.lost = str(failure)
            raise failure
        self._done = True
        return Step(
            as_observation(f"The environment gave no result for this action. {OVER}"), done=True
        )

    def _attempt(self, options: OpenEnvOptions) -> Attempt:
        return Attempt(self._server.url, options, *self._reset, tools=self._tools is not None)
