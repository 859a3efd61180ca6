"""The state that the protocols of an episode server (`air serve openenv` or `air serve ors`) share: the
offered tasks, and a limit on the number of clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from air.serve.episodes.catalogue import Catalogue, catalogue
from air.serve.episodes.client_episode import ClientEpisode
from air.serve.episodes.settings import EpisodesConfig
from air.serve.http import server as http_server
from air.serve.http.app import BaseServer, Protocol
from air.serve.http.log import Log
from air.serve.http.metrics import Metrics


class Full(Exception):
    """Error: a client is refused, because as many clients as the server allows are playing episodes."""


class ClientLimit:
    """Counts the clients that play episodes, and enforces the server's limit on this count (`total`)."""

    def __init__(self, total: int, metrics: Metrics) -> None:
        self.total, self.taken = total, 0
        metrics.gauge("air_serve_sessions", "Clients that play.", lambda: self.taken)
        metrics.gauge("air_serve_sessions_max", "Most clients at once.", lambda: self.total)

    def take(self) -> None:
        """Adds one client to the count. Raises Full if the limit is reached."""
        if self.taken >= self.total:
            raise Full(f"Server at capacity: {self.taken}/{self.total} sessions active")
        self.taken += 1

    def free(self) -> None:
        """Subtracts one client from the count."""
        self.taken -= 1


@dataclass(frozen=True)
class EpisodesServer(BaseServer):
    """The state of an episode server (`air serve openenv` or `air serve ors`): settings, metrics, log, the
    offered tasks, and the limit on the number of clients that play."""

    config: EpisodesConfig
    catalogue: Catalogue
    client_limit: ClientLimit
    healthy: ClassVar[str] = "healthy"

    def health_fields(self) -> dict[str, Any]:
        sessions = {"open": self.client_limit.taken, "max": self.client_limit.total}
        return {"tasks": list(self.catalogue.tasks), "sessions": sessions}

    def new_episode(
        self, task: str, seed: int, on_end: Callable[[], None] = lambda: None
    ) -> ClientEpisode:
        """Returns a new episode of the task with the id `task`, with this random seed. The method
        `ClientEpisode.start` begins the episode. `on_end` is called once, after the episode's end.

        Raises UsageError if the server does not offer the task.
        """
        return ClientEpisode(self.catalogue.task(task), seed, self._note, on_end)

    def _note(self, task: str, how: str) -> None:
        text = "Episodes that ended: `done`, `left` by their clients, `expired`, or `failed`."
        self.metrics.add("air_serve_episodes_total", text, task=task, how=how)


async def serve_episodes(
    config: EpisodesConfig,
    protocols: Sequence[Callable[[EpisodesServer], Protocol]],
    *,
    say: Callable[[str], None] = print,
    log: Log | None = None,
) -> None:
    """Runs an episode server (`air serve openenv` or `air serve ors`) until SIGINT or SIGTERM. As soon as the
    server accepts requests, calls `say` with one line of text that contains the server's URL. `protocols` are
    the classes of the server's protocols; each is called with the server's state. `log` is the server's log
    (None: standard error).

    Raises UsageError if the address is in use, or a task does not exist or cannot run on this machine.
    """

    @asynccontextmanager
    async def opened(metrics: Metrics, log: Log) -> AsyncIterator[EpisodesServer]:
        client_limit = ClientLimit(config.max_sessions, metrics)
        async with catalogue(config) as tasks:
            yield EpisodesServer(config, metrics, log, tasks, client_limit)
        log.event("stop", sessions=client_limit.taken)

    await http_server.run(config, opened, protocols, say=say, log=log)
