"""The sessions of clients of ORS (Open Reward Standard, an HTTP protocol with which clients play episodes of
a server's tasks). A session is one episode of one client, with an id that only this client knows."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

from air.aio import cancel_and_wait, wait_shielded
from air.errors import UsageError
from air.serve.episodes.client_episode import (
    ClientEpisode,
    EpisodeFailed,
    NoRunningEpisode,
    Turn,
    UnknownTool,
)
from air.serve.episodes.server import EpisodesServer, Full
from air.serve.episodes.task_routes import Refused

MOST_CALLS = 8
"""The maximum number of tool calls in one session that have not ended. Further calls are refused."""
KEPT_CALLS = 4
"""The number of the latest ended tool calls whose results a session keeps, so that the client can request
them again after a lost connection."""
OVER_SECONDS = 120.0
"""Seconds for which a session is kept after its episode has ended, so that the client can request the last
result again. If the setting `idle_seconds` is smaller, it is used instead. Pings of the client do not prolong
this time."""
MOST_IDS = 10_000
"""The maximum number of session ids that clients have received but not yet used. If there are more, the
oldest id becomes invalid."""


class Session:
    """One episode that a client plays by calling tools. The tool calls run one after the other. `prompt` is
    the first text for the agent."""

    def __init__(self, episode: ClientEpisode, prompt: str) -> None:
        self.episode, self.prompt = episode, prompt
        self.seen = time.monotonic()
        self._lock = asyncio.Lock()
        self._calls: dict[str, asyncio.Task[str]] = {}
        self._closed = False

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Starts a tool call in the background, and returns the call's id at once; `find` returns the running
        call by this id. Raises Refused if `MOST_CALLS` calls have not ended yet, or if the session has been
        closed meanwhile."""
        if self._closed:
            raise _no_session()
        running = [task_id for task_id, call in self._calls.items() if not call.done()]
        if len(running) >= MOST_CALLS:
            raise Refused(429, f"{MOST_CALLS} calls of this session have not ended")
        for task_id in [key for key in self._calls if key not in running][: -KEPT_CALLS or None]:
            del self._calls[task_id]
        task_id = uuid.uuid4().hex
        self._calls[task_id] = asyncio.create_task(self._called(name, arguments))
        return task_id

    def find(self, task_id: str) -> asyncio.Task[str] | None:
        """Returns the asyncio task that runs (or ran) the tool call with the id `task_id`; its result is the
        JSON text for the client. Returns None if this session has no such call, or has dropped its result."""
        return self._calls.get(task_id)

    @property
    def busy(self) -> bool:
        """Whether a tool call of this session has not ended yet."""
        return any(not call.done() for call in self._calls.values())

    async def close(self) -> None:
        """Cancels the tool calls of this session (an episode of a client), and ends the episode."""
        self._closed = True
        for call in self._calls.values():
            await cancel_and_wait(call)
        await self.episode.close()

    async def _called(self, name: str, arguments: Mapping[str, Any]) -> str:
        async with self._lock:
            try:
                turn = await self.episode.call(name, arguments)
            except NoRunningEpisode as error:
                body = {"ok": False, "error": str(error), "reason": "episode_finished"}
                return json.dumps(body)
            finally:
                self.seen = time.monotonic()
        return json.dumps(_result(turn), allow_nan=False)


def _result(turn: Turn) -> dict[str, Any]:
    """Converts the result of a tool call to the JSON object that clients get. `ok` is true and `output` has
    the observation, the reward, and whether the episode has ended; but for an invalid call, `ok` is false,
    and `error` and `reason` say why. An invalid call that ended the episode counts as `ok`, and has the final
    reward."""
    if turn.invalid_action is not None and not turn.done:
        reason = "not_found" if isinstance(turn.invalid_action, UnknownTool) else "input_validation"
        return {"ok": False, "error": turn.text, "reason": reason}
    output = {
        "blocks": [{"type": "text", "text": turn.text, "detail": None}],
        "metadata": dict(turn.metadata),
        "reward": turn.reward,
        "finished": turn.done,
    }
    return {"ok": True, "output": output}


def _no_session() -> Refused:
    """Returns the error (status 404) for a client that names a session that does not exist."""
    return Refused(404, "Active environment not found")


class Sessions:
    """All sessions (episodes of clients) of a server. A session is deleted if its client sends nothing for
    longer than the setting `idle_seconds`, and also `OVER_SECONDS` after its episode has ended."""

    def __init__(self, server: EpisodesServer) -> None:
        self._server = server
        self._ids: dict[str, None] = {}
        self._sessions: dict[str, Session | None] = {}
        """Maps the id of each session to the session, or to None while its episode is being started."""

    def new_id(self) -> str:
        """Creates and returns a session id, which nobody can guess. The client uses it to create a
        session."""
        session_id = str(uuid.uuid4())
        self._ids[session_id] = None
        while len(self._ids) > MOST_IDS:
            del self._ids[next(iter(self._ids))]
        return session_id

    async def create(self, session_id: str, task: str, seed: int) -> None:
        """Creates a session and starts its episode. `session_id` is an id from `new_id` that no session uses
        yet, `task` is the task's id, and `seed` the random seed. Raises Refused if the id is invalid, the
        server is full or the start fails, and UsageError if the server does not offer the task."""
        if session_id in self._sessions:
            raise Refused(400, "Session already exists")
        if session_id not in self._ids:
            raise Refused(400, "Unknown session id: POST /create_session gives one")
        client_limit = self._server.client_limit
        episode = self._server.new_episode(task, seed, client_limit.free)
        try:
            client_limit.take()
        except Full as error:
            raise Refused(429, str(error)) from None
        del self._ids[session_id]
        self._sessions[session_id] = None
        try:
            prompt = await episode.start()
        except BaseException as error:  # cancellation too: the id must not stay occupied
            self._sessions.pop(session_id, None)  # its client may have deleted it meanwhile
            if isinstance(error, EpisodeFailed):
                raise Refused(500, str(error)) from error
            raise
        if session_id not in self._sessions:  # deleted meanwhile
            await episode.close()
            raise Refused(410, "Session deleted")
        self._sessions[session_id] = Session(episode, prompt)

    def find(self, session_id: str) -> Session:
        """Returns the session with this id, and notes that its client is still active, so that the session is
        not deleted as idle. Raises Refused if there is no such session."""
        session = self._sessions.get(session_id)
        if session is None:
            raise _no_session()
        session.seen = time.monotonic()
        return session

    async def delete(self, session_id: str) -> None:
        """Ends the episode of the session with this id, frees its box (if it has one), and deletes the
        session. Does nothing if there is no such session."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            await wait_shielded(session.close())

    async def reap(self) -> None:
        """Runs until it is cancelled, and deletes old sessions: those whose clients have sent nothing for
        longer than the setting `idle_seconds`, and those whose episodes ended more than `OVER_SECONDS` (at
        most `idle_seconds`) ago."""
        idle = self._server.config.idle_seconds
        while True:
            await asyncio.sleep(min(5.0, idle / 4))
            now = time.monotonic()
            for session_id, session in list(self._sessions.items()):
                if session is None or session.busy:
                    continue
                over = session.episode.over_since
                if now - session.seen > idle or now - over > min(idle, OVER_SECONDS):
                    await self.delete(session_id)

    @property
    def count(self) -> int:
        """The number of sessions (episodes of clients), including those whose episode has ended."""
        return len(self._sessions)

    async def close(self) -> None:
        """Deletes all sessions, and ends their episodes."""
        for session_id in list(self._sessions):
            await self.delete(session_id)

    def chosen(
        self, spec: Mapping[str, Any] | None, split: str | None, index: int | None
    ) -> tuple[str, int]:
        """Returns the task's id and the random seed that a client chose: either by `spec`, an object with
        `task` and `seed`, or by `split` and `index`, an entry in the server's list of episodes (see
        `Catalogue.entry`). Raises UsageError if the choice is invalid."""
        if (spec is None) == (split is None or index is None) or (split is None) != (index is None):
            raise UsageError("give `task_spec`, or `split` and `index`")
        if spec is None:
            assert split is not None
            assert index is not None
            return self._server.catalogue.entry(split, index)
        task, seed = spec.get("task"), spec.get("seed")
        number = isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 1 << 63
        if set(spec) != {"task", "seed"} or not isinstance(task, str) or not number:
            raise UsageError("`task_spec` has `task`, an id, and `seed`, a number not below 0")
        assert isinstance(seed, int)
        return self._server.catalogue.task(task).id, seed
