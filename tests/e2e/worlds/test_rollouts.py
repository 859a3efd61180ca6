"""`POST /rollouts`: episodes of worlds with a scripted and with a real small model."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from air.serve.http.app import application
from air.serve.http.log import Log
from air.serve.http.metrics import Metrics
from air.serve.rollouts.server import Rollouts, opened
from air.serve.rollouts.settings import RolloutsConfig
from air.testing import Letters, ScriptedServer, reasoned, replies
from air.train.model.policy import load
from air.train.serving.server import InferenceServer
from tests.environment_server import LENGTH, FaultyServer

LETTERS = "air.testing:letters"
DOORS = "tests.e2e.worlds.tool_world:doors"


@asynccontextmanager
async def service(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server of rollouts."""
    config = RolloutsConfig(**settings)
    async with opened(config, Metrics(), Log(io.StringIO())) as server:
        transport = httpx.ASGITransport(application(server, [Rollouts(server)]))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


async def rollouts(client: httpx.AsyncClient, url: str, env: str, **body: Any) -> dict[str, Any]:
    """Sends a request that must succeed, and returns the answer."""
    body = {"env": env, "model": "m", "base_url": url, "max_round": 10, **body}
    response = await client.post("/rollouts", json=body, timeout=300)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.parametrize("ending", ["", "/"])
async def test_order_and_duplicates_are_kept(ending: str) -> None:
    with ScriptedServer(replies("aeiou", "aeiou", "xyz")) as model:
        async with service(max_episodes=3) as client:
            url = model.url.removesuffix("/v1") + ending
            answer = await rollouts(client, url, LETTERS, ids=[3, 1, 3], n=2)
            same = await rollouts(client, model.url, LETTERS, ids=[3])
            health = (await client.get("/health")).json()
            assert "air_serve_rollouts_total" in (await client.get("/metrics")).text
    played = answer["rollouts"]
    assert [(one["id"], one["sample"]) for one in played] == [
        *((3, 0), (3, 1), (1, 0), (1, 1), (3, 0), (3, 1)),
    ]
    for one in [*played, *same["rollouts"]]:
        assert one["rewards"] == [1, 1, 0]
        assert one["score"] == one["raw_score"] == 2
        assert (one["success"], one["done"], one["stop_reason"]) == (False, True, "done")
        assert one["rounds"] == Letters.TURNS
        assert one["error"] is None
        spoken = [(m["from"], m["loss"]) for m in one["conversation"] if m["from"] == "gpt"]
        assert spoken == [("gpt", True)] * Letters.TURNS
        assert one["conversation"][0]["from"] == "system"
    firsts = [one["conversation"][1]["value"] for one in played]
    assert firsts[0] == firsts[1] == firsts[4]
    assert (answer["mean_score"], answer["success_rate"]) == (2, 0)
    assert health["rollouts"]["requests"] == 0


async def test_a_limit_of_rounds_ends_an_episode_with_its_score() -> None:
    with ScriptedServer(replies("aeiou", "aeiou")) as model:
        async with service() as client:
            answer = await rollouts(client, model.url, LETTERS, ids=[0], max_round=2)
    (one,) = answer["rollouts"]
    assert (one["stop_reason"], one["done"], one["score"]) == ("max_round", False, 2)


async def test_failures_have_no_score() -> None:
    with ScriptedServer(replies("a")) as model:
        async with service() as client:
            world = await rollouts(client, model.url, "air.testing:unreachable", ids=[0, 1])
            url = model.url
    async with service() as client:  # nobody listens there any more
        silent = await rollouts(client, url, LETTERS, ids=[0])
    for answer, reason in ((world, "env_error"), (silent, "model_error")):
        assert answer["mean_score"] is answer["success_rate"] is None
        for one in answer["rollouts"]:
            assert one["score"] is one["raw_score"] is one["success"] is None
            assert one["stop_reason"] == reason
            assert one["error"]
            assert not one["done"]
            assert not one["rewards"]


@pytest.mark.parametrize(
    ("changes", "status", "text"),
    [
        ({"env": "no-such-task"}, 400, "no-such-task"),
        ({"env": "agentgym:textcraft:3@http://h"}, 400, "ids"),
        ({"env": "agentgym:textcraft@http://h", "ids": [544]}, 400, "0 to 543"),
        ({"action_format": "fenced"}, 400, "shell scripts"),
        ({"ids": []}, 422, "ids"),
        ({"ids": [-1]}, 422, "ids"),
        ({"n": 6}, 422, "exceed"),
        ({"tempreature": 1}, 422, "tempreature"),
        ({"base_url": "file:///etc/passwd"}, 422, "address"),
        ({"base_url": "http://[::1"}, 422, "not the URL of a server"),
        ({"base_url": "http://127.0.0.1:99999"}, 422, "not the URL of a server"),
        ({"base_url": "http://127.0.0.1:8000/?x=1"}, 422, "not the URL of a server"),
        ({"temperature": -1}, 422, "temperature"),
    ],
)
async def test_a_bad_request_is_refused(changes: dict[str, Any], status: int, text: str) -> None:
    body = {"env": LETTERS, "model": "m", "base_url": "http://h", "ids": [0], "max_round": 2}
    async with service(max_rollouts=5) as client:
        response = await client.post("/rollouts", json=body | changes)
    assert response.status_code == status, response.text
    assert text in response.text


async def test_agentgym_is_played_by_the_ids_of_its_tasks() -> None:
    script = replies("Action: forward", "no action", "Action: forward", "Action: forward")
    async with FaultyServer().running() as server:
        with ScriptedServer(script) as model:
            async with service() as client:
                env = f"agentgym:textcraft@{server.url}"
                answer = await rollouts(client, model.url, env, ids=[5, 543, 5], n=2)
        for one in answer["rollouts"]:
            assert one["rewards"] == [0] * (LENGTH - 1) + [1]
            assert one["score"] == one["raw_score"] == 1
            assert one["success"]
        assert sorted(server.data) == [5, 5, 5, 5, 543, 543]
        assert not server.sessions


@pytest.mark.parametrize("action_format", [None, "react"])
async def test_react_is_the_form_of_the_environment(action_format: str | None) -> None:
    """textcraft refuses two actions in one reply, where air's own `react` would take the last."""
    script = replies("Action: back\nAction: forward", "Action: forward")
    async with FaultyServer().running() as server:
        with ScriptedServer(script) as model:
            async with service() as client:
                env = f"agentgym:textcraft@{server.url}"
                named = {} if action_format is None else {"action_format": action_format}
                answer = await rollouts(
                    client, model.url, env, ids=[5], max_round=LENGTH + 1, **named
                )
    (one,) = answer["rollouts"]
    assert one["rewards"] == [0] * (LENGTH - 1) + [1]
    assert one["rounds"] == LENGTH + 1


async def test_a_conversation_has_the_whole_replies() -> None:
    """A server may return reasoning and tool calls apart from the text."""
    call = {"name": "open_door", "arguments": '{"number": 1}'}
    calls = [{"id": "a", "type": "function", "function": call}]
    said = {**reasoned("Hm.", "So."), "tool_calls": calls}
    with ScriptedServer(replies(said, reasoned("Well.", ""))) as model:
        async with service() as client:
            answer = await rollouts(
                client, model.url, DOORS, ids=[0], max_round=2, action_format="tool_calls"
            )
    (one,) = answer["rollouts"]
    spoken = [message["value"] for message in one["conversation"] if message["from"] == "gpt"]
    assert spoken == [
        "<think>\nHm.\n</think>\n\nSo.\n<tool_call>\n"
        '{"name": "open_door", "arguments": {"number": 1}}\n</tool_call>',
        "<think>\nWell.\n</think>\n\n",
    ]


async def test_a_client_that_leaves_ends_its_episodes() -> None:
    async with FaultyServer().running() as server:
        with ScriptedServer(replies("Action: forward")) as model:
            async with service() as client:
                body = {
                    **{"env": f"agentgym:textcraft@{server.url}", "model": "m", "ids": [1]},
                    **{"base_url": model.url, "max_round": 2},
                }
                task = asyncio.create_task(client.post("/rollouts", json=body))
                await server.seen("/step", 1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert not server.sessions


async def test_a_real_small_model_plays(small: Path) -> None:
    policy = load(small)
    model = InferenceServer(policy, max_model_len=512)
    await asyncio.to_thread(model.start)
    try:
        async with service() as client:
            settings: dict[str, Any] = {"model": policy.name, "max_tokens": 4, "ids": [0, 1, 2, 3]}
            answer = await rollouts(client, model.url, LETTERS, seed=1, **settings)
            again = await rollouts(client, model.url, LETTERS, seed=1, **settings)
            other = await rollouts(client, model.url, LETTERS, seed=2, temperature=2.0, **settings)
    finally:
        await asyncio.to_thread(model.stop)
    for one in answer["rollouts"]:
        assert one["score"] is not None, one
        assert one["score"] == sum(one["rewards"])
    assert said(answer) == said(again)
    assert said(answer) != said(other)


def said(answer: dict[str, Any]) -> list[str]:
    return [
        message["value"]
        for one in answer["rollouts"]
        for message in one["conversation"]
        if message["from"] == "gpt"
    ]
