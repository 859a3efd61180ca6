"""The source of the tasks `ors:URL`."""

from __future__ import annotations

from air.worlds.ors.options import OrsOptions
from air.worlds.ors.world import OrsWorld
from air.worlds.remote.address import digest, parse
from air.worlds.sources import WorldTask

INSTRUCTIONS = "You solve a task by calling tools, one at a time."
FACTS = {
    "num_actions": "number of actions",
    "action_is_valid": "share of the actions that the server took",
}


class OrsSource:
    """The tasks `ors:URL`. The server is asked only when an episode begins."""

    def load(self, name: str) -> WorldTask:
        task_id = f"ors:{name}"
        url, options = parse(task_id, name, OrsOptions)
        return WorldTask(
            id=task_id,
            make=lambda: OrsWorld(url, options),
            instructions=INSTRUCTIONS,
            digest=digest(url, options),
            replays=False,
            max_turns=options.max_turns,
            seconds=options.seconds,
            facts=FACTS,
        )

    def names(self) -> list[str]:
        return []


SOURCE = OrsSource()
