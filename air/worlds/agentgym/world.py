"""A world (an environment in which an agent acts) whose episodes run in an AgentGym environment on a server.

The reward of an action is the increase of the best score so far, so that an episode's rewards add up to its
best score. The score is the environment's own. If the environment reports that the task can no longer be
solved (sciworld), the best score becomes 0, and the reward takes back what was earned.

If an action gets no result, `air.worlds.remote.attribution` determines whether the agent or the server is
the cause. A failure caused by the agent is an observation, and ends the episode if the session no longer
works. A failure of the server raises InfrastructureError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from air import aio
from air.actions.base import Action
from air.json_schema import not_plain
from air.worlds.agentgym.client import clean
from air.worlds.agentgym.environment import ActionResult, Environment, Unsendable
from air.worlds.agentgym.failure_rerun import Attempt
from air.worlds.agentgym.session import ERROR_BODY, Session
from air.worlds.agentgym.sessions import sessions_of
from air.worlds.base import Observation, Step
from air.worlds.remote.attribution import (
    PATIENCE,
    SERVER_LOCKS,
    SLOW,
    History,
    SlowAction,
    Unanswered,
    caused_by_agent,
    error_comes_again,
)
from air.worlds.remote.conversion import OVER
from air.worlds.sources import VALIDATION_SEED

MAX_ACTION = 8_000
"""The maximum length of an action that is sent to a server, in characters."""
MAX_OBSERVATION = 20_000
"""The maximum length of an observation, in characters."""


class AgentGymWorld:
    """A world that runs one episode of `environment` on the server at `url`.

    The seed selects a task from the task ids in `ids` (None: from the environment's training or held-out
    tasks; see `data_id`). If the conversation shall begin like a recorded trajectory, `recorded` is the first
    observation in that trajectory, else None (see `Environment.as_recorded`). `seconds` is the time limit of
    each request. `retry_seconds` is the pause after the first failed attempt to create a session. After a
    failed action, air waits at most `patience` seconds for the server to respond again.
    """

    def __init__(
        self,
        environment: Environment,
        url: str,
        ids: range | None = None,
        *,
        recorded: str | None = None,
        seconds: float = 120.0,
        retry_seconds: float = 0.5,
        patience: float = PATIENCE,
    ) -> None:
        self.environment, self.url, self._ids = environment, url, ids
        self._recorded = recorded
        self._seconds, self._retry_seconds, self._patience = seconds, retry_seconds, patience
        self._sessions = sessions_of(f"{environment.name}@{url}", environment.sessions)
        self._slot: asyncio.Semaphore | None = None
        self._session: Session | None = None
        self._data = 0
        self._history = History()
        self._closed = self._over = False
        self._best = self._raw = 0.0
        self._actions = self._valid = 0

    async def reset(self, seed: int) -> Observation:
        """Waits while the maximum number of sessions is in use, then creates a session on the server, starts
        the task that the seed selects, and returns the first observation. Raises RuntimeError at a second
        call or after `close`, and InfrastructureError if the server does not start the task."""
        if self._slot is not None or self._closed:
            raise RuntimeError("this world has begun already")
        slot = self._sessions.slots
        await slot.acquire()
        self._slot = slot
        self._data = data_id(self.environment, seed, self._ids)
        self._session = self._new_session()
        first = await self._session.begin(self._data)
        self._history.began(first)
        if self._recorded is not None:
            first = self.environment.as_recorded(self._recorded, first)
        return _as_observation(first)

    async def step(self, action: Action) -> Step:
        """Sends one action to the server and returns its result. After the end of the episode nothing is
        sent. Raises RuntimeError if the episode has not begun or the world is closed, and
        InfrastructureError if the server failed."""
        if self._over:
            return Step(Observation(OVER), done=True)
        session = self._session
        if session is None or not session.begun:
            raise RuntimeError("the episode has not begun, or the world is closed")
        self._actions += 1
        try:
            sent = _text_to_send(self.environment, action, session.answer)
        except Unsendable as refusal:
            return Step(Observation(str(refusal)))
        sent = clean(sent)
        await SERVER_LOCKS.wait(self.url)
        watch = SlowAction(lambda: self._attempt(session), self._seconds / 2)
        try:
            outcome = await watch.during(session.act(sent), repeats=self.environment.repeats)
        except Unanswered as failure:
            return await self._unanswered(session, sent, failure, watch.server_worked)
        self._history.answered(sent, outcome)
        return self._step(outcome)

    async def close(self) -> dict[str, Any]:
        """Closes the session and the connection. Returns a dict with the environment's name (`agentgym`) and
        the last score in the server's own scale (`raw_score`)."""
        if not self._closed:
            self._closed = True
            await aio.wait_shielded(self._close())
        return {"agentgym": self.environment.name, "raw_score": self._raw}

    def facts(self) -> Mapping[str, float]:
        """Returns numbers about the episode so far, by name: `success` (1 or 0), `best_score`, `raw_score`
        (the last one), `num_actions` and, if the environment's observations show which actions are valid,
        `action_is_valid`, the share of valid actions."""
        facts = {
            "success": float(self._best >= self.environment.success),
            "best_score": self._best,
            "raw_score": self._raw,
            "num_actions": float(self._actions),
        }
        if self.environment.refused:
            facts["action_is_valid"] = self._valid / self._actions if self._actions else 0.0
        return facts

    def _step(self, outcome: ActionResult) -> Step:
        self._raw, self._over = outcome.raw, outcome.done
        self._valid += not outcome.observation.startswith(self.environment.refused or ("\0",))
        best = 0.0 if outcome.failed else max(self._best, outcome.score)
        reward, self._best = best - self._best, best
        return Step(_as_observation(outcome.observation), done=outcome.done, reward=reward)

    async def _unanswered(
        self, session: Session, sent: str, failure: Unanswered, server_worked: bool
    ) -> Step:
        """Handles the action `sent`, which got no result. Returns a `Step` if the agent caused this, and
        raises `failure` otherwise. `server_worked` is the attribute of `SlowAction`: whether the server
        answered a harmless request in another session while the action had no answer yet."""
        # An error body is how servers say that they did not understand an action.
        refused = failure.kind == ERROR_BODY and await session.works()
        if refused and not await self._error_comes_again(session, sent):
            raise failure
        shown = refused or (server_worked and failure.kind == SLOW)
        if not shown and not await self._caused_by_agent(session, sent, failure.kind):
            raise failure
        refusal = failure.kind == ERROR_BODY or failure.kind.startswith("status")
        if refused or (refusal and not self.environment.shares and await session.works()):
            self._history.refused(sent, failure.kind)
            text = f"The environment could not carry out this action: {_reason(failure)}"
            return Step(_as_observation(text))
        self._over = True
        text = f"The environment gave no result for this action. {OVER}"
        return Step(Observation(text), done=True)

    async def _error_comes_again(self, session: Session, sent: str) -> bool:
        """Returns whether the agent caused an error: the server answered the action `sent` with an error
        body, but the session still works. To find out, the episode is repeated in another session, and the
        agent is the cause if the same error comes again. If the server shares a few sessions among its
        clients, the action is only sent again in the episode's own session. If actions may not be repeated,
        returns True."""
        if not self.environment.repeats:
            return True

        async def again() -> None:
            self._history.refused(sent, ERROR_BODY)  # the session has this action twice
            await session.act(sent)

        attempt = None if self.environment.shares else lambda: self._attempt(session)
        return await error_comes_again(attempt, self._history, sent, ERROR_BODY, again=again)

    async def _caused_by_agent(self, session: Session, sent: str, kind: str) -> bool:
        """Returns whether the agent, and not the server, caused the failure of the action `sent`.
        `attribution.caused_by_agent` decides by repeating the episode. `kind` is the kind of the failure."""
        return await caused_by_agent(
            lambda: self._attempt(session),
            self._history,
            sent,
            kind,
            alone=SERVER_LOCKS.of(self.url),
            repeats=self.environment.repeats,
        )

    def _attempt(self, session: Session) -> Attempt:
        # A server that shares its few sessions may have no other session to give.
        chosen = session if self.environment.shares else self._new_session()
        return Attempt(
            chosen,
            self._data,
            seconds=self._seconds,
            patience=self._patience,
            pause=2 * self._retry_seconds,
        )

    def _new_session(self) -> Session:
        return Session(
            self.environment,
            self.url,
            self._sessions,
            seconds=self._seconds,
            retry_seconds=self._retry_seconds,
        )

    async def _close(self) -> None:
        try:
            if self._session is not None:
                await self._session.close()
        finally:
            if self._slot is not None:
                self._slot.release()


def data_id(environment: Environment, seed: int, ids: range | None) -> int:
    """Returns the id of the task that a seed selects: the element of `ids` whose index is the seed modulo the
    number of ids. If `ids` is None, a seed below `VALIDATION_SEED` selects a training task in this way, and
    any other seed, counted from `VALIDATION_SEED`, a held-out task."""
    if ids is None and seed >= VALIDATION_SEED:
        return environment.test[(seed - VALIDATION_SEED) % len(environment.test)]
    ids = environment.train if ids is None else ids
    return ids[seed % len(ids)]


def _text_to_send(environment: Environment, action: Action, before: Any) -> str:
    """Converts an action to the text that is sent to the server. `before` is the server's previous response.
    Raises Unsendable if the action may not be sent. The length of the action is checked before the
    conversion, because the time of some conversions grows with the square of the length, and a conversion
    blocks the event loop of all episodes."""
    arguments = dict(action.tool.arguments or {}) if action.tool else {}
    if fault := not_plain(arguments):  # action formats refuse this, but a program may act, too
        raise Unsendable(f"The tool call {fault}.")
    _check_length((action.answer or action.text).strip())
    sent = environment.send(action, before)
    _check_length(sent)  # the conversion may have made it longer
    return sent


def _check_length(text: str) -> None:
    if len(text) > MAX_ACTION:
        raise Unsendable(f"The action exceeds {MAX_ACTION} characters.")


def _reason(failure: Unanswered) -> str:
    """Returns the description of a failure for the agent: the server's error text, or else the kind of
    failure. It never contains the server's URL."""
    return str(failure) if failure.kind == ERROR_BODY else f"{failure.kind}."


def _as_observation(text: str) -> Observation:
    if len(text) <= MAX_OBSERVATION:
        return Observation(text)
    kept = text[: MAX_OBSERVATION // 2], text[-MAX_OBSERVATION // 2 :]
    cut = len(text) - MAX_OBSERVATION
    return Observation(f"{kept[0]}\n[{cut} characters left out]\n{kept[1]}", truncated=True)
