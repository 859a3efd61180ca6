"""`GET /hello?name=FILE` of `air serve evaluate`: requests of Agent0's curriculum training, a scripted model,
real files."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
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
from air.serve.evaluate.row_files import Questions, Row, RowFile, RowFiles
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
    log: io.StringIO

    def write(self, rows: Any = ROWS, name: str = "temp_0_1_2.json") -> Path:
        path = self.folder / name
        path.write_text(json.dumps(rows, indent=4))
        return path

    async def hello(self, name: object, **options: Any) -> httpx.Response:
        return await self.http.get("/hello", params={"name": str(name)}, **options)


@asynccontextmanager
async def service(
    tmp_path: Path, url: str, files: Callable[[Path], RowFiles] = RowFiles, **settings: Any
) -> AsyncIterator[Service]:
    folder = tmp_path / "temp_results"
    folder.mkdir(exist_ok=True)
    config = EvaluateConfig(model=url, model_name="m", files=folder, **settings)
    log = io.StringIO()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(opened(config, Metrics(), Log(log)))
        server = dataclasses.replace(server, files=files(folder))
        app = application(server, [Evaluate(server), QuestionFiles(server)])
        address = await stack.enter_async_context(running(app))
        client = httpx.AsyncClient(base_url=address, timeout=300)
        yield Service(folder, server, await stack.enter_async_context(client), log)


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
        ("x_results.json", 400, "must not end in _results.json"),
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


class Gate:
    """A model that answers only after `go`."""

    def __init__(self) -> None:
        self.asked, self.go = threading.Event(), threading.Event()

    def __call__(self, messages: Sequence[Any]) -> str:
        self.asked.set()
        self.go.wait()
        return solved(messages)


@asynccontextmanager
async def request_in_progress(
    tmp_path: Path, **settings: Any
) -> AsyncIterator[tuple[Service, Path, Callable[[], Any]]]:
    """Yields a service whose model has been asked a question, the file of the question, and a function that
    lets the model answer and returns the response."""
    gate = Gate()
    with ScriptedServer(gate) as model:
        async with service(tmp_path, model.url, k=1, **settings) as served:
            path = served.write()
            request = asyncio.create_task(served.hello(path.name))
            await until(gate.asked.is_set)

            async def response() -> httpx.Response:
                gate.go.set()
                return await request

            try:
                yield served, path, response
            finally:
                gate.go.set()


async def test_results_that_cannot_be_stored_are_an_error(tmp_path: Path) -> None:
    async with request_in_progress(tmp_path) as (served, path, response):
        results_of(path).mkdir()
        reply = await response()
        assert reply.status_code == 503
        assert reply.json()["error"].startswith(
            f"{results_of(path).name}: the results cannot be stored"
        )
        assert sorted(served.folder.iterdir()) == [path, results_of(path)]


async def test_older_results_that_cannot_be_removed_are_an_error(tmp_path: Path) -> None:
    """The model, which cannot be reached, is not even asked."""
    async with service(tmp_path, "http://127.0.0.1:9/v1", k=1) as served:
        path = served.write()
        results_of(path).mkdir()
        response = await served.hello(path.name)
        assert response.status_code == 503
        problem = f"{results_of(path).name}: the results cannot be removed"
        assert response.json()["error"].startswith(problem)
        assert path.exists()


async def test_a_request_for_results_removes_nothing(served: Service) -> None:
    """`x_results.json` can be the results of `x.json`, and must not become a file with questions."""
    path = served.write(name="x_results.json")
    second = served.write(name="x_results_results.json")
    for one in (path, second):
        assert (await served.hello(one)).status_code == 400
    assert sorted(served.folder.iterdir()) == [path, second]


NEW = [{"question": "What is 2 + 9?", "answer": "11"}]


async def test_a_file_that_is_replaced_meanwhile_stays(tmp_path: Path) -> None:
    """Neither its questions are lost, nor are the scores of the old ones taken for theirs."""
    async with request_in_progress(tmp_path) as (served, path, response):
        served.write(NEW, "new.json").replace(path)
        reply = await response()
        assert reply.status_code == 409
        assert reply.json()["error"].startswith(f"{path.name}: has changed")
        assert list(served.folder.iterdir()) == [path]
        assert (await served.hello(path)).status_code == 200
        (row,) = json.loads(results_of(path).read_text())
        assert row["question"] == NEW[0]["question"]


async def test_a_file_that_is_gone_meanwhile_has_results(tmp_path: Path) -> None:
    async with request_in_progress(tmp_path) as (_, path, response):
        path.unlink()
        assert (await response()).status_code == 200
        assert len(json.loads(results_of(path).read_text())) == 3


@contextmanager
def ordinary_user() -> Iterator[None]:
    """If this process is root's, lets it have the rights of another user only during the block."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create a file of another user")
async def test_results_stay_if_the_questions_cannot_be_removed(open_folder: Path) -> None:
    with ScriptedServer(solved) as model:
        async with service(open_folder, model.url, k=1) as served:
            # With the sticky bit, each user can remove only their own files.
            served.folder.chmod(0o1777)
            path = served.write()
            first = served.write(name="first.json")  # so that air has imported what it needs
            assert (await served.hello(first)).status_code == 200
            with ordinary_user():
                response = await served.hello(path)
            assert response.status_code == 200
            warning = f"{path} cannot be removed: Operation not permitted"
            assert response.json()["message"].endswith(f"{results_of(path)}. {warning}.")
            assert [
                line["text"]
                for line in map(json.loads, served.log.getvalue().splitlines())
                if line["event"] == "warning"
            ] == [warning]
            assert path.exists()
            assert len(json.loads(results_of(path).read_text())) == 3


async def test_a_file_that_the_server_may_not_read_is_forbidden(open_folder: Path) -> None:
    with ScriptedServer(solved) as model:
        async with service(open_folder, model.url, k=1) as served:
            path = served.write()
            path.chmod(0)
            assert (await served.hello("absent.json")).status_code == 404  # air has imported all
            with ordinary_user():
                response = await served.hello(path.name)
            assert response.status_code == 403
            assert response.json()["error"].startswith(f"{path.name}: the server may not read it")


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
        {"sec-fetch-site": "same-site"},  # of any other port of this machine
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


class SlowFile(RowFile):
    """A file whose first reading lasts until `go`, as on a slow disk."""

    began, go = threading.Event(), threading.Event()

    def read(self) -> Questions:
        if not self.began.is_set():
            self.began.set()
            self.go.wait()
        return super().read()


class SlowFiles(RowFiles):
    @contextmanager
    def claimed(self, name: str) -> Iterator[RowFile]:
        with super().claimed(name) as file:
            yield SlowFile(file.name, file.path, file.results)


async def test_a_file_is_in_use_until_its_reading_has_ended(tmp_path: Path) -> None:
    """A thread that still reads for a client that has left must not meet the next request's files."""
    SlowFile.began.clear()
    SlowFile.go.clear()
    with ScriptedServer(solved) as model:
        async with service(tmp_path, model.url, SlowFiles, k=1) as served:
            path = served.write()
            try:
                request = asyncio.create_task(served.hello(path))
                await until(SlowFile.began.is_set)
                request.cancel()
                await asyncio.gather(request, return_exceptions=True)
                for _ in range(20):  # meanwhile the server learns that the client has left
                    assert (await served.hello("absent.json")).status_code == 404
                assert (await served.hello(path)).status_code == 409
            finally:
                SlowFile.go.set()
            await until(lambda: served.server.queue.running == 0)
            assert (await served.hello(path)).status_code == 200


async def test_older_results_are_removed_before_the_request_waits(tmp_path: Path) -> None:
    async with request_in_progress(tmp_path, max_requests=1) as (served, path, response):
        waiting = served.write(name="waiting.json")
        results_of(waiting).write_text("[]")
        queued = asyncio.create_task(served.hello(waiting))
        await until(lambda: not results_of(waiting).exists())
        assert (await served.hello(waiting)).status_code == 409
        assert (await response()).status_code == 200
        assert (await queued).status_code == 200
        results_of(path).write_text("[]")
        assert (await served.hello(path)).status_code == 404  # the questions are gone
        assert results_of(path).read_text() == "[]"


async def test_the_results_are_never_half_written(served: Service) -> None:
    """Another program that reads as fast as it can sees no file, or a whole one."""
    rows = [{"question": "", "answer": "x" * 2000}] * MOST_TASKS
    path, seen, sizes = served.folder / "x.json", list[int](), set[int]()
    done = threading.Event()

    def reader() -> None:
        while not done.is_set():
            try:
                sizes.add(len(json.loads(results_of(path).read_text())))
                seen.append(1)
            except FileNotFoundError:
                continue

    reading = asyncio.create_task(asyncio.to_thread(reader))
    try:
        for _ in range(5):
            served.write(rows, "x.json")
            assert (await served.hello(path)).status_code == 200
            seen.clear()  # each time, the reader must see the new file
            await until(lambda: seen or reading.done())
    finally:
        done.set()
        await reading
    assert sizes == {MOST_TASKS}


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
