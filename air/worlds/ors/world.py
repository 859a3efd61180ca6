"""A world (an environment in which an agent acts) whose episodes run on an ORS (Open Reward Standard) server.
The agent acts by tool calls.

A failure of the server or the network raises `InfrastructureError`, and so does every later step. A call
that the server rejects, for example because of wrong arguments, is an observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from air.actions.base import Action
from air.errors import InfrastructureError
from air.worlds.base import Observation, Step
from air.worlds.ors.failure_rerun import Attempt
from air.worlds.ors.options import OrsOptions
from air.worlds.ors.result import prompt_text, read
from air.worlds.ors.session import REFUSED, Call, CallError, Session, send
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
    as_observation,
    call,
    read_tools,
    sendable,
    usage,
)


class OrsWorld:
    """A world (an agent's environment) that runs one episode on an ORS (Open Reward Standard) server.
    `rewards` holds the server's URL and the lowest reward that the server has sent so far in any episode,
    which can replace a missing reward."""

    def __init__(self, rewards: RewardsOfServer, options: OrsOptions) -> None:
        url = rewards.url
        self._url, self._options = url, options
        self._session = Session(url, options)
        self._env = options.env
        self._tools: list[RemoteTool] = []
        self._lost = ""
        self._history = History()
        self._index = self._seed = 0
        self._rewards = Rewards(rewards)
        self._actions = self._valid = 0
        self._done = False

    async def reset(self, seed: int) -> Observation:
        """Creates the session, starts the episode, and returns the first observation. Waits while the server
        is full; raises InfrastructureError if it stays full."""
        async with _Lookup(self._url, self._options) as lookup:
            self._env = self._env or await lookup.env()
            count = await lookup.count(self._env)
        self._index, self._seed = seed % count, seed
        await self._session.open(self._env, self._index, seed)
        await self._learn_tools()
        blocks = await self._session.get(f"/{self._env}/prompt")
        prompt = prompt_text(blocks)
        self._history.began(prompt)
        return as_observation("\n\n".join(filter(None, (prompt, usage(self._tools)))))

    async def step(self, action: Action) -> Step:
        """Calls one tool and returns its result. After an InfrastructureError, every further step raises an
        InfrastructureError, too."""
        if self._lost:
            raise InfrastructureError(self._lost)
        if self._done:
            return Step(as_observation(OVER), done=True)
        self._actions += 1
        try:
            return await self._step(action)
        except InfrastructureError as error:
            self._lost = str(error)
            raise

    async def _step(self, action: Action) -> Step:
        try:
            name, arguments = call(action, self._tools)
            sendable({"name": name, "input": arguments})
        except Malformed as error:
            return Step(as_observation(str(error)))
        await SERVER_LOCKS.wait(self._url)
        try:
            result = read(await self._session.call(self._env, name, arguments), self._url)
        except CallError as error:
            if await self._caused_by_agent((name, arguments)):
                self._history.refused((name, arguments), REFUSED)
                return Step(as_observation(f"[error] {error}"))
            raise InfrastructureError(f"{self._url}: {error}") from error
        except Unanswered as failure:
            return await self._unanswered(failure, (name, arguments))
        self._history.answered((name, arguments), result)
        self._valid += result.valid
        # A call that the server rejected has no reward at all.
        reward = self._rewards.counted(result.reward, done=result.done) if result.valid else 0.0
        self._done = result.done
        return Step(as_observation(result.text), done=result.done, reward=reward)

    async def _caused_by_agent(self, call: Call) -> bool:
        """Returns whether the agent counts as the cause of the error that the server reported for the tool
        call `call`. The setting `errors` decides: always, never, or if the same error comes again when the
        episode is repeated in another session."""
        if self._options.errors != "probe":
            return self._options.errors == "observation"
        try:
            await self._session.post("/ping", None)
        except InfrastructureError:
            return False

        async def again() -> None:
            self._history.refused(call, REFUSED)  # the environment has this call twice
            await send(self._session, self._env, call)

        # The episode holds a place while it waits, so no episode may wait for another's place.
        at_once = self._options.model_copy(update={"wait": 0.0})
        return await error_comes_again(
            lambda: self._attempt(at_once), self._history, call, REFUSED, again=again
        )

    async def _unanswered(self, failure: Unanswered, call: Call) -> Step:
        """Closes the session after the tool call `call`, which got no result, and determines whether the
        agent or the server is the cause.

        If the agent is the cause, returns a step that ends the episode. Otherwise raises `failure`.
        """
        await self._session.close()  # it may hold the last free place
        guilty = self._options.errors == "probe" and await caused_by_agent(
            lambda: self._attempt(self._options),
            self._history,
            call,
            failure.kind,
            alone=SERVER_LOCKS.of(self._url),
        )
        if not guilty:
            raise failure
        self._done = True
        return Step(
            as_observation(f"The environment gave no result for this call. {OVER}"), done=True
        )

    def _attempt(self, options: OrsOptions) -> Attempt:
        return Attempt(self._url, options, self._env, self._index, self._seed)

    async def close(self) -> dict[str, Any]:
        """Deletes the session on the server, and returns numbers about the episode by name, such as
        `num_actions` (see `facts`)."""
        self._lost = self._lost or "the episode is over"
        await self._session.close()
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

    async def _learn_tools(self) -> None:
        answer = await self._session.get(f"/{self._env}/task_tools")
        if not isinstance(answer, dict):
            raise InfrastructureError(f"{self._url}: no list of tools")
        self._tools = read_tools(answer.get("tools"), self._url)
        terminal = answer.get("terminal_tool")
        if isinstance(
            terminal, dict
        ):  # the server hides this tool from models that write plain messages; here it is a tool
            argument = terminal.get("arg") or ""
            if not isinstance(argument, str):
                raise InfrastructureError(f"{self._url}: the terminal tool is {terminal!r:.80}")
            properties = {argument: {"type": "string"}} if argument else {}
            schema = {"properties": properties, "required": list(properties)}
            self._tools += read_tools([terminal | {"input_schema": schema}], self._url)


class _Lookup:
    """A client without a session, which asks an ORS (Open Reward Standard) server for the names of the
    environments and for the number of tasks in an environment. Used as an async context manager."""

    def __init__(self, url: str, options: OrsOptions) -> None:
        self._session, self._split, self._url = Session(url, options), options.split, url

    async def __aenter__(self) -> _Lookup:
        self._session.connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

    async def env(self) -> str:
        """Returns the name of the first environment that the server lists. Raises InfrastructureError if
        there is none."""
        names = await self._session.get("/list_environments")
        if not isinstance(names, list) or not names:
            raise InfrastructureError(f"{self._url}/list_environments: no environment")
        return str(names[0])

    async def count(self, env: str) -> int:
        """Returns the number of tasks of the environment `env` in the split that the settings name. Raises
        InfrastructureError if there are none."""
        answer = await self._session.post(f"/{env}/num_tasks", {"split": self._split})
        count = answer.get("num_tasks") if isinstance(answer, dict) else None
        if not isinstance(count, int) or count < 1:
            raise InfrastructureError(f"{self._url}: no tasks in the split {self._split!r}")
        return count
