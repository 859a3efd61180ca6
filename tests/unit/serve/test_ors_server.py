"""`air serve ors`: sessions that only their clients reach, and calls that run once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from air.actions.base import Action
from air.errors import InfrastructureError
from air.serve.episodes.client_episode import ClientEpisode
from air.serve.episodes.offered_tasks import OfferedWorld
from air.serve.episodes.server import EpisodesServer
from air.serve.episodes.task_routes import Refused
from air.serve.ors import sessions
from air.serve.ors.protocol import Ors
from air.worlds import sources
from air.worlds.ors.options import OrsOptions
from air.worlds.ors.session import Session
from tests.episodes_server import serving
from tests.until import until

TASK = "question:gsm8k5"


async def events(http: httpx.AsyncClient, path: str, sid: str, body: Any) -> list[tuple[str, str]]:
    """The events of a streamed answer."""
    answer = await http.post(path, json=body, headers={"X-Session-ID": sid})
    assert answer.status_code == 200, answer.text
    rows = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    return [(name.removeprefix("event: "), data.removeprefix("data: ")) for name, data in rows]


async def session(http: httpx.AsyncClient, **task: Any) -> str:
    """The id of a new session, with its episode."""
    sid = (await events(http, "/create_session", "", {}))[0][1]
    body = task or {"split": "train", "index": 3}
    created = await http.post("/create", json=body, headers={"X-Session-ID": sid})
    assert created.status_code == 200, created.text
    return sid


def act(answer: str) -> dict[str, Any]:
    return {"name": "act", "input": {"answer": answer}}


async def test_a_call_runs_once_however_often_its_result_is_asked_for() -> None:
    async with (
        serving(TASK, protocol=Ors) as served,
        httpx.AsyncClient(base_url=served.url) as http,
    ):
        sid, other = await session(http), await session(http)
        first = await events(http, "/air/call", sid, act("no"))
        task_id = dict(first)["task_id"]
        again = await events(http, "/call", sid, act("no") | {"task_id": task_id})
        assert again == first
        output = json.loads(dict(first)["end"])["output"]
        assert output["reward"] == pytest.approx(-0.1)
        assert output["metadata"]["turn"] == 1
        # The id of a call is worth nothing in another session.
        stolen = await events(http, "/call", other, act("no") | {"task_id": task_id})
        assert stolen == [("error", "unknown task_id")]
        for each in (sid, other):
            await http.post("/delete", headers={"X-Session-ID": each})
        assert served.ended("left") == 2


async def test_a_call_that_comes_while_its_session_ends_does_not_keep_the_episode() -> None:
    ended: list[bool] = []
    offered = OfferedWorld(sources.load("air.testing:letters"), 3, 3600.0)
    episode = ClientEpisode(offered, 1, lambda *_: None, lambda: ended.append(True))
    served = sessions.Session(episode, await episode.start())
    call = served.find(served.call("act", {"answer": "a"}))
    assert call is not None
    await call
    closing = asyncio.create_task(served.close())
    await asyncio.sleep(0)  # it has begun
    with pytest.raises(Refused):
        served.call("act", {"answer": "e"})
    await closing
    assert ended == [True]


async def test_calls_at_once_run_one_after_the_other() -> None:
    async with (
        serving(TASK, protocol=Ors) as served,
        httpx.AsyncClient(base_url=served.url) as http,
    ):
        sid = await session(http)
        calls = [events(http, "/call", sid, act("no")) for _ in range(6)]
        results = [json.loads(dict(rows)["end"]) for rows in await asyncio.gather(*calls)]
        turns = sorted(row["output"]["metadata"]["turn"] for row in results if row["ok"])
        assert turns == [1, 2, 3, 4, 5]
        assert [row["reason"] for row in results if not row["ok"]] == ["episode_finished"]


async def test_who_has_no_session_gets_nothing() -> None:
    async with (
        serving(TASK, protocol=Ors, max_sessions=1) as served,
        httpx.AsyncClient(base_url=served.url) as http,
    ):
        task = {"split": "train", "index": 0}
        for sid, status in (("", 400), ("1", 400)):  # an id that the server did not give
            created = await http.post("/create", json=task, headers={"X-Session-ID": sid})
            assert created.status_code == status
        for path in ("/prompt", "/task_tools"):
            assert (await http.get(path, headers={"X-Session-ID": "1"})).status_code == 404
        sid = await session(http)
        twice = await http.post("/create", json=task, headers={"X-Session-ID": sid})
        assert twice.status_code == 400
        more = (await events(http, "/create_session", "", {}))[0][1]
        full = await http.post("/create", json=task, headers={"X-Session-ID": more})
        assert full.status_code == 429
        await http.post("/delete", headers={"X-Session-ID": sid})
        assert (await http.get("/prompt", headers={"X-Session-ID": sid})).status_code == 404
        freed = await http.post("/create", json=task, headers={"X-Session-ID": more})
        assert freed.status_code == 200
        await http.post("/delete", headers={"X-Session-ID": more})


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"split": "train"},
        {"split": "test", "index": 0},
        {"split": "train", "index": 0, "task_spec": {"task": TASK, "seed": 1}},
        {"task_spec": {"task": "titanic", "seed": 1}},
        {"task_spec": {"task": TASK, "seed": -1}},
        {"task_spec": {"task": TASK, "seed": True}},
        {"task_spec": {"task": TASK, "seed": 1, "reward": 1}},
        {"split": "train", "index": 0, "toolset_name": "bash"},
    ],
)
async def test_a_task_that_is_not_offered(body: dict[str, Any]) -> None:
    async with (
        serving(TASK, protocol=Ors) as served,
        httpx.AsyncClient(base_url=served.url) as http,
    ):
        sid = (await events(http, "/create_session", "", {}))[0][1]
        created = await http.post("/create", json=body, headers={"X-Session-ID": sid})
        assert created.status_code == 400


async def test_a_silent_session_is_deleted() -> None:
    async with (
        serving(TASK, protocol=Ors, idle_seconds=0.2) as served,
        httpx.AsyncClient(base_url=served.url) as http,
    ):
        await session(http, task_spec={"task": TASK, "seed": 1})
        await until(lambda: not served.server.client_limit.taken)


async def test_a_session_that_is_over_is_deleted_though_it_is_pinged() -> None:
    protocols: list[Ors] = []

    def protocol(server: EpisodesServer) -> Ors:
        protocols.append(Ors(server))
        return protocols[0]

    async with (
        serving(TASK, protocol=protocol, idle_seconds=2.0, max_turns=1) as served,
        httpx.AsyncClient(base_url=served.url) as http,
    ):
        sid = await session(http)
        header = {"X-Session-ID": sid}
        rows = dict(await events(http, "/call", sid, act("no")))
        assert json.loads(rows["end"])["output"]["finished"]

        async def gone() -> bool:
            return (await http.post("/ping", headers=header)).status_code == 404

        for _ in range(600):
            if await gone():
                break
            await asyncio.sleep(0.1)  # shorter than `idle_seconds`: a sign of life
        assert protocols[0].sessions == 0


async def test_air_plays_it_as_a_world() -> None:
    local = sources.load(TASK).world()
    first = await local.reset(3)
    async with serving(TASK, protocol=Ors, max_sessions=2) as served:
        task = sources.load(f"ors:{served.url}/")

        async def one(seed: int) -> list[float]:
            world = task.world()
            seen = await world.reset(seed)
            assert "- act: " in seen.text
            rewards = [(await world.step(Action(answer=answer))).reward for answer in ("5", "6")]
            if seed == 3:
                assert first.text in seen.text
            await world.close()
            with pytest.raises(InfrastructureError):
                await world.step(Action(answer="5"))
            return rewards

        remote = await asyncio.gather(*(one(seed) for seed in range(6)))
    assert remote[3] == [(await local.step(Action(answer=answer))).reward for answer in ("5", "6")]


async def scripted_server(answers: list[bytes], bodies: list[bytes]) -> asyncio.Server:
    """A server that answers each request with the next of `answers`, and then closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        bodies.append(await reader.readexactly(length))
        start = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        answer = answers.pop(0)
        writer.write(
            start + b"%x\r\n%s\r\n" % (len(answer), answer)
        )  # no last chunk: it is cut off
        await writer.drain()
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


@pytest.mark.parametrize("with_id", [True, False])
async def test_a_call_that_was_cut_off_goes_on_by_its_id_or_not_at_all(with_id: bool) -> None:
    text = "two lines\u2028of one result\x85"  # sent as it is by servers that escape only what they must
    result = json.dumps({"ok": True, "output": {"text": text}}, ensure_ascii=False)
    cut = b"event: task_id\r\ndata: 7\r\n\r\nevent: chunk\r\ndata: {" if with_id else b": ping\n\n"
    whole = f"event: task_id\ndata: 7\n\nevent: end\ndata: {result}\n\n".encode()
    bodies: list[bytes] = []
    server = await scripted_server([cut, whole], bodies)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        calls = Session(url, OrsOptions())
        calls.connect()
        if with_id:
            answer = await calls.call("air", "act", {"answer": "7"})
            assert answer["output"]["text"] == text
            assert [json.loads(body).get("task_id") for body in bodies] == [None, "7"]
        else:
            with pytest.raises(InfrastructureError):
                await calls.call("air", "act", {"answer": "7"})
            assert len(bodies) == 1  # the server may have begun it
        await calls.close()


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
async def test_a_client_gets_an_error_instead_of_nan(number: str) -> None:
    async with (
        serving("tests.unit.serve.nan_world:nan", protocol=Ors) as served,
        httpx.AsyncClient(base_url=served.url) as http,
    ):
        sid = await session(http)
        first = dict(await events(http, "/air/call", sid, act("0.5")))
        assert json.loads(first["end"])["output"]["reward"] == 0.5
        answer = dict(await events(http, "/air/call", sid, act(number)))
        assert answer.keys() == {"task_id", "error"}
        assert f"the world gave the reward {number}" in answer["error"]
