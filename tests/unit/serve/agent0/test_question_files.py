"""`GET /hello?name=FILE` of `air serve evaluate`: requests of Agent0's curriculum training, a scripted model,
real files."""

from __future__ import annotations

import asyncio
import io
import json
import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from air.errors import ConfigError
from air.serve.evaluate.files_protocol import QuestionFiles, result
from air.serve.evaluate.row_files import Row, RowFiles
from air.serve.evaluate.server import Evaluate, EvaluateServer, opened
from air.serve.evaluate.settings import EvaluateConfig
from air.serve.http.app import application
from air.serve.http.log import Log
from air.serve.http.metrics import Metrics
from air.testing import ScriptedServer
from air.train.coevolve.evaluate_service import LARGEST_BODY, MOST_TASKS
from air.worlds.proposals.scorer import Answered
from air.worlds.rows.reading import LONGEST_QUESTION
from tests.tools_server import running
from tests.until import until

ROWS = [
    {"question": "What is 2 + 2?", "answer": "4"},
    {"question": "", "answer": ""},
    {"question": "What is 2 + 3?", "answer": "6"},
]


@dataclass(frozen=True)
class Service:
    """A server with a folder of files, and a client of it."""

    folder: Path
    server: EvaluateServer
    http: httpx.AsyncClient

    def write(self, rows: Any = ROWS, name: str = "temp_0_1_2.json") -> Path:
        path = self.folder / name
        path.write_text(json.dumps(rows, indent=4))
        return path

    async def hello(self, name: object, **options: Any) -> httpx.Response:
        return await self.http.get("/hello", params={"name": str(name)}, **options)


@asynccontextmanager
async def service(tmp_path: Path, url: str, **settings: Any) -> AsyncIterator[Service]:
    folder = tmp_path / "temp_results"
    folder.mkdir(exist_ok=True)
    config = EvaluateConfig(model=url, model_name="m", files=folder, **settings)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(opened(config, Metrics(), Log(io.StringIO())))
        app = application(server, [Evaluate(server), QuestionFiles(server)])
        address = await stack.enter_async_context(running(app))
        client = httpx.AsyncClient(base_url=address, timeout=300)
        yield Service(folder, server, await stack.enter_async_context(client))


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Service]:
    with ScriptedServer(solved) as model:
        async with service(tmp_path, model.url, k=2) as one:
            yield one


def solved(messages: Sequence[Any]) -> str:
    text = str(messages[-1]["content"])
    return "So \\boxed{4}." if "2 + 2" in text else "It is \\boxed{5}."


def results_of(path: Path) -> Path:
    """Where the client looks for the results."""
    return Path(str(path).replace(".json", "_results.json"))


async def test_the_reward_function_of_the_original_gets_its_scores(tmp_path: Path) -> None:
    """The client is `generate_results` and `fetch` of aiming-lab/Agent0 at 3cf8bfe,
    Agent0/curriculum_train/examples/reward_function/curriculum_reward.py; the server is `hello` of
    vllm_service_init/start_vllm_server_tool.py there.

    The client splits its rows over four servers, so a file can have no row. It writes each file with an
    indent of 4 under STORAGE_PATH/temp_results, sends `/hello?name=` with the absolute path unquoted to the
    host 0.0.0.0, does not look at the response, opens the path with `.json` replaced by `_results.json`,
    reads `question` and `score`, and removes only this file. Rows without a question are empty. The client
    keeps only the last character of the proposer's answer, so an answer in its rows has one character. The
    server's response is one `message`.
    """
    asked: list[Any] = []

    def script(messages: Sequence[Any]) -> str:
        asked.append(messages)
        return solved(messages)

    with ScriptedServer(script) as model:
        async with service(tmp_path, model.url) as served:
            final: list[Any] = []
            for number, rows in enumerate([ROWS[:2], ROWS[2:], [], []]):
                path = served.write(rows, f"temp_{number}_1733000000000_4711.json")
                port = served.http.base_url.port
                response = await served.http.get(f"http://0.0.0.0:{port}/hello?name={path}")
                assert response.json() == {
                    "message": f"Processed {path}, results saved to {results_of(path)}."
                }
                assert not path.exists()
                final.extend(json.loads(results_of(path).read_text()))
                results_of(path).unlink()
            assert list(served.folder.iterdir()) == []
    assert final == [
        {
            "question": "What is 2 + 2?",
            "answer": "4",
            "score": 1.0,
            "all_outputs": ["So \\boxed{4}."] * 10,
            "extracted_results": ["4"] * 10,
        },
        {"question": "", "answer": "", "score": -1, "all_outputs": [], "extracted_results": []},
        {
            "question": "What is 2 + 3?",
            "answer": "5",
            "score": 0.0,
            "all_outputs": ["It is \\boxed{5}."] * 10,
            "extracted_results": ["5"] * 10,
        },
    ]
    assert len(asked) == 20


def test_a_row_is_scored_by_its_majority() -> None:
    """By hand: 6 of 10 replies agree with the proposer; one of ten is not above 0.1; a reply without an
    answer is in no class, but Agent0's parser calls it `None`."""
    row = Row(question="What is 12 / 2?", answer="12/2")
    answers = ["6"] * 6 + ["5"] * 3 + [None]
    found = result(row, Answered(answers, 0.0, ["r"] * 10), "forms")
    assert (found["score"], found["answer"], found["all_outputs"]) == (0.6, "6", ["r"] * 10)
    assert found["extracted_results"] == ["6"] * 6 + ["5"] * 3 + ["None"]
    alone = result(row, Answered(["6"] + [None] * 9, 0.0), "forms")
    assert (alone["score"], alone["answer"]) == (0, "6")
    unreadable = result(row, Answered([None] * 10, 0.0), "forms")
    assert (unreadable["score"], unreadable["answer"]) == (0, "")
    for blank in (Row(question="q", answer=" "), Row(question="", answer="4")):
        entry = result(blank, Answered([None], 0.0), "forms")
        assert (entry["score"], entry["answer"]) == (-1, blank.answer)


async def test_the_settings_of_the_server_hold_for_both_requests(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    async def reply(request: Request) -> JSONResponse:
        asked.append(await request.json())
        message = {"role": "assistant", "content": "\\boxed{4}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = {"id": "c", "object": "chat.completion", "created": 0, "model": "m"}
        return JSONResponse({**head, "choices": [choice]})

    app = Starlette(routes=[Route("/v1/chat/completions", reply, methods=["POST"])])
    settings = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 2048}
    async with running(app) as url, service(tmp_path, f"{url}/v1", k=3, **settings) as served:
        path = served.write(ROWS[:1])
        assert (await served.hello(path.name)).status_code == 200
        (row,) = json.loads(results_of(path).read_text())
        assert len(row["extracted_results"]) == 3
        body = {"tasks": [{"id": "a", "question": "What is 2 + 2?"}], "sampling": {"top_p": 0.5}}
        answer = await served.http.post("/evaluate", json=body)
        assert answer.json()["results"][0]["k"] == 3
    assert [one["top_p"] for one in asked] == [0.9] * 3 + [0.5] * 3
    for one in asked:
        limit = one.get("max_completion_tokens", one.get("max_tokens"))
        assert (one["temperature"], limit) == (0.7, 2048)


async def test_names_that_lead_out_of_the_folder_are_refused(served: Service) -> None:
    outside = served.folder.parent / "outside"
    outside.mkdir()
    secret = outside / "secret.json"
    secret.write_text(json.dumps(ROWS))
    (served.folder / "link.json").symlink_to(secret)
    (served.folder / "away").symlink_to(outside)
    (served.folder / "inner").mkdir()
    (served.folder / "loop").symlink_to(served.folder / "loop")
    (served.folder / "dir.json").mkdir()
    os.mkfifo(served.folder / "pipe.json")
    for name, status, text in [
        (secret, 403, "outside the folder"),
        ("../outside/secret.json", 403, "outside the folder"),
        ("inner/../../outside/secret.json", 403, "outside the folder"),
        ("/etc/absent/x.json", 403, "outside the folder"),
        ("away/secret.json", 403, "outside the folder"),
        ("link.json", 403, "symbolic link"),
        ("dir.json", 403, "not a regular file"),
        ("pipe.json", 403, "not a regular file"),
        ("loop/x.json", 400, "cannot be followed"),
        ("absent.json", 404, "no such file"),
        ("absent/x.json", 404, "no such file"),
        ("../temp_results/absent.json", 404, "no such file"),
        ("x.txt", 400, "must end in .json"),
        ("", 400, "must end in .json"),
        ("x.json.json", 400, "nowhere else"),
        ("x\0.json", 400, "must end in .json"),
        ("x" * 300 + ".json", 400, "name is too long"),
    ]:
        response = await served.hello(name)
        assert (response.status_code, list(response.json())) == (status, ["error"]), name
        assert text in response.json()["error"]
    assert json.loads(secret.read_text()) == ROWS
    assert list(outside.iterdir()) == [secret]
    assert (await served.http.get("/hello")).status_code == 400


async def test_a_link_to_the_folder_is_no_way_out(served: Service) -> None:
    """The disk can have another name on the client's machine, or a link can lead to it."""
    alias = served.folder.parent / "alias"
    alias.symlink_to(served.folder)
    path = served.write()
    response = await served.hello(alias / path.name)
    assert response.status_code == 200
    assert str(results_of(alias / path.name)) in response.json()["message"]
    assert len(json.loads(results_of(path).read_text())) == 3


MALFORMED = [
    ("{", 400, "Invalid JSON"),
    ("", 400, "Invalid JSON"),
    ('{"question": "q"}', 400, "valid array"),
    ('[{"question": "q"}, 7]', 400, "x.json: 1: "),
    ('[{"question": 7, "answer": "a"}]', 400, "0: question: "),
    ('[{"question": "q", "answer": null}]', 400, "0: answer: "),
    ("[" * 100_000, 400, "recursion"),
    (json.dumps([{}] * (MOST_TASKS + 1)), 400, f"at most {MOST_TASKS}"),
    ("[" + " " * LARGEST_BODY + "]", 413, f"more than {LARGEST_BODY} bytes"),
]


async def test_a_malformed_file_is_refused_and_stays(served: Service) -> None:
    path = served.folder / "x.json"
    for text, status, problem in MALFORMED:
        path.write_text(text)
        results_of(path).write_text("[]")  # of an earlier request
        response = await served.hello("x.json")
        assert (response.status_code, response.text.count("\n")) == (status, 0), text[:40]
        assert problem in response.json()["error"]
        assert list(served.folder.iterdir()) == [path]


async def test_a_failure_of_the_model_is_no_score(tmp_path: Path) -> None:
    async with service(tmp_path, "http://127.0.0.1:9/v1", k=1) as served:
        path = served.write()
        results_of(path).write_text("[]")
        response = await served.hello(path)
        assert (response.status_code, list(response.json())) == (503, ["error"])
        assert list(served.folder.iterdir()) == [path]  # so the client can ask again
        path.write_text(json.dumps(ROWS[1:2]))
        assert (await served.hello(path)).status_code == 200  # no question is for the model


async def test_results_that_cannot_be_stored_are_an_error(served: Service) -> None:
    path = served.write(ROWS[1:2])
    results_of(path).mkdir()
    response = await served.hello(path)
    assert response.status_code == 503
    assert path.exists()


async def test_a_question_that_is_too_long_has_no_answers(served: Service) -> None:
    rows = [{"question": "q" * (LONGEST_QUESTION + 1), "answer": "4"}, ROWS[0]]
    path = served.write(rows)
    assert (await served.hello(path)).status_code == 200
    long, short = json.loads(results_of(path).read_text())
    assert (long["score"], long["answer"], long["extracted_results"]) == (0, "", ["None"] * 2)
    assert short["score"] == 1


BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"


async def test_web_pages_and_heads_are_refused(served: Service) -> None:
    path = served.write()
    site = "http://example.com"
    for headers in (
        {"sec-fetch-site": "cross-site"},  # of an image, which has no `Origin`
        {"sec-fetch-site": "new"},
        {"user-agent": BROWSER},  # which does not say for which page
        {"user-agent": BROWSER, "host": "0.0.0.0"},
        {"origin": site},
        {"host": "example.com"},
    ):
        assert (await served.hello(path, headers=headers)).status_code == 403, headers
    head = await served.http.head("/hello", params={"name": str(path)})
    assert head.status_code == 405
    assert path.exists()
    own = {"sec-fetch-site": "none", "user-agent": BROWSER}  # typed into the address bar
    assert (await served.hello(path, headers=own)).status_code == 200


async def test_the_token_is_required(tmp_path: Path) -> None:
    with ScriptedServer(solved) as model:
        async with service(tmp_path, model.url, k=1, token="secret") as served:
            path = served.write()
            assert (await served.hello(path)).status_code == 401
            assert path.exists()
            key = {"authorization": "Bearer secret"}
            page = {"sec-fetch-site": "cross-site", **key}
            assert (await served.hello(path, headers=page)).status_code == 403
            assert (await served.hello(path, headers=key)).status_code == 200


class Gate:
    """A model that answers only after `go`."""

    def __init__(self) -> None:
        self.asked, self.go = threading.Event(), threading.Event()

    def __call__(self, messages: Sequence[Any]) -> str:
        self.asked.set()
        self.go.wait()
        return solved(messages)


async def test_only_one_request_at_a_time_has_a_file(tmp_path: Path) -> None:
    gate = Gate()
    with ScriptedServer(gate) as model:
        async with service(tmp_path, model.url, k=1) as served:
            path = served.write()
            first = asyncio.create_task(served.hello(path))
            await until(gate.asked.is_set)
            for name in (path, path.name, f"../temp_results/{path.name}"):
                second = await served.hello(name)
                assert second.status_code == 409
                assert "another request" in second.json()["error"]
            assert list(served.folder.iterdir()) == [path]
            gate.go.set()
            assert (await first).status_code == 200
            assert len(json.loads(results_of(path).read_text())) == 3
            assert (await served.hello(path)).status_code == 404


async def test_a_client_that_leaves_gets_no_results(tmp_path: Path) -> None:
    gate = Gate()
    with ScriptedServer(gate) as model:
        async with service(tmp_path, model.url, k=1, max_requests=1, max_queued=1) as served:
            first = served.write(name="first.json")
            request = asyncio.create_task(served.hello(first))
            await until(gate.asked.is_set)
            second = asyncio.create_task(served.hello(served.write(name="second.json")))
            await until(lambda: served.server.queue.waiting == 1)
            full = await served.hello(served.write(name="third.json"))
            assert (full.status_code, full.headers["retry-after"]) == (503, "1")
            request.cancel()  # its episodes end, and the second request begins
            await asyncio.gather(request, return_exceptions=True)
            await until(lambda: served.server.queue.waiting == 0)
            gate.go.set()
            assert (await second).status_code == 200
            names = sorted(path.name for path in served.folder.iterdir())
            assert names == ["first.json", "second_results.json", "third.json"]
            assert (await served.hello(first)).status_code == 200


async def test_the_results_are_never_half_written(served: Service) -> None:
    """Another program that reads as fast as it can sees no file, or a whole one."""
    rows = [{"question": "", "answer": "x" * 2000}] * MOST_TASKS
    path, seen = served.folder / "x.json", set[int]()
    done = threading.Event()

    def reader() -> None:
        while not done.is_set():
            try:
                seen.add(len(json.loads(results_of(path).read_text())))
            except FileNotFoundError:
                continue

    reading = asyncio.create_task(asyncio.to_thread(reader))
    try:
        for _ in range(5):
            served.write(rows, "x.json")
            assert (await served.hello(path)).status_code == 200
    finally:
        done.set()
        await reading
    assert seen <= {MOST_TASKS}


def test_the_folder_must_be_usable(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (tmp_path / "absent", file):
        with pytest.raises(ConfigError, match=r"--files: .* is not a folder"):
            RowFiles(path)


async def test_without_a_folder_there_is_no_such_path(tmp_path: Path) -> None:
    with ScriptedServer(solved) as model:
        config = EvaluateConfig(model=model.url, model_name="m")
        async with (
            opened(config, Metrics(), Log(io.StringIO())) as server,
            running(application(server, [Evaluate(server)])) as url,
            httpx.AsyncClient(base_url=url) as http,
        ):
            assert (await http.get("/hello?name=x.json")).status_code == 404
            host = {"host": "0.0.0.0"}
            assert (await http.get("/health", headers=host)).status_code == 403
