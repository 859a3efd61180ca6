"""Chat completions with a loop of tool calls: OpenAI's own client, a scripted model, real tools."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from air.testing import ScriptedServer, replies, tool_calls
from tests.tools_server import BOX, Served, running, serving
from tests.until import until

SYSTEM = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. "
    "Please integrate natural language reasoning with programs to solve the problem above, and put your "
    "final answer within \\boxed{}."
)
PROBLEM = "Convert the point $(0,3)$ in rectangular coordinates to polar coordinates."
USER = [{"role": "user", "content": "2 + 2?"}]
CALCULATE = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_0",
            "type": "function",
            "function": {"name": "calculator", "arguments": '{"expression": "2 + 2"}'},
        }
    ],
}


@asynccontextmanager
async def chatting(script: Any, *tools: str, **settings: Any) -> AsyncIterator[Served]:
    """A server of tools whose model is scripted."""
    with ScriptedServer(script) as model:
        async with serving(
            *(tools or ("calculator",)), model_url=model.url, model="m", **settings
        ) as served:
            yield served


async def ask(served: Served, **body: Any) -> httpx.Response:
    return await served.http.post(
        "/v1/chat/completions", json={"model": "m", "messages": USER} | body
    )


async def test_the_clients_of_the_original_get_the_last_message(tmp_path: Path) -> None:
    """The request is that of aiming-lab/Agent0 at 3cf8bfe, `main` of
    Agent0/executor_train/eval_service/test/test_api.py, with a shorter problem and two answers. Its address
    has no `/v1`. It reads the content of the first choice's message."""
    file = tmp_path / "tools.toml"
    file.write_text(f'tools = [{{name = "code_interpreter", box = {BOX}}}]')
    code = "import math; x = math.hypot(0, 3); print(x)"
    seen: list[Sequence[Any]] = []

    def script(messages: Sequence[Any]) -> Any:
        seen.append(messages)
        if messages[-1]["role"] == "tool":
            return f"The radius is \\boxed{{{messages[-1]['content']}}}."
        function = {"name": "code_interpreter", "arguments": json.dumps({"code": code})}
        call = {"id": "c", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    async with chatting(script, str(file), session_seconds=600) as served:
        client = openai.AsyncOpenAI(
            api_key="sk-proj-1234567890", base_url=served.url, max_retries=0
        )
        async with client:
            completion = await client.chat.completions.create(
                model="m",
                messages=[
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": PROBLEM},
                ],
                temperature=0.0,
                max_tokens=2048,
                top_p=1.0,
                n=2,
            )
            models = await client.with_options(base_url=f"{served.url}/v1").models.list()
        assert [one.id for one in models.data] == ["m"]
        texts = [choice.message.content for choice in completion.choices]
        assert texts == ["The radius is \\boxed{3.0}."] * 2
        assert [choice.finish_reason for choice in completion.choices] == ["stop"] * 2
        assert completion.usage is not None
        assert completion.usage.total_tokens > 0
        assert seen[0][0]["role"] == "system"
        assert seen[0][0]["content"].startswith(SYSTEM)
        assert served.server.sessions.taken == 0
        assert served.metric("air_serve_tool_calls_total") == 2


async def test_a_model_that_writes_text_calls_tools_by_its_format() -> None:
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "2 + 2"}}</tool_call>'
    async with chatting(replies(call, "It is 4."), format="hermes") as served:
        choice = (await ask(served)).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("It is 4.", "stop")


async def test_a_tool_that_ends_the_chat_gives_the_answer() -> None:
    script = tool_calls("x", tool="answer")

    def answering(messages: Sequence[Any]) -> Any:
        reply = script(messages)
        reply["tool_calls"][0]["function"]["arguments"] = '{"answer": "4"}'
        return reply

    async with chatting(answering, "calculator", "answer") as served:
        assert (await ask(served)).json()["choices"][0]["message"]["content"] == "4"


async def test_turns_are_bounded_and_mistakes_are_shown_to_the_model() -> None:
    seen: list[Any] = []

    def script(messages: Sequence[Any]) -> Any:
        seen.append(messages[-1]["content"])
        if len(seen) == 1:
            two = {**CALCULATE, "tool_calls": CALCULATE["tool_calls"] * 2}  # type: ignore[operator]
            return two
        return CALCULATE

    async with chatting(script, max_turns=3) as served:
        choice = (await ask(served)).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
        assert "2 tool calls found" in seen[1]
        assert seen[2] == "4"
        assert len(seen) == 3


REFUSED: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({"stream": True}, 400, "stream", "not streamed"),
    ({"tools": []}, 400, "tools", "Extra inputs"),
    ({"messages": []}, 400, "messages", "at least 1"),
    ({"messages": [{"role": "robot"}]}, 400, "messages.0.role", "system"),
    ({"n": 0}, 400, "n", "greater"),
    ({"model": "gpt-4"}, 404, "model", "it is 'm'"),
    ({"n": 5}, 503, None, "exceed the 4"),
]


async def test_a_refusal_has_openais_form() -> None:
    async with chatting(replies("4"), max_sessions=4) as served:
        for body, status, param, text in REFUSED:
            response = await ask(served, **body)
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (status, param), body
            assert text in error["message"]


MESSAGE = '{"choices": [{"message": {"role": "assistant", %s}}]}'
FAILURES = [
    (500, "out of memory", 502, "answered 500: out of memory"),
    (401, "no key", 502, "answered 401"),
    (400, "the context is too long", 400, "the context is too long"),
    (200, "[]", 502, "nonsense"),
    (200, "{", 502, "nonsense"),
    (200, MESSAGE % '"content": 7', 502, "malformed"),
    (200, MESSAGE % '"tool_calls": [7]', 502, "malformed"),
]


async def test_a_failure_of_the_models_endpoint_is_no_answer() -> None:
    status, content = 200, ""

    async def reply(_: Request) -> Response:
        return Response(content, status)

    app = Starlette(routes=[Route("/v1/chat/completions", reply, methods=["POST"])])
    async with (
        running(app) as url,
        serving("calculator", model_url=f"{url}/v1", model="m") as served,
    ):
        for status, content, code, text in FAILURES:  # noqa: B007 (`reply` reads them)
            response = await ask(served)
            assert response.status_code == code, content
            assert text in response.json()["error"]["message"]
            assert served.server.sessions.taken == 0


async def test_an_endpoint_that_is_not_there_is_no_answer() -> None:
    async with serving("calculator", model_url="http://127.0.0.1:9/v1", model="m") as served:
        client = openai.AsyncOpenAI(api_key="k", base_url=f"{served.url}/v1", max_retries=0)
        async with client:
            with pytest.raises(openai.InternalServerError, match="endpoint"):
                await client.chat.completions.create(model="m", messages=USER)  # type: ignore[arg-type]


async def test_a_client_that_leaves_frees_its_place() -> None:
    go, asked = threading.Event(), threading.Event()

    def script(_: Sequence[Any]) -> str:
        asked.set()
        go.wait()
        return "4"

    async with chatting(script) as served:
        request = asyncio.create_task(ask(served))
        await until(asked.is_set)
        assert served.server.sessions.taken == 1
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await until(lambda: not served.server.sessions.taken)
        go.set()


async def test_without_a_model_there_are_no_chats() -> None:
    async with serving("calculator") as served:
        assert (await ask(served)).status_code == 404
