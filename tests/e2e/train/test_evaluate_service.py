"""`air serve evaluate`: answers of a scripted endpoint and of a real small model; clients and bounds."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from air.errors import InfrastructureError, UsageError
from air.serve.evaluate.server import Evaluate, opened
from air.serve.evaluate.settings import EvaluateConfig
from air.serve.http.app import application
from air.serve.http.log import Log
from air.serve.http.metrics import Metrics
from air.serve.http.request_queue import RequestQueue
from air.testing import ScriptedServer, replies
from air.worlds.proposals.scorer import Scorer
from tests import fork_server
from tests.tools_server import running
from tests.until import until

TASKS = [
    {"id": "a", "question": "What is 2 + 2?", "answer": "4"},
    {"id": "b", "question": "What is 2 + 3?"},
    {"id": "c", "question": "What is 2 + 4?", "answer": "7"},
]
RESULT = {"id", "p_hat", "majority", "n_valid", "k", "tool_calls_mean", "answers"}


@asynccontextmanager
async def service(**settings: Any) -> AsyncIterator[tuple[RequestQueue, httpx.AsyncClient]]:
    """The queue of a service, and a client of it."""
    async with AsyncExitStack() as stack:
        config = EvaluateConfig(**settings)
        server = await stack.enter_async_context(opened(config, Metrics(), Log(io.StringIO())))
        url = await stack.enter_async_context(running(application(server, [Evaluate(server)])))
        client = httpx.AsyncClient(base_url=url, timeout=300)
        yield server.queue, await stack.enter_async_context(client)


def solved(messages: Sequence[Any]) -> str:
    """Knows one sum, has no idea of another, and is always wrong about the third."""
    text = str(messages[-1]["content"])
    return "\\boxed{4}" if "2 + 2" in text else "no idea" if "2 + 3" in text else "\\boxed{6}"


async def test_answers_of_an_endpoint_are_counted_as_specified() -> None:
    with ScriptedServer(solved) as model:
        async with service(model=model.url, model_name="m") as (_, http):
            answer = await http.post("/evaluate", json={"tasks": TASKS, "k": 3})
            assert answer.status_code == 200, answer.text
            results = answer.json()["results"]
            assert [one["id"] for one in results] == ["a", "b", "c"]
            assert all(one.keys() == RESULT for one in results)
            assert [one["p_hat"] for one in results] == [
                1,
                0,
                0,
            ]  # c: the proposer is of another mind
            assert [one["majority"] for one in results] == ["4", None, "6"]
            assert [one["n_valid"] for one in results] == [3, 0, 3]
            assert results[1]["answers"] == [None] * 3
            answered = await Scorer(str(http.base_url), k=2).answers("What is 2 + 2?")
            assert (list(answered.answers), answered.tool_calls) == (["4", "4"], 0)
            health = (await http.get("/health")).json()
            assert (health["model"], health["requests"]["running"]) == ("m", 0)
            metrics = (await http.get("/metrics")).text
            assert 'air_serve_requests_total{code="200",path="/evaluate"} 2' in metrics
            page = {"origin": "http://example.com", "content-type": "text/plain"}
            refused = await http.post("/evaluate", content="{}", headers=page)
            assert refused.status_code == 403
            rebound = await http.get("/health", headers={"host": "example.com"})
            assert rebound.status_code == 403


AGENT0 = [
    # question, the proposer's answer, the executor's ten replies, and Agent0's score and answer
    ("What is 2 + 2?", "4", ["\\boxed{4}"] * 6 + ["\\boxed{5}"] * 3 + ["?"], 0.6, "4"),
    ("What is 2 + 3?", "6", ["\\boxed{5}"] * 7 + ["\\boxed{6}"] * 3, 0.0, "5"),
    ("What is 2 + 4?", "12/2", ["\\boxed{6}"] * 10, 1.0, "6"),
    ("What is 2 + 5?", "7", ["\\boxed{7}"] + ["?"] * 9, 0.0, "7"),
]


async def test_the_questions_of_agent0s_proposer_get_agent0s_scores() -> None:
    """The source is aiming-lab/Agent0 at 3cf8bfe, folder Agent0/curriculum_train.

    `compute_score` of examples/reward_function/curriculum_reward.py writes rows of `question` and `answer`
    into a file, and calls `GET /hello?name=FILE` of vllm_service_init/start_vllm_server_tool.py. It reads
    back `question` and `score`; beside them are `answer` (the majority's), `extracted_results` and
    `all_outputs`. There, k is 10, with at most 4 turns, temperature 0.7, top_p 0.9 and 2048 tokens.
    Here, the rows are the tasks of `/evaluate`; tests/unit/serve/agent0 has the files.
    """
    said = {question: iter(replies_) for question, _, replies_, _, _ in AGENT0}
    asked: list[dict[str, Any]] = []

    async def reply(request: Request) -> JSONResponse:
        asked.append(await request.json())
        (question,) = (one for one in said if one in str(asked[-1]["messages"][-1]["content"]))
        message = {"role": "assistant", "content": next(said[question])}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = {"id": "c", "object": "chat.completion", "created": 0, "model": "m"}
        return JSONResponse({**head, "choices": [choice]})

    rows = [{"question": question, "answer": answer} for question, answer, *_ in AGENT0]
    sampling = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 2048}
    tasks = [{"id": str(number), **row} for number, row in enumerate(rows)]
    body = {"tasks": tasks, "k": 10, "max_turns": 4, "sampling": sampling}
    model = Starlette(routes=[Route("/v1/chat/completions", reply, methods=["POST"])])
    async with running(model) as url, service(model=f"{url}/v1", model_name="m") as (_, http):
        answer = await http.post("/evaluate", json=body)
        assert answer.status_code == 200, answer.text
        results = answer.json()["results"]
        # Agent0 gives a row without a question, which was a malformed proposal, the score -1.
        nothing = {"tasks": [{"id": "0", "question": "", "answer": ""}]}
        assert (await http.post("/evaluate", json=nothing)).status_code == 400
    assert len(asked) == 40
    for one in asked:
        limit = one.get("max_completion_tokens", one.get("max_tokens"))
        assert (one["temperature"], one["top_p"], limit) == (0.7, 0.9, 2048)
    for one, (_, _, replies_, score, majority) in zip(results, AGENT0, strict=True):
        assert (one["p_hat"], one["majority"], one["k"]) == (pytest.approx(score), majority, 10)
        assert one["n_valid"] == sum(text != "?" for text in replies_)
        extracted = [text.removeprefix("\\boxed{").rstrip("}") for text in replies_ if text != "?"]
        assert sorted(text for text in one["answers"] if text is not None) == sorted(extracted)


OWN = '''
from pathlib import Path
from threading import Lock

from air.tools import ToolError, ToolSettings, tool

HERE = Path(__file__).parent


def note(what):
    with (HERE / "notes").open("a") as file:
        file.write(f"{what}\\n")


class Sums(ToolSettings):
    pool_size: int = 1

    def tools(self, folder):
        note("loads")
        lock, open_ = Lock(), []

        class State:
            def __init__(self, context):
                with lock:
                    open_.append(self)
                    note(f"open={len(open_)}")

            def close(self):
                with lock:
                    open_.remove(self)

        @tool(state=State, pool_size=self.pool_size)
        def total(state, text: str) -> str:
            """Adds."""
            if text != "2 + 2":
                raise ToolError("unknown")
            return "4"

        return [total]
'''


def calls_first(messages: Sequence[Any]) -> str:
    """Calls the tool, and believes what it says."""
    text = str(messages[-1]["content"])
    if any(message["role"] == "assistant" for message in messages):
        return "\\boxed{unknown}" if "unknown" in text else "\\boxed{4}"
    asked = text.partition("What is ")[2].partition("?")[0]
    return f'<tool_call>{{"name": "total", "arguments": {{"text": "{asked}"}}}}</tool_call>'


async def test_tools_are_loaded_once_for_all_requests(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "tools.toml").write_text('tools = [{ name = "own.py:Sums", pool_size = 2 }]')
    body = {"tasks": TASKS[:2], "k": 3}
    settings: dict[str, Any] = {"model_name": "m", "tools": [f"{tmp_path}/tools.toml"]}
    with ScriptedServer(calls_first) as model:
        async with service(model=model.url, **settings) as (_, http):
            assert (await http.get("/health")).json()["tools"] == ["total"]
            first = await http.post("/evaluate", json=body)
            assert first.status_code == 200, first.text
            right, unknown = first.json()["results"]
            assert (right["answers"], right["tool_calls_mean"]) == (["4"] * 3, 1.0)
            assert (unknown["answers"], unknown["tool_calls_mean"]) == (["unknown"] * 3, 0.0)
            again = await asyncio.gather(*[http.post("/evaluate", json=body) for _ in range(3)])
            assert [one.json() for one in again] == [first.json()] * 3
            notes = (tmp_path / "notes").read_text().split()
            assert notes[0] == "loads"
            assert len(notes) == 1 + 4 * 6
            assert set(notes[1:]) <= {"open=1", "open=2"}  # the bound holds for all requests
        async with service(model=model.url, **settings):
            assert (tmp_path / "notes").read_text().split().count("loads") == 2


async def test_turns_and_the_format_are_chosen(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    tools = [f"{tmp_path}/own.py:Sums", "calculator"]

    def react(messages: Sequence[Any]) -> str:
        if str(messages[-1]["content"]).startswith("4"):
            return "Thought: done\nAnswer: \\boxed{4}"
        return 'Thought: I add.\nAction: total\nInput: {"text": "2 + 2"}'

    with ScriptedServer(react) as model:
        settings: dict[str, Any] = {"model": model.url, "model_name": "m", "tools": tools}
        async with service(**settings, format="react_input") as (_, http):
            body = {"tasks": TASKS[:1], "k": 1}
            (found,) = (await http.post("/evaluate", json=body)).json()["results"]
            assert (found["answers"], found["tool_calls_mean"]) == (["4"], 1.0)
            (found,) = (await http.post("/evaluate", json=body | {"max_turns": 1})).json()[
                "results"
            ]
            assert (found["answers"], found["tool_calls_mean"]) == ([None], 1.0)


async def test_a_tool_has_a_box_of_the_chosen_kind() -> None:
    code = '{"name": "code_interpreter", "arguments": {"code": "print(2 + 2)"}}'
    with ScriptedServer(replies(f"<tool_call>{code}</tool_call>", "\\boxed{4}")) as model:
        settings: dict[str, Any] = {"tools": ["code_interpreter"], "provider": "process"}
        async with service(model=model.url, model_name="m", **settings) as (_, http):
            answer = await http.post("/evaluate", json={"tasks": TASKS[:1], "k": 2})
            (found,) = answer.json()["results"]
            assert (found["answers"], found["tool_calls_mean"]) == (["4", "4"], 1.0)


async def test_the_command_serves_tools_and_files(tmp_path: Path) -> None:
    code = '{"name": "calculator", "arguments": {"expression": "2 + 2"}}'
    out, err = tmp_path / "out", tmp_path / "err"
    with (
        ScriptedServer(replies(f"<tool_call>{code}</tool_call>", "\\boxed{4}")) as model,
        out.open("wb") as printed,
        err.open("wb") as logged,
    ):
        argv = ["air", "serve", "evaluate", model.url, "--model-name", "m", "--port", "0"]
        argv += ["--tools", "calculator", "--files", str(tmp_path), "--k", "2"]
        (tmp_path / "a.json").write_text(json.dumps([{"question": "2 + 2?", "answer": "4"}]))
        with fork_server.of_this_run().spawn(
            argv, cwd=tmp_path, env=dict(os.environ), streams=[printed, logged]
        ) as process:
            await until(lambda: "\n" in out.read_text() or process.poll() is not None)
            assert out.read_text().startswith("serving on "), err.read_text()
            url = out.read_text().split()[2]
            async with httpx.AsyncClient(base_url=url, timeout=300) as http:
                answer = await http.post("/evaluate", json={"tasks": TASKS[:1]})
                assert (await http.get("/hello?name=a.json")).status_code == 200
            (found,) = answer.json()["results"]
            assert (found["answers"], found["tool_calls_mean"]) == (["4", "4"], 1.0)
            (row,) = json.loads((tmp_path / "a_results.json").read_text())
            assert (row["score"], row["all_outputs"]) == (1.0, ["\\boxed{4}"] * 2)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 120) == 0, err.read_text()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"tools": ["answer"]}, "--tools: the tool `answer` would end an episode"),
        ({"tools": ["calc"]}, "there is no tool 'calc'"),
        ({"tools": ["absent.toml"]}, "absent.toml"),
        ({"tools": ["calculator", "code_interpreter"], "format": "code"}, "--format: "),
        ({"format": "fenced"}, "--format: .*writes shell scripts"),
    ],
)
async def test_what_cannot_be_used_is_refused_at_the_start(
    settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        async with service(model="http://127.0.0.1:9/v1", model_name="m", **settings):
            pass


async def test_a_client_that_leaves_makes_room_and_a_full_queue_refuses() -> None:
    go, asked = threading.Event(), threading.Event()

    def script(_: Sequence[Any]) -> str:
        asked.set()
        go.wait()
        return "\\boxed{4}"

    body = {"tasks": TASKS[:1], "k": 1}
    settings: dict[str, Any] = {"model_name": "m", "max_requests": 1, "max_queued": 1}
    with ScriptedServer(script) as model:
        async with service(model=model.url, **settings) as (queue, http):
            first = asyncio.create_task(http.post("/evaluate", json=body))
            await until(asked.is_set)
            second = asyncio.create_task(http.post("/evaluate", json=body))
            await until(lambda: queue.waiting == 1)
            third = await http.post("/evaluate", json=body)
            assert (third.status_code, third.headers["retry-after"]) == (503, "1")
            first.cancel()  # no reply has come yet, and the second request begins
            await asyncio.gather(first, return_exceptions=True)
            await until(lambda: queue.waiting == 0)
            go.set()
            assert (await second).json()["results"][0]["answers"] == ["4"]


async def test_a_failure_of_the_model_is_no_score() -> None:
    async with service(model="http://127.0.0.1:9/v1", model_name="m") as (_, http):
        answer = await http.post("/evaluate", json={"tasks": TASKS, "k": 2})
        assert answer.status_code == 503
        assert answer.json().keys() == {"error"}
        with pytest.raises(InfrastructureError, match="status 503"):
            await Scorer(str(http.base_url), k=2).answers("What is 2 + 2?")
        malformed = await http.post("/evaluate", json={"tasks": [], "k": 2})
        assert malformed.status_code == 400


async def test_a_real_small_model_answers_the_same_again(small: Path) -> None:
    body = {"tasks": TASKS[:2], "k": 2, "sampling": {"max_tokens": 4}}
    async with service(model=str(small), context=256) as (_, http):
        first = await http.post("/evaluate", json=body)
        assert first.status_code == 200, first.text
        assert (await http.post("/evaluate", json=body)).json() == first.json()
        assert [one["k"] for one in first.json()["results"]] == [2, 2]


def test_an_endpoint_needs_a_name_and_nothing_else_has_one(tmp_path: Path) -> None:
    for settings in ({"model": "http://h/v1"}, {"model": str(tmp_path), "model_name": "m"}):
        with pytest.raises(ValueError, match="model_name"):
            EvaluateConfig(**settings)


def test_another_address_needs_a_token() -> None:
    with pytest.raises(ValueError, match="other machines need a `token`"):
        EvaluateConfig(model="http://h/v1", model_name="m", host="0.0.0.0")
