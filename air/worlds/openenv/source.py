"""The source of the tasks `openenv:URL`."""

from __future__ import annotations

from air.worlds.openenv.options import OpenEnvOptions
from air.worlds.openenv.world import OpenEnvWorld, Server
from air.worlds.remote.address import digest, parse
from air.worlds.sources import WorldTask

INSTRUCTIONS = "You act in an environment, one action at a time. It answers every action."
FACTS = {
    "num_actions": "number of actions",
    "action_is_valid": "share of the actions that the server took",
}


class OpenEnvSource:
    """The tasks `openenv:URL`. The server is asked only when an episode begins."""

    def load(self, name: str) -> WorldTask:
        task_id = f"openenv:{name}"
        url, options = parse(task_id, name, OpenEnvOptions)
        server = Server(url, options)
        return WorldTask(
            id=task_id,
            make=lambda: OpenEnvWorld(server),
            instructions=INSTRUCTIONS,
            digest=digest(url, options),
            replays=False,
            max_turns=options.max_turns,
            seconds=options.seconds,
            facts=FACTS,
        )

    def names(self) -> list[str]:
        return []


SOURCE = OpenEnvSource()
