"""One episode in an environment of AgentGym, which a server plays.

The reward of an action is by how much it raised the best score so far, so an episode's rewards add up to its
best score. That is the environment's own score; sciworld's failure, which takes back every score, is 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from air import aio
from air.actions.base import Action
from air.errors import InfrastructureError
from air.worlds.agentgym import sessions
from air.worlds.agentgym.client import Client, ErrorBody, clean
from air.worlds.agentgym.environment import Environment, Outcome, Unsendable
from air.worlds.base import Observation, Step
from air.worlds.sources import VALIDATION_SEED

logger = logging.getLogger(__name__)
MAX_ACTION = 8_000
"""The most characters of an action that are sent to a server."""
MAX_OBSERVATION = 20_000
"""The most characters of an observation that the agent is shown."""
CREATE_TRIES = 3
"""How often a session is asked for. No other request is repeated: it could act twice."""
CLOSE_SECONDS = 10.0
"""Seconds that the end of a session, or of a cancelled request for one, may take."""


class AgentGymWorld:
    """An episode of `environment` on the server at `url`.

    `ids` are the ids of tasks from which the seed chooses. `seconds` limits each request.
    """

    def __init__(
        self,
        environment: Environment,
        url: str,
        ids: range | None = None,
        *,
        seconds: float = 120.0,
        retry_seconds: float = 0.5,
    ) -> None:
        self.environment, self.url, self._ids = environment, url, ids
        self._seconds, self._retry_seconds = seconds, retry_seconds
        self._sessions = sessions.of(f"{environment.name}@{url}", environment.sessions)
        self._slot: asyncio.Semaphore | None = None
        self._client: Client | None = None
        self._session: int | None = None
        self._holder = sessions.Holder()
        self._answer: Any = None
        self._closed = self._over = False
        self._best = self._raw = 0.0
        self._actions = self._valid = 0

    async def reset(self, seed: int) -> Observation:
        """Creates a session on the server and starts the task that the seed chooses."""
        if self._slot is not None or self._closed:
            raise RuntimeError("this world has begun already")
        slot = self._sessions.slots
        await slot.acquire()
        self._slot = slot
        self._client = Client(self.url, self._seconds)
        data = data_id(self.environment, seed, self._ids)
        for left in reversed(range(CREATE_TRIES)):
            try:
                return await self._begin(data)
            except InfrastructureError:
                await self._end_session()
                if not left:
                    raise
                await asyncio.sleep(self._retry_seconds * 2 ** (CREATE_TRIES - 1 - left))
        raise AssertionError

    async def step(self, action: Action) -> Step:
        """Sends one action to the server, once, and returns what came of it."""
        if self._session is None or self._over:
            raise RuntimeError("the episode has not begun, or is over")
        self._actions += 1
        try:
            sent = self.environment.send(action, self._answer)
            if len(sent) > MAX_ACTION:
                raise Unsendable(f"The action exceeds {MAX_ACTION} characters.")
        except Unsendable as refusal:
            return Step(Observation(str(refusal)))
        sent = clean(sent)
        self._check_held()
        answer = await self._post("/step", {"action": sent})
        self._check_held()
        if isinstance(answer, ErrorBody):
            await self._check_working(answer)
            return Step(
                Observation(f"The environment could not carry out this action: {answer.text}")
            )
        with self._reading("/step"):
            outcome = self.environment.outcome(answer, sent)
        return self._step(answer, outcome)

    async def close(self) -> dict[str, Any]:
        """Closes the session on the server, if it can close one, and the connection."""
        if not self._closed:
            self._closed = True
            await aio.to_the_end(self._close())
        return {"agentgym": self.environment.name, "raw_score": self._raw}

    def facts(self) -> Mapping[str, float]:
        """Returns the score and the numbers of actions so far."""
        facts = {
            "success": float(self._best >= self.environment.success),
            "score": self._best,
            "raw_score": self._raw,
            "num_actions": float(self._actions),
        }
        if self.environment.refused and self._actions:
            facts["action_is_valid"] = self._valid / self._actions
        return facts

    def _step(self, answer: Any, outcome: Outcome) -> Step:
        if outcome.fault:
            raise InfrastructureError(f"{self.url}/step: the server failed: {outcome.fault}")
        if not 0 <= outcome.score <= 1:
            raise InfrastructureError(f"{self.url}/step: the score {outcome.raw:g} is out of range")
        self._answer, self._raw, self._over = answer, outcome.raw, outcome.done
        self._valid += not outcome.observation.startswith(self.environment.refused or ("\0",))
        best = 0.0 if outcome.failed else max(self._best, outcome.score)
        reward, self._best = best - self._best, best
        return Step(_shown(outcome.observation), done=outcome.done, reward=reward)

    async def _begin(self, data: int) -> Observation:
        environment = self.environment
        self._session = await self._create()
        self._holder = self._sessions.take(self._session)
        self._answer = _no_error(await self._post("/reset", environment.reset(data)), "/reset")
        with self._reading("/reset"):
            if environment.reset_fault(self._answer):
                raise InfrastructureError(f"{self.url}/reset: the server could not start the task")
            first = self._answer
            if environment.first_path:
                first = _no_error(await self._get(environment.first_path), environment.first_path)
            return _shown(environment.first(first))

    async def _create(self) -> int:
        """Returns the id of a new session. If the caller is cancelled while the request runs, waits a little
        for the answer, so that the session can be closed."""
        asking = asyncio.ensure_future(self._ask_for_session())
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            await aio.to_the_end(asyncio.wait([asking], timeout=CLOSE_SECONDS))
            if asking.done() and not asking.cancelled() and asking.exception() is None:
                self._session = asking.result()
                self._holder = self._sessions.take(self._session)
            await aio.ended(asking)
            raise

    async def _ask_for_session(self) -> int:
        environment = self.environment
        assert self._client is not None
        path = f"{environment.path}/create"
        # A server that shares its sessions gives them out in turn: soon comes one that nobody uses.
        for _ in range(2 * environment.sessions if environment.shares else 1):
            answer = _no_error(await self._client.post(path, environment.create), path)
            with self._reading(path):
                session = environment.session(answer)
            if not (environment.shares and self._sessions.used(session)):
                return session
        raise InfrastructureError(f"{self.url}: all sessions of the server are in use")

    async def _check_working(self, error: ErrorBody) -> None:
        """Raises InfrastructureError unless the session still works, so that the action must have caused the
        error. An environment without a harmless request to find out with has no such proof."""
        environment = self.environment
        answer: Any = error
        if environment.probe_action:
            answer = await self._post("/step", {"action": environment.probe_action})
        elif environment.probe_path:
            answer = await self._get(environment.probe_path)
        self._check_held()
        if isinstance(answer, ErrorBody):
            raise InfrastructureError(f"{self.url}/step: the server failed: {error.text}")

    def _check_held(self) -> None:
        if self._holder.lost:
            raise InfrastructureError(
                f"{self.url} gave this episode's session to another one; was it restarted?"
            )

    async def _post(self, path: str, fields: Mapping[str, Any]) -> Any:
        assert self._client is not None
        body = {self.environment.key: self._session, **fields}
        return await self._client.post(f"{self.environment.path}{path}", body)

    async def _get(self, path: str) -> Any:
        assert self._client is not None
        return await self._client.get(path, {self.environment.key: self._session})

    async def _end_session(self) -> None:
        if self._session is None:
            return
        session, self._session = self._session, None
        self._sessions.give_back(session, self._holder)
        if not self.environment.closes or self._holder.lost:
            return  # a lost session belongs to another episode now
        assert self._client is not None
        body = {self.environment.key: session}
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._client.post(f"{self.environment.path}/close", body)
        except (InfrastructureError, TimeoutError) as error:
            # The episode's result stands. The session may stay on the server until this is restarted.
            logger.warning("session %d of %s was not closed: %s", session, self.url, error)

    async def _close(self) -> None:
        try:
            await self._end_session()
        finally:
            if self._client is not None:
                await self._client.close()
            if self._slot is not None:
                self._slot.release()

    @contextlib.contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        """Context manager: an answer that has not the expected form is a failure of the server."""
        try:
            yield
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise InfrastructureError(
                f"{self.url}{path}: the answer is not that of {self.environment.name}"
                f" ({type(error).__name__}: {error})"
            ) from error


def data_id(environment: Environment, seed: int, ids: range | None) -> int:
    """Returns the id of the task that a seed chooses out of `ids`. Without `ids`, a seed below
    `VALIDATION_SEED` chooses a task for training, any other a task that is held out."""
    if ids is None and seed >= VALIDATION_SEED:
        return environment.test[(seed - VALIDATION_SEED) % len(environment.test)]
    ids = environment.train if ids is None else ids
    return ids[seed % len(ids)]


def _no_error(answer: Any, path: str) -> Any:
    if isinstance(answer, ErrorBody):
        raise InfrastructureError(f"{path}: the server failed: {answer.text}")
    return answer


def _shown(text: str) -> Observation:
    if len(text) <= MAX_OBSERVATION:
        return Observation(text)
    kept = text[: MAX_OBSERVATION // 2], text[-MAX_OBSERVATION // 2 :]
    cut = len(text) - MAX_OBSERVATION
    return Observation(f"{kept[0]}\n[{cut} characters left out]\n{kept[1]}", truncated=True)
