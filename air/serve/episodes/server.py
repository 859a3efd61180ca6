"""The state that the protocols of a server of episodes share: its tasks, and a limit on the number of
clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from air.serve import server as http_server
from air.serve.app import BaseServer, Protocol
from air.serve.episodes.catalogue import Catalogue, catalogue
from air.serve.episodes.play import Play
from air.serve.episodes.settings import EpisodesConfig
from air.serve.log import Log
from air.serve.metrics import Metrics


class Full(Exception):
    """Error: the largest allowed number of clients is already playing."""


class Places:
    """Counts the clients that play, and refuses more than the server allows."""

    def __init__(self, total: int, metrics: Metrics) -> None:
        self.total, self.taken = total, 0
        metrics.gauge("air_serve_sessions", "Clients that play.", lambda: self.taken)
        metrics.gauge("air_serve_sessions_max", "Most clients at once.", lambda: self.total)

    def take(self) -> None:
        """Counts one more client. Raises Full if the server allows no more."""
        if self.taken >= self.total:
            raise Full(f"Server at capacity: {self.taken}/{self.total} sessions active")
        self.taken += 1

    def free(self) -> None:
        """Counts one client less."""
        self.taken -= 1


@dataclass(frozen=True)
class EpisodesServer(BaseServer):
    """The state that the protocols of a server of episodes share."""

    config: EpisodesConfig
    catalogue: Catalogue
    places: Places
    healthy: ClassVar[str] = "healthy"

    def facts(self) -> dict[str, Any]:
        sessions = {"open": self.places.taken, "max": self.places.total}
        return {"tasks": list(self.catalogue.offers), "sessions": sessions}

    def play(self, task: str, seed: int, on_end: Callable[[], None] = lambda: None) -> Play:
        """Returns a new episode, which `Play.start` begins. `on_end` is called once, after its end.

        Raises UsageError if the task is not offered.
        """
        return Play(self.catalogue.offer(task), seed, self._note, on_end)

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
    """Serves episodes until a signal arrives. Calls `say` with one line once the server accepts requests.

    Raises UsageError if the address is in use, or a task cannot be played here.
    """

    @asynccontextmanager
    async def opened(metrics: Metrics, log: Log) -> AsyncIterator[EpisodesServer]:
        places = Places(config.max_sessions, metrics)
        async with catalogue(config) as tasks:
            yield EpisodesServer(config, metrics, log, tasks, places)
        log.event("stop", sessions=places.taken)

    await http_server.run(config, opened, protocols, say=say, log=log)
