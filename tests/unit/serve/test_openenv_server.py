"""`air serve openenv`: what a client may do, frame by frame, and what it may not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from air.actions.base import Action
from air.serve.episodes.client_episode import ClientEpisode, NoRunningEpisode, Turn
from air.serve.episodes.offered_tasks import OfferedWorld
from air.serve.openenv import messages
from air.serve.openenv.session import MOST_WAITING
from air.testing import Letters
from air.worlds import sources
from air.worlds.base import Observation, Step
from tests.episodes_server import serving
from tests.until import until

TASK = "question:gsm8k5"
OTHER = "question:gsm8k"


async def ask(socket: ClientConnection, message: Any) -> dict[str, Any]:
    """Sends a message, and returns the answer."""
    await socket.send(message if isinstance(message, str) else json.dumps(message))
    answer: dict[str, Any] = json.loads(await socket.recv())
    return answer


def step(text: str) -> dict[str, Any]:
    return {"type": "step", "data": {"message": text}}


@asynccontextmanager
async def client(url: str, **settings: Any) -> AsyncIterator[ClientConnection]:
    async with connect(url.replace("http", "ws") + "/ws", proxy=None, **settings) as socket:
        yield socket


RESET = {"type": "reset", "data": {"seed": 1}}
REFUSED = [
    ("{", "INVALID_JSON"),
    ("[" * 100_000, "INVALID_JSON"),
    ("7", "UNKNOWN_TYPE"),
    ({"type": "fly"}, "UNKNOWN_TYPE"),
    ({"type": "step"}, "VALIDATION_ERROR"),
    ({"type": "step", "data": {}}, "VALIDATION_ERROR"),
    ({"type": "step", "data": {"message": 7}}, "VALIDATION_ERROR"),
    ({"type": "step", "data": {"message": "7", "reward": 1}}, "VALIDATION_ERROR"),
    ({"type": "step", "data": {"message": "7", "metadata": {"reward": 1}}}, "VALIDATION_ERROR"),
    ({"type": "step", "data": {"message": "7"}, "done": True}, "VALIDATION_ERROR"),
    ({"type": "step", "data": {"message": "\ud800"}}, "VALIDATION_ERROR"),
    ('{"type": "mcp", "data": {"id": NaN}}', "VALIDATION_ERROR"),
    ({"type": "reset", "data": {"seed": -1}}, "VALIDATION_ERROR"),
    ({"type": "reset", "data": {"sead": 1}}, "VALIDATION_ERROR"),
    ({"type": "reset", "data": {"task": "titanic"}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"split": "train"}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"split": "test", "index": 0}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"split": "train", "index": 100}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"split": "train", "index": -1}}, "EXECUTION_ERROR"),
]


async def test_what_is_refused_changes_nothing() -> None:
    async with serving(TASK) as served, client(served.url) as socket:
        call = {"type": "step", "data": {"type": "call_tool", "tool_name": "act"}}
        for early in (step("7"), call):
            answer = await ask(socket, early)
            assert answer["data"]["code"] == "EXECUTION_ERROR"
            assert "reset" in answer["data"]["message"]
        await ask(socket, RESET)
        for message, code in REFUSED:
            answer = await ask(socket, message)
            assert (answer["type"], answer["data"]["code"]) == ("error", code), message
        assert (await ask(socket, {"type": "state"}))["data"]["step_count"] == 0
        assert (await ask(socket, step("no")))["data"]["reward"] == pytest.approx(-0.1)


async def test_a_step_after_the_end_is_refused_and_reset_begins_anew() -> None:
    async with serving(TASK, max_turns=2) as served, client(served.url) as socket:
        for _ in range(2):
            await ask(socket, RESET)
            assert not (await ask(socket, step("no")))["data"]["done"]
            last = (await ask(socket, step("no")))["data"]
            assert last["done"]
            assert last["metadata"]["truncated"]
            assert (await ask(socket, step("no")))["data"]["code"] == "EXECUTION_ERROR"


async def test_an_unknown_tool_is_a_turn_without_reward() -> None:
    call = {"type": "step", "data": {"type": "call_tool", "tool_name": "win", "arguments": {}}}
    async with serving(TASK, max_turns=3) as served, client(served.url) as socket:
        await ask(socket, RESET)
        answers = [(await ask(socket, call))["data"] for _ in range(3)]
        # The last turn ends an episode that has no answer, which is worth as much as a wrong one.
        assert [answer["reward"] for answer in answers] == [0.0, 0.0, -0.1]
        assert [answer["done"] for answer in answers] == [False, False, True]
        assert answers[0]["observation"]["error"]["error_type"] == "tool_not_found"


async def test_capacity_and_a_place_that_is_freed() -> None:
    async with serving(TASK, max_sessions=1) as served:
        async with client(served.url) as first:
            await ask(first, RESET)
            async with client(served.url) as second:
                answer = json.loads(await second.recv())
                assert answer["data"]["code"] == "CAPACITY_REACHED"
                with pytest.raises(ConnectionClosed):
                    await second.recv()
        await until(lambda: not served.server.client_limit.taken)
        async with client(served.url) as third:
            assert (await ask(third, RESET))["type"] == "observation"
    assert served.ended("left") == 2


async def test_a_silent_client_loses_its_place() -> None:
    async with serving(TASK, idle_seconds=0.1) as served, client(served.url) as socket:
        answer = json.loads(await socket.recv())
        assert answer["data"]["code"] == "SESSION_ERROR"
        await until(lambda: not served.server.client_limit.taken)


async def test_bytes_end_the_connection() -> None:
    async with serving(TASK) as served, client(served.url) as socket:
        await socket.send(b"{}")
        with pytest.raises(ConnectionClosed):
            await socket.recv()


async def test_the_time_of_an_episode_ends_it() -> None:
    async with serving(TASK, seconds=0.01) as served, client(served.url) as socket:
        await ask(socket, RESET)
        await asyncio.sleep(0.02)
        answer = (await ask(socket, step("no")))["data"]
        assert (answer["reward"], answer["done"]) == (-0.1, True)  # as a wrong answer


async def test_two_clients_see_nothing_of_each_other() -> None:
    async with serving(TASK, OTHER, max_sessions=2) as served:
        async with client(served.url) as first, client(served.url) as second:
            assert "several tasks" in (await ask(first, RESET))["data"]["message"]
            one = await ask(first, {"type": "reset", "data": {"task": TASK, "seed": 1}})
            two = await ask(second, {"type": "reset", "data": {"task": OTHER, "seed": 2}})
            assert one["data"]["observation"]["text"] != two["data"]["observation"]["text"]
            await ask(first, step("no"))
            assert (await ask(second, {"type": "state"}))["data"]["step_count"] == 0
        state = f"{served.url.replace('http', 'ws')}/ws?session_id=1"
        async with connect(state, proxy=None) as third:
            assert json.loads(await third.recv())["data"]["code"] == "SESSION_ERROR"


async def test_requests_of_http() -> None:
    async with (
        serving(TASK, OTHER, seeds=3) as served,
        httpx.AsyncClient(base_url=served.url) as http,
    ):
        assert (await http.get("/health")).json()["status"] == "healthy"
        assert (await http.get("/schema")).json()["action"]["required"] == ["message"]
        for path in ("/reset", "/step"):
            assert (await http.post(path, json={})).status_code == 501
        counted = await http.post("/air/num_tasks", json={"split": "train"})
        assert counted.json() == {"num_tasks": 6}
        tasks = (await http.post("/air/tasks", json={"split": "validation"})).json()["tasks"]
        assert [row["task"] for row in tasks] == [TASK, OTHER] * 3
        assert {row["seed"] for row in tasks} == {1_000_123, 1_000_124, 1_000_125}
        assert (
            await http.post("/air/task", json={"split": "train", "index": 6})
        ).status_code == 400
        assert (await http.post("/air/task", json={"split": "train"})).status_code == 422
        assert (await http.post("/b/tasks", json={"split": "train"})).status_code == 404
        listed = await http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        assert [tool["name"] for tool in listed.json()["result"]["tools"]] == ["act"]
        called = await http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/call"})
        assert called.json()["error"]["code"] == -32601


async def test_a_token_is_asked_for() -> None:
    async with serving(TASK, token="secret") as served:
        with pytest.raises(InvalidStatus) as caught:
            async with client(served.url):
                pass
        assert caught.value.response.status_code == 401
        async with client(served.url.replace("://", "://air:secret@")) as socket:
            assert (await ask(socket, RESET))["type"] == "observation"


def test_nan_is_never_sent() -> None:
    turn = Turn("text", float("nan"), False)
    with pytest.raises(ValueError, match="JSON"):
        messages.of_turn(turn, messages.MessageAction(message="7"))


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
async def test_a_client_gets_an_error_instead_of_nan(number: str) -> None:
    async with serving("tests.unit.serve.nan_world:nan") as served, client(served.url) as socket:
        await ask(socket, RESET)
        assert (await ask(socket, step("0.5")))["data"]["reward"] == 0.5
        answer = await ask(socket, step(number))
        assert answer["type"] == "error"
        assert answer["data"].keys() == {"code", "message"}
        assert answer["data"]["code"] == "SESSION_ERROR"
        assert f"the world gave the reward {number}" in answer["data"]["message"]
        with pytest.raises(ConnectionClosed):
            await socket.recv()


async def test_a_page_of_another_site_cannot_connect() -> None:
    async with serving(TASK) as served:
        with pytest.raises(InvalidStatus) as caught:
            async with client(served.url, origin="http://example.com"):
                pass
        assert caught.value.response.status_code == 403
        async with client(served.url, origin="http://localhost:3000") as socket:
            assert (await ask(socket, RESET))["type"] == "observation"


class Echo(Letters):
    """A world that repeats what the agent says."""

    async def step(self, action: Action) -> Step:
        return Step(Observation(action.answer))


async def test_half_a_character_that_a_world_repeats_is_replaced() -> None:
    """No UTF-8 has it, so the agent could end its episode by it, without a reward."""
    task = replace(sources.load("air.testing:letters"), make=Echo)
    episode = ClientEpisode(OfferedWorld(task, 3, 3600.0), 1, lambda task, how: None, lambda: None)
    await episode.start()
    assert (await episode.say("a\ud800b")).text == "a?b"
    await episode.close()


async def test_messages_that_wait_are_bounded_in_size() -> None:
    async with serving(TASK, max_body_mb=0.001) as served, client(served.url) as socket:
        assert (await ask(socket, step("7" * 2000)))["data"]["code"] == "SESSION_ERROR"
        with pytest.raises(ConnectionClosed):
            await socket.recv()


class Stuck(Letters):
    """A world whose actions never end."""

    async def step(self, action: Action) -> Step:
        await asyncio.Event().wait()
        raise AssertionError


def stuck(**settings: Any) -> OfferedWorld:
    task = replace(sources.load("air.testing:letters"), make=Stuck)
    return OfferedWorld(task, 3, **settings)


async def test_the_tools_that_are_listed_are_those_of_the_running_episodes_task() -> None:
    listing = {"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}}
    guess = {"type": "function", "function": {"name": "guess", "description": "", "parameters": {}}}
    letters = replace(sources.load("air.testing:letters"), tools=(guess,))
    async with serving(TASK) as served, client(served.url) as socket:
        served.server.catalogue.tasks["letters"] = OfferedWorld(letters, 3, 3600.0)
        names = []
        for task in (TASK, "letters"):
            await ask(socket, {"type": "reset", "data": {"task": task, "seed": 1}})
            listed = (await ask(socket, listing))["data"]["result"]["tools"]
            names.append([tool["name"] for tool in listed])
        assert names == [["act"], ["guess"]]


async def test_messages_that_wait_are_bounded_in_number() -> None:
    async with serving(TASK) as served:
        served.server.catalogue.tasks["stuck"] = stuck(seconds=3600.0)
        async with client(served.url) as socket:
            await ask(socket, {"type": "reset", "data": {"task": "stuck", "seed": 1}})
            for _ in range(MOST_WAITING + 2):
                await socket.send(json.dumps(step("no")))
            assert json.loads(await socket.recv())["data"]["code"] == "SESSION_ERROR"
            with pytest.raises(ConnectionClosed):
                await socket.recv()


@pytest.mark.parametrize(
    ("said", "rewards"),
    [
        (["7", "7"], [-0.1, -0.1]),  # two wrong tries, and no more
        (["7", " "], [-0.1, 0.0]),  # a wrong try and an empty message
        ([" ", " "], [0.0, -0.1]),  # no try
    ],
)
async def test_a_wrong_try_counts_towards_what_no_answer_costs(
    said: list[str], rewards: list[float]
) -> None:
    task = OfferedWorld(sources.load("question:gsm8k5"), 2, seconds=3600.0)
    episode = ClientEpisode(task, 1, lambda task, how: None, lambda: None)
    await episode.start()
    turns = [await episode.say(message) for message in said]
    assert [turn.reward for turn in turns] == pytest.approx(rewards)
    assert turns[-1].done
    await episode.close()


async def test_an_episode_ends_by_itself_some_time_after_its_limit() -> None:
    ends: list[str] = []
    task = OfferedWorld(sources.load("air.testing:letters"), 3, seconds=0.01)
    episode = ClientEpisode(
        task, 1, lambda task, how: ends.append(how), lambda: ends.append("freed"), 0.01
    )
    await episode.start()
    await until(lambda: ends == ["expired", "freed"])
    assert episode.failed
    with pytest.raises(NoRunningEpisode):
        await episode.say("a")
    await episode.close()
    assert ends == ["expired", "freed"]
