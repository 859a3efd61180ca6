"""A session on an AgentGym server, in which one episode runs. Requests are sent one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from air import aio
from air.errors import InfrastructureError
from air.worlds.agentgym.client import Client, ErrorBody
from air.worlds.agentgym.environment import ActionResult, Environment
from air.worlds.agentgym.sessions import Holder, Sessions
from air.worlds.remote.attribution import Unanswered

logger = logging.getLogger(__name__)
CREATE_TRIES = 3
"""The maximum number of attempts to create a session and start its task. No later request is repeated,
because it could take effect twice."""
CLOSE_SECONDS = 10.0
"""The time limit, in seconds, for closing a session. If the creation of a session is cancelled, air also
waits this long for the server's response, so that it can close the new session."""
ERROR_BODY = "error body"
"""The kind of a failure (`Unanswered.kind`) in which the server responds with `{"error": TEXT}`."""


class Session:
    """A session of `environment` on the server at `url`, for one episode. `sessions` keeps track of all
    sessions of this process on the server. `seconds` is the time limit of each request. `begin` makes up to
    three attempts, with a pause of `retry_seconds` after the first failure, and twice as long after the
    second."""

    def __init__(
        self,
        environment: Environment,
        url: str,
        sessions: Sessions,
        *,
        seconds: float,
        retry_seconds: float,
    ) -> None:
        self.environment, self.url, self._sessions = environment, url, sessions
        self._retry_seconds = retry_seconds
        self._client = Client(url, seconds)
        self._id: int | None = None
        self._holder = Holder()
        self.answer: Any = None
        """The server's response to the last action or, before the first action, to the request that started
        the task."""

    @property
    def begun(self) -> bool:
        """Whether the session exists on the server."""
        return self._id is not None

    async def begin(self, data: int) -> str:
        """Creates the session, starts the task with the id `data`, and returns the first observation. Raises
        InfrastructureError if that fails `CREATE_TRIES` times."""
        for left in reversed(range(CREATE_TRIES)):
            try:
                return await self._begin(data)
            except InfrastructureError:
                await self._end()
                if not left:
                    raise
                await asyncio.sleep(self._retry_seconds * 2 ** (CREATE_TRIES - 1 - left))
        raise AssertionError

    async def restart(self, data: int) -> str:
        """Starts the task with the id `data` in the existing session, and returns the first observation.
        Raises InfrastructureError if the server cannot start it."""
        answer = await self._post("/reset", self.environment.reset(data))
        self.answer = _no_error(answer, "/reset")
        with self._reading("/reset"):
            if self.environment.reset_fault(self.answer):
                raise InfrastructureError(f"{self.url}/reset: the server could not start the task")
            first, path = self.answer, self.environment.first_path
            if path:
                first = _no_error(await self._get(path), path)
            return self.environment.first(first)

    async def act(self, sent: str, seconds: float | None = None) -> ActionResult:
        """Sends an action once, as the text `sent`, and returns the result. `seconds` is the time limit
        (None: that of the session's requests).

        Raises Unanswered if there is no usable result, and InfrastructureError if the server has given the
        session to another episode.
        """
        self._check_held()
        answer = await self._post("/step", {"action": sent}, seconds)
        self._check_held()
        if isinstance(answer, ErrorBody):
            raise Unanswered(answer.text, ERROR_BODY)
        with self._reading("/step"):
            outcome = self.environment.outcome(answer, sent)
        if outcome.fault:
            text = f"{self.url}/step: the server failed: {outcome.fault}"
            raise Unanswered(text, "fault")
        if not 0 <= outcome.score <= 1:
            text = f"{self.url}/step: the score {outcome.raw:g} is out of range"
            raise Unanswered(text, "score")
        self.answer = answer
        return outcome

    async def works(self) -> bool:
        """Returns whether the session still works, as shown by a harmless request: the environment's
        `probe_action` or, if there is none, a GET request for its `probe_path`."""
        environment = self.environment
        try:
            if environment.probe_action:
                answer = await self._post("/step", {"action": environment.probe_action})
            else:
                answer = await self._get(environment.probe_path)
        except Unanswered:
            return False
        return not self._holder.lost and not isinstance(answer, ErrorBody)

    async def close(self) -> None:
        """Closes the session, if the server has a request for it, and the connection."""
        try:
            await self._end()
        finally:
            await self._client.close()

    async def _begin(self, data: int) -> str:
        self._id = await self._create()
        self._holder = self._sessions.take(self._id)
        return await self.restart(data)

    async def _create(self) -> int:
        """Creates a session and returns its id. If the caller is cancelled meanwhile, waits up to
        `CLOSE_SECONDS` for the response, so that the new session can be closed. Raises InfrastructureError if
        the server creates no session, or has only sessions that are in use."""
        asking = asyncio.ensure_future(self._ask_for_session())
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            await aio.wait_shielded(asyncio.wait([asking], timeout=CLOSE_SECONDS))
            if asking.done() and not asking.cancelled() and asking.exception() is None:
                self._id = asking.result()
                self._holder = self._sessions.take(self._id)
            await aio.cancel_and_wait(asking)
            raise

    async def _ask_for_session(self) -> int:
        environment = self.environment
        path = f"{environment.path}/create"
        # A server that shares its sessions gives them out in turn, so an unused session comes soon.
        for _ in range(2 * environment.sessions if environment.shares else 1):
            answer = _no_error(await self._client.post(path, environment.create), path)
            with self._reading(path):
                session = environment.session(answer)
            if not (environment.shares and self._sessions.used(session)):
                return session
        raise InfrastructureError(f"{self.url}: all sessions of the server are in use")

    def _check_held(self) -> None:
        if self._holder.lost:
            raise InfrastructureError(
                f"{self.url} gave this episode's session to another one; was it restarted?"
            )

    async def _post(
        self, path: str, fields: Mapping[str, Any], seconds: float | None = None
    ) -> Any:
        body = {self.environment.key: self._id, **fields}
        return await self._client.post(f"{self.environment.path}{path}", body, seconds)

    async def _get(self, path: str) -> Any:
        return await self._client.get(path, {self.environment.key: self._id})

    async def _end(self) -> None:
        if self._id is None:
            return
        session, self._id = self._id, None
        self._sessions.give_back(session, self._holder)
        if not self.environment.closes or self._holder.lost:
            return  # a lost session belongs to another episode now
        body = {self.environment.key: session}
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._client.post(f"{self.environment.path}/close", body)
        except (InfrastructureError, TimeoutError) as error:
            # The episode's result is valid. The session may stay on the server until the server is restarted.
            logger.warning("session %d of %s was not closed: %s", session, self.url, error)

    @contextlib.contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        """Context manager that raises Unanswered if its `with` block fails because the server's response to
        `path` has an unexpected form."""
        try:
            yield
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise Unanswered(
                f"{self.url}{path}: the answer is not that of {self.environment.name}"
                f" ({type(error).__name__}: {error})",
                "form",
            ) from error


def _no_error(answer: Any, path: str) -> Any:
    if isinstance(answer, ErrorBody):
        raise Unanswered(f"{path}: the server failed: {answer.text}", ERROR_BODY)
    return answer
