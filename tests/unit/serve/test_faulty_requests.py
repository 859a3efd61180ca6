"""Faulty requests that could harm a server: with very many faults, of which the server names the first and
spends no memory on the others; and nested more deeply than Python's parser can read."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from starlette.routing import Route

from air.serve.fusion.datasets.messages import GetMetricsRequest, GetPromptsRequest
from air.serve.fusion.messages import RunCodeAnswer, RunCodeRequest, RunJupyterRequest
from air.serve.http.app import Protocol
from tests.unit.serve.test_admission import SERVERS, listening

NUMBERS = "[" + ",".join(["1"] * 1000) + "]"
TABLE = "{" + ",".join(f'"{number}":1' for number in range(1000)) + "}"
PROGRAM = '{"code":"","language":"bash",'
RESULT = '{"id":1,"accepted":true,"extracted_code":"","tests":'
DEPTH = 100_000
UNREAD = ("/create_session",)
"""Paths at which no body is read."""
ROW = {"id": 1, "content": "Add.", "test": []}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (RunCodeRequest, f'{PROGRAM}"fetch_files":{NUMBERS}}}'),
        (RunCodeRequest, f'{PROGRAM}"files":{TABLE}}}'),
        (RunJupyterRequest, f'{{"cells":{NUMBERS}}}'),
        (GetMetricsRequest, f'{{"dataset":"a","config":{{}},"results":{NUMBERS}}}'),
        (GetMetricsRequest, f'{{"dataset":"a","config":{{}},"results":[{RESULT}{NUMBERS}}}]}}'),
        (GetPromptsRequest, f'{{"dataset":"a","config":{{"provided_data":{NUMBERS}}}}}'),
        (RunCodeAnswer, f'{{"status":"Success","files":{TABLE}}}'),
    ],
)
def test_a_request_with_many_faults_is_refused_for_the_first(
    kind: type[BaseModel], text: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(text)
    assert caught.value.error_count() <= 3  # one for each form that a field may have


def test_a_file_of_a_wrong_type_is_named() -> None:
    with pytest.raises(ValidationError, match="'a' has a value of a wrong type"):
        RunCodeRequest.model_validate({"code": "", "language": "bash", "files": {"a": 1}})
    request = RunCodeRequest.model_validate({"code": "", "language": "bash", "files": {"a": None}})
    assert request.contents() == {}


def deep(depth: int) -> str:
    return "[" * depth + "]" * depth


def posted(protocols: Sequence[Protocol]) -> list[str]:
    """The paths that take a POST request, with `x` for each parameter."""
    routes = [route for each in protocols for route in each.routes()]
    posts = [each for each in routes if isinstance(each, Route) and "POST" in (each.methods or ())]
    return [re.sub(r"\{[^}]*\}", "x", route.path) for route in posts]


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_body_that_is_nested_too_deeply_is_refused(kind: str) -> None:
    async with (
        SERVERS[kind]() as (server, protocols),
        listening(server, protocols) as http,
    ):
        for path in posted(protocols):
            answer = await http.post(path, content=deep(DEPTH))
            if path == "/mcp":  # JSON-RPC: the error is in the body
                assert (answer.status_code, answer.json()["error"]["code"]) == (200, -32600)
            elif path not in UNREAD:
                assert answer.status_code in (*range(400, 500), 501), (path, answer.text[:200])
            assert (await http.get("/health")).status_code == 200


async def test_an_id_that_cannot_be_sent_back_is_refused() -> None:
    """To write JSON takes about as much of the stack as to read it: nested lists of some depth can be read,
    but not written."""
    async with (
        SERVERS["openenv"]() as (server, protocols),
        listening(server, protocols) as http,
    ):
        nested = [deep(depth) for depth in (1, *range(850, 1050))]
        for ident in ("{}", "NaN", "1e999", '"\\ud800"', *nested):
            body = f'{{"jsonrpc": "2.0", "id": {ident}, "method": "tools/list"}}'
            answer = await http.post("/mcp", content=body)
            error = {"code": -32600, "message": "Invalid Request"}
            assert answer.json() == {"jsonrpc": "2.0", "id": None, "error": error}


@pytest.mark.parametrize(
    "labels", [deep(DEPTH), f'{{"a": {deep(500)}}}'], ids=["not_read", "not_written"]
)
async def test_a_row_with_labels_that_are_nested_too_deeply_is_refused(labels: str) -> None:
    body: dict[str, Any] = {
        "dataset": "mine",
        "id": 1,
        "config": {"dataset_type": "CommonOJDataset", "provided_data": ROW | {"labels": labels}},
    }
    async with (
        SERVERS["sandbox"]() as (server, protocols),
        listening(server, protocols) as http,
    ):
        answer = await http.post("/get_prompt_by_id", json=body)
        assert answer.status_code == 400
        assert "does not fit its grader" in answer.text
        body["config"]["provided_data"]["labels"] = json.dumps({"a": [[1]]})
        answer = await http.post("/get_prompt_by_id", json=body)
        assert answer.json()["labels"] == {"a": [[1]]}
