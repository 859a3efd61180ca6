"""`air serve openenv` with a research task: rewards as in air's own episodes, and boxes that never stay."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from air.serve.episodes.research import OfferedResearchTask
from tests.episodes_server import serving
from tests.until import until

pytestmark = pytest.mark.docker
GOOD = "echo 'method=4 level=2' > config\npython3 solve.py"


async def ask(socket: ClientConnection, kind: str, **data: Any) -> dict[str, Any]:
    await socket.send(json.dumps({"type": kind, "data": data}))
    answer: dict[str, Any] = json.loads(await socket.recv())["data"]
    return answer


async def test_rewards_and_boxes() -> None:
    async with serving("titanic", max_sessions=2, max_turns=4) as served:
        task = served.server.catalogue.task("titanic")
        assert isinstance(task, OfferedResearchTask)
        assert task.env._boxes is not None
        pool = task.env._boxes.agents
        address = served.url.replace("http", "ws") + "/ws"
        async with connect(address, proxy=None) as socket:
            first = await ask(socket, "reset", seed=1)
            assert "Titanic" in first["observation"]["text"]
            nothing = await ask(socket, "step", message="ls")
            assert nothing["reward"] is None
            half = await ask(socket, "step", message="validate\nls")
            assert "last line" in half["observation"]["text"]
            assert half["reward"] is None
            good = await ask(socket, "step", message=f"{GOOD}\nvalidate")
            assert good["reward"] > 0.5
            # At the limit the artefact is scored once more, so that what it lost counts.
            last = await ask(socket, "step", message="rm submission.csv")
            assert last["done"]
            assert good["reward"] + last["reward"] == pytest.approx(-1.0)  # the lowest φ
            await until(lambda: pool.stats.live == 0)  # before the client leaves
            # A client that leaves during a long command frees its box as well.
            await ask(socket, "reset", seed=2)
            assert pool.stats.live == 1
            await socket.send(json.dumps({"type": "step", "data": {"message": "sleep 600"}}))
            await asyncio.sleep(0.2)
        await until(lambda: pool.stats.live == 0)
    assert served.ended("left") == 1
