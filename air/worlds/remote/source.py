"""The source of tasks such as `ors:URL`: environments that a server plays by a protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from air.actions.base import Action
from air.worlds.base import World
from air.worlds.remote.address import OptionsT, digest, parse
from air.worlds.sources import WorldTask

FACTS = {
    "num_actions": "number of actions",
    "action_is_valid": "share of the actions that the server took",
}


class RemoteSource(Generic[OptionsT]):
    """The tasks `KIND:URL` of one protocol, such as `ors` or `openenv`. The first request to the server is
    sent when an episode begins.

    `server` takes a URL and the settings; it returns a function that makes an episode's world on that server.
    """

    def __init__(
        self,
        kind: str,
        options: type[OptionsT],
        instructions: str,
        server: Callable[[str, OptionsT], Callable[[], World[Action]]],
    ) -> None:
        self._kind, self._options, self._instructions = kind, options, instructions
        self._server = server

    def load(self, name: str) -> WorldTask:
        """Returns the task with the name `URL`, or `URL#SETTINGS`."""
        task_id = f"{self._kind}:{name}"
        url, options = parse(task_id, name, self._options)
        return WorldTask(
            id=task_id,
            make=self._server(url, options),
            instructions=self._instructions,
            digest=digest(url, options),
            replays=False,
            max_turns=options.max_turns,
            seconds=options.seconds,
            facts=FACTS,
        )

    def names(self) -> list[str]:
        """Returns no names, because the addresses of servers are not known."""
        return []
