"""Loads tasks such as `ors:URL`, whose environments run on a remote server."""

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
    "num_null_rewards": "number of actions whose reward was null and counts as 0",
}


class RemoteSource(Generic[OptionsT]):
    """Loads the tasks `KIND:URL` of one protocol, such as `ors` or `openenv`. It implements
    `air.worlds.sources.WorldSource`.

    `kind` is the prefix of the task ids, `options` is the class of the settings, and `instructions` are the
    rules in the first prompt. `server` is a function that takes a URL and the settings; it returns a function
    that makes the world (the agent's environment) of one episode. No request is sent before an episode
    starts.
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
        """Returns the task with the name `URL` or `URL#SETTINGS`. Raises ConfigError if the URL or a
        setting is malformed."""
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

    def split(self, name: str) -> tuple[str, ...] | None:
        """Returns a tuple that identifies the set of tasks from which a seed selects one: (protocol, URL,
        environment or task, split). Two task ids with equal tuples draw from the same set. `name` is the part
        of the task id after the prefix: a URL with settings. Returns None if the settings name no split,
        because the server then chooses the task. Raises ConfigError if the URL or a setting is malformed."""
        url, options = parse(f"{self._kind}:{name}", name, self._options)
        within = getattr(options, "env", "") or getattr(options, "task", "")
        return (self._kind, url, within, options.split) if options.split else None

    def names(self) -> list[str]:
        """Returns the task names that the command `air tasks` lists: none, because the addresses of servers
        are not known in advance."""
        return []
