"""Handles the WebSocket of one OpenEnv client, over which the client plays episodes, one after the other. The
server closes the connection if the client sends nothing for too long."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from pydantic import ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from air import json_schema
from air.aio import cancel_and_wait, wait_shielded
from air.errors import UsageError
from air.serve.episodes.client_episode import ClientEpisode, EpisodeFailed, NoRunningEpisode
from air.serve.episodes.server import EpisodesServer
from air.serve.episodes.task_routes import problems
from air.serve.openenv import messages

MOST_WAITING = 64
"""The maximum number of messages from one client that wait for their responses. A client that sends more is
disconnected."""
MOST_SEED = 1 << 31


class _Bye(Exception):
    """Raised when the client has sent the message `close`, so that the connection must be closed."""


class Session:
    """The WebSocket connection of one OpenEnv client. When the connection ends, a running episode of the
    client is ended at once."""

    def __init__(self, server: EpisodesServer, socket: WebSocket) -> None:
        self._server, self._socket = server, socket
        self._episode: ClientEpisode | None = None
        self._episode_id: str | None = None
        self._waiting: asyncio.Queue[str] = asyncio.Queue(MOST_WAITING)
        self._size = 0
        """The total length, in characters, of the messages that wait for their responses."""

    async def run(self) -> None:
        """Handles the client's messages, until the client disconnects or the server must close the
        connection. Then ends the client's episode, which frees its box (if it has one)."""
        reading = asyncio.create_task(self._read())
        working = asyncio.create_task(self._work())
        try:
            await asyncio.wait([reading, working], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(reading)
            await cancel_and_wait(working)
            if self._episode is not None:
                await wait_shielded(self._episode.close())
        for task in (reading, working):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _read(self) -> None:
        """Receives the client's messages, and stores them for `_work`, which handles them. Returns when the
        client has disconnected, or when too many messages wait for responses."""
        while True:
            try:
                message = await self._socket.receive_text()
            except (WebSocketDisconnect, KeyError):  # KeyError: a message of bytes
                return
            self._size += len(message)
            if self._waiting.full() or self._size > self._server.config.max_body_mb * 2**20:
                text = "too many or too large messages wait for answers"
                await self._send(messages.error("SESSION_ERROR", text))
                return
            self._waiting.put_nowait(message)

    async def _work(self) -> None:
        idle = self._server.config.idle_seconds
        while True:
            try:
                async with asyncio.timeout(idle):
                    message = await self._waiting.get()
            except TimeoutError:
                text = f"no message for {idle:g} s: the session is over"
                await self._send(messages.error("SESSION_ERROR", text))
                return
            self._size -= len(message)
            try:
                answer = await self._answer(message)
            except messages.InvalidMessage as problem:
                answer = problem.frame
            except EpisodeFailed as error:
                await self._send(messages.error("SESSION_ERROR", str(error)))
                return
            except _Bye:
                return
            await self._send(answer)

    async def _send(self, text: str) -> None:
        if self._socket.application_state is WebSocketState.CONNECTED:
            await self._socket.send_text(text)

    async def _answer(self, message: str) -> str:
        kind, data = messages.parse(message)
        try:
            if kind == "reset":
                return await self._reset(messages.Reset.model_validate(data))
            if kind == "step":
                return await self._step(messages.step_kind(data).model_validate(data))
        except ValidationError as error:
            raise messages.InvalidMessage(
                "VALIDATION_ERROR", "Invalid message", errors=problems(error)
            ) from None
        except (NoRunningEpisode, UsageError) as error:
            raise messages.InvalidMessage("EXECUTION_ERROR", str(error)) from None
        if kind == "state":
            return messages.text("state", self._state())
        if kind == "mcp":
            return messages.text("mcp", rpc(self._server, data, self._episode))
        raise _Bye

    async def _reset(self, wanted: messages.Reset) -> str:
        task, seed = self._chosen(wanted)
        episode = self._server.new_episode(task, seed)
        if self._episode is not None:
            await self._episode.close()
        self._episode, self._episode_id = episode, wanted.episode_id or episode.id
        prompt = await episode.start()
        return messages.first(
            prompt, {"task": task, "seed": seed, "max_turns": episode.task.max_turns}
        )

    def _chosen(self, wanted: messages.Reset) -> tuple[str, int]:
        catalogue = self._server.catalogue
        if wanted.split is not None or wanted.index is not None:
            if wanted.task is not None or wanted.split is None or wanted.index is None:
                raise UsageError("give `split` and `index` together, without `task`")
            task, seed = catalogue.entry(wanted.split, wanted.index)
        elif wanted.task is None and len(catalogue.tasks) > 1:
            raise UsageError(
                "the server offers several tasks",
                remedy=f"give `task`: {', '.join(catalogue.tasks)}",
            )
        else:
            task, seed = wanted.task or next(iter(catalogue.tasks)), secrets.randbelow(MOST_SEED)
            catalogue.task(task)
        return task, seed if wanted.seed is None else wanted.seed

    async def _step(
        self, action: messages.MessageAction | messages.ListTools | messages.CallTool
    ) -> str:
        if isinstance(action, messages.ListTools):
            return messages.of_tools(messages.described(tools(self._server, self._episode)))
        if self._episode is None:
            raise NoRunningEpisode("no episode has begun: send `reset` first")
        if self._episode.failed:
            raise EpisodeFailed("the time of the episode was over, and the server ended it")
        if isinstance(action, messages.CallTool):
            turn = await self._episode.call(action.tool_name, action.arguments)
        else:
            turn = await self._episode.say(action.message)
        return messages.of_turn(turn, action)

    def _state(self) -> dict[str, Any]:
        episode = self._episode
        if episode is None:
            return {"episode_id": None, "step_count": 0, "task": None}
        return {
            "episode_id": self._episode_id,
            "step_count": episode.turns,
            "task": episode.task.id,
        }


def tools(server: EpisodesServer, episode: ClientEpisode | None) -> tuple[Any, ...]:
    """Returns the descriptions of the tools in an episode, in OpenAI's form. If `episode` is None, returns
    the tools of the server's first task."""
    task = next(iter(server.catalogue.tasks.values())) if episode is None else episode.task
    return tuple(task.tools)


def rpc(
    server: EpisodesServer, request: Any, episode: ClientEpisode | None = None
) -> dict[str, Any]:
    """Handles `request`, a JSON-RPC request of MCP (Model Context Protocol), and returns the response, both
    as JSON values. The only supported method is `tools/list`, which lists the tools of `episode` (None: those
    of the server's first task). A client calls tools by the WebSocket message `step` instead, because only
    steps have rewards."""
    wanted = request if isinstance(request, dict) else {}
    ident = wanted.get("id")
    is_id = not isinstance(ident, dict | list) and not json_schema.not_plain(ident)
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": ident if is_id else None}
    if wanted.get("jsonrpc") != "2.0" or not is_id:
        return answer | {"error": {"code": -32600, "message": "Invalid Request"}}
    if wanted.get("method") == "tools/list":
        return answer | {"result": {"tools": messages.described(tools(server, episode))}}
    text = "Method not found: call tools by steps of the type `call_tool`, which have rewards"
    return answer | {"error": {"code": -32601, "message": text}}
