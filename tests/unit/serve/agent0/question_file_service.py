"""A server of question files and its client, for tests of `GET /hello?name=FILE`."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from air.serve.evaluate.files_protocol import QuestionFiles
from air.serve.evaluate.row_files import RowFiles
from air.serve.evaluate.server import Evaluate, EvaluateServer, opened
from air.serve.evaluate.settings import EvaluateConfig
from air.serve.http.app import application
from air.serve.http.log import Log
from air.serve.http.metrics import Metrics
from air.testing import ScriptedServer
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


def solved(messages: Sequence[Any]) -> str:
    text = str(messages[-1]["content"])
    return "So \\boxed{4}." if "2 + 2" in text else "It is \\boxed{5}."


def results_of(path: Path) -> Path:
    """Where the client looks for the results."""
    return Path(str(path).replace(".json", "_results.json"))


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
