"""The stock packages `openenv` and `openreward` against air: `make test-openenv`."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from air.actions.base import Action, ToolCall
from air.errors import InfrastructureError
from air.serve.ors.protocol import Ors
from air.worlds import sources
from air.worlds.base import World
from tests.episodes_server import serving

pytestmark = pytest.mark.openenv
HERE = Path(__file__).parent
SECONDS = 300
TASK = "question:gsm8k5"


def stock(script: str, *args: str) -> subprocess.Popen[str]:
    """A process of the interpreter that has the stock packages."""
    argv = [os.environ["AIR_OPENENV_PYTHON"], str(HERE / script), *args]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


async def client(kind: str, url: str) -> dict[str, Any]:
    """What a stock client saw."""
    process = await asyncio.to_thread(stock, "stock_client.py", kind, url)
    said, _ = await asyncio.to_thread(process.communicate, None, SECONDS)
    assert process.returncode == 0
    result: dict[str, Any] = json.loads(said.splitlines()[-1])
    return result


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_stock_client_plays(kind: str) -> None:
    async with serving(TASK, max_sessions=1) as served:
        seen = await client(kind, served.url)
        assert seen["before"] == "no episode has begun: send `reset` first (code: EXECUTION_ERROR)"
        assert seen["after"] == "the episode is over (code: EXECUTION_ERROR)"
        assert "session" in seen["second"] or "capacity" in seen["second"]
        assert seen["tools"] == ["act"]
        world = sources.load(TASK).world()
        first = await world.reset(3)
        assert seen["first"].endswith(first.text)
        rewards = [(await world.step(Action(answer=answer))).reward for answer in ("5", "6")]
        assert seen["rewards"][:2] == rewards
        assert seen["done"]
        assert served.ended("done") == 1


async def test_a_stock_ors_client_plays() -> None:
    async with serving(TASK, protocol=Ors) as served:
        seen = await client("ors", served.url)
        world = sources.load(TASK).world()
        first = await world.reset(3)
        assert seen["prompt"].endswith(first.text)
        rewards = [(await world.step(Action(answer=answer))).reward for answer in ("5", "6")]
        assert seen["rewards"][:2] == rewards
        assert "not_found" in seen["unknown"]
        assert "episode_finished" in seen["after"]
        assert seen["tasks"] == 100


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    """The URLs of stock servers, by kind."""
    urls, processes = {}, []
    for kind in ("text", "fields", "tools"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        urls[kind] = f"http://127.0.0.1:{port}"
        processes.append(stock("stock_server.py", kind, str(port), "2"))
    for url in urls.values():
        for _ in range(SECONDS * 2):
            try:
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            asyncio.run(asyncio.sleep(0.5))
    yield urls
    for process in processes:
        process.terminate()
        process.wait(SECONDS)
        assert process.stdout is not None
        process.stdout.close()


def world_of(url: str, settings: str = "") -> World[Action]:
    return sources.load(f"openenv:{url}#{settings}" if settings else f"openenv:{url}").world()


async def test_text(server: dict[str, str]) -> None:
    world = world_of(server["text"] + "/")
    assert "Guess the number" in (await world.reset(13)).text
    wrong = await world.step(Action(answer="1"))
    assert (wrong.reward, wrong.done) == (0.0, False)
    right = await world.step(Action(answer="3"))
    assert (right.reward, right.done) == (1.0, True)
    await world.close()


async def test_more_clients_than_places(server: dict[str, str]) -> None:
    async def one(seed: int) -> float:
        world = world_of(server["text"])
        await world.reset(seed)
        step = await world.step(Action(answer=str(seed % 10)))
        await world.close()
        return step.reward

    assert await asyncio.gather(*(one(seed) for seed in range(20))) == [1.0] * 20


async def test_a_step_that_raises(server: dict[str, str]) -> None:
    world = world_of(server["text"], "errors=failure")
    await world.reset(3)
    for answer in ("raise", "3"):
        with pytest.raises(InfrastructureError, match="the environment is broken"):
            await world.step(Action(answer=answer))
    await world.close()
    world = world_of(server["text"])  # the error comes again, so the agent caused it
    await world.reset(3)
    assert "broken" in (await world.step(Action(answer="raise"))).observation.text
    assert (await world.step(Action(answer="3"))).reward == 1.0
    await world.close()


@pytest.mark.parametrize("attach", ["false", "true"])
async def test_a_split(server: dict[str, str], attach: str) -> None:
    world = world_of(server["text"], f"split=train&attach={attach}")
    assert "'train'" in (await world.reset(7)).text
    assert (await world.step(Action(answer="13"))).reward == 1.0  # task 7 % 4 of the split
    await world.close()


async def test_an_attached_session_survives_a_drop_between_steps(server: dict[str, str]) -> None:
    world = world_of(server["text"], "attach=true")
    await world.reset(3)
    await world.step(Action(answer="1"))
    socket = world._connection._socket  # type: ignore[attr-defined]
    socket.transport.abort()
    await socket.wait_closed()
    step = await world.step(Action(answer="3"))
    assert step.reward == 1.0
    assert "tries: 2" in step.observation.text  # the same environment
    await world.close()


async def test_fields(server: dict[str, str]) -> None:
    world = world_of(server["fields"])
    assert '"left"' in (await world.reset(3)).text
    assert "JSON" in (await world.step(Action(answer="hello"))).observation.text
    assert "Field required" in (await world.step(Action(answer='{"left": 1}'))).observation.text
    assert (await world.step(Action(answer='{"left": 1, "right": 2}'))).done
    assert world.facts() == {
        "num_actions": 3.0,
        "action_is_valid": pytest.approx(1 / 3),
        "num_null_rewards": 0.0,
    }
    await world.close()


async def test_tools(server: dict[str, str]) -> None:
    world = world_of(server["tools"])
    first = (await world.reset(0)).text
    assert "What is 6 * 7?" in first
    assert "- add: Adds two numbers." in first
    step = await world.step(Action(answer='{"name": "add", "arguments": {"a": 1, "b": 2}}'))
    assert step.observation.text == "3"
    unknown = await world.step(Action(tool=ToolCall("nope", arguments={})))
    assert "nope" in unknown.observation.text
    right = await world.step(Action(tool=ToolCall("answer", ("42",), arguments={"number": 42})))
    assert (right.reward, right.done, right.observation.text) == (1.0, True, "right")
    await world.close()
