"""The source of the tasks `KIND:URL`: environments that a server of some protocol plays."""

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
    """The tasks `KIND:URL` of a protocol. The server is asked only when an episode begins.

    `server` returns a function that makes an episode's world on the server at a URL.
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
        """Returns the task with a URL, and settings behind it."""
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
        """Returns no names: the addresses of servers are not known."""
        return []
