"""Starts the servers of the remote worlds that `bench/worlds` measures, each as a process of its own on
loopback: `air serve openenv` and `air serve ors` with a game, and the AgentGym server of the tests, whose
game is a corridor."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from air.actions.base import Action
from air.worlds import sources
from air.worlds.games import game_kind

GAME = "sokoban6"
"""The game that the OpenEnv server and the ORS server offer."""
TITLES = {
    "openenv": f"openenv, game:{GAME}",
    "ors": f"ors, game:{GAME}",
    "agentgym": "agentgym, a corridor",
}
"""The rows of the table, by the kind of server."""
KINDS = tuple(TITLES)
SESSIONS_EACH = 4
"""The number of sessions that a server allows for each simultaneous episode. A closed session may take a
moment to end, and the next episode must not wait for it."""
_ROOT = Path(__file__).parents[2]


def command(kind: str, at_once: int) -> list[str]:
    """Returns the command that starts the server of a kind for `at_once` simultaneous episodes."""
    if kind == "agentgym":
        return [sys.executable, "-m", "tests.environment_server"]
    sessions = str(SESSIONS_EACH * at_once)
    serve = [sys.executable, "-m", "air.cli.main", "serve", kind, f"game:{GAME}"]
    return [*serve, "--port", "0", "--max-sessions", sessions]


def task_id(kind: str, url: str) -> str:
    """Returns the id of the task that is played on a server."""
    return f"agentgym:textcraft@{url}" if kind == "agentgym" else f"{kind}:{url}"


@contextmanager
def serving(kinds: Sequence[str], at_once: int) -> Iterator[dict[str, str]]:
    """Context manager: runs a server of each kind, and yields the ids of their tasks by kind. The servers
    start at the same time."""
    with ExitStack() as stack:
        servers = {}
        for kind in kinds:
            log = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = subprocess.Popen(
                command(kind, at_once), cwd=_ROOT, stdout=subprocess.PIPE, stderr=log, text=True
            )
            stack.callback(_stop, process)
            servers[kind] = process, log
        ids = {}
        for kind, (process, log) in servers.items():
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("serving on "):
                log.seek(0)
                sys.exit(f"the server of {kind} did not start: {log.read()}")
            ids[kind] = task_id(kind, line.split()[-1])
        yield ids


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


async def play(task_id: str, seeds: Iterator[int]) -> int:
    """Plays an episode with random actions; returns the number of turns."""
    task, seed = sources.load(task_id), next(seeds)
    moves = ("forward", "back") if task_id.startswith("agentgym:") else game_kind(GAME).make().moves
    draw, world = random.Random(seed), task.world()
    try:
        await world.reset(seed)
        played, done = 0, False
        while not done and played < task.max_turns:
            done = (await world.step(Action(answer=draw.choice(moves)))).done
            played += 1
        return played
    finally:
        await world.close()
