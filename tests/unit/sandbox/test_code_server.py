"""The client of SandboxFusion's protocol: what it tries again, and whose fault an answer is."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from air.errors import ConfigError, InfrastructureError, UsageError
from air.sandbox.remote.sandbox_fusion import CodeServer

RAN = {
    "status": "Finished",
    "execution_time": 0.5,
    "return_code": 0,
    "stdout": "42\n",
    "stderr": "",
}
DONE = {"status": "Success", "message": "", "run_result": RAN, "files": {"a": "YQ=="}}


@contextmanager
def answering(*answers: tuple[int, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that gives these answers in turn; yields its URL and the requests that arrive."""
    requests: list[dict[str, Any]] = []
    rest = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers["content-length"])
            requests.append(
                json.loads(self.rfile.read(size))
                | {"path": self.path, "authorization": self.headers["authorization"]}
            )
            status, body = rest.pop(0)
            text = body if isinstance(body, str) else json.dumps(body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Writes nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}", requests
        finally:
            server.shutdown()
            thread.join()


async def test_a_result_and_its_request() -> None:
    with answering((200, DONE)) as (address, requests):
        async with CodeServer(f"http://air:secret@{address}/run_code") as server:
            result = await server.run("x", "python", stdin="in", files={"f": b"data"}, fetch=["a"])
    assert (result.succeeded, result.stdout, result.code) == (True, "42\n", 0)
    assert (result.timed_out, result.compiled, result.seconds) == (False, True, 0.5)
    assert result.files == {"a": b"a"}
    (request,) = requests
    assert request["path"] == "/run_code"
    assert request["authorization"].startswith("Basic ")
    assert request["files"] == {"f": "ZGF0YQ=="}
    assert (request["stdin"], request["fetch_files"]) == ("in", ["a"])
    assert request["memory_limit_MB"] == -1


async def test_what_a_program_does_is_a_result() -> None:
    slow = {"status": "TimeLimitExceeded", "return_code": None, "stdout": "begun", "stderr": None}
    broken = RAN | {"return_code": 1, "stderr": "no"}
    answers = (
        {"status": "Failed", "run_result": slow},
        {"status": "Failed", "compile_result": broken, "run_result": None},
    )
    with answering(*((200, each) for each in answers)) as (address, _):
        async with CodeServer(f"http://{address}") as server:
            late, uncompiled = await server.run("x"), await server.run("x", "cpp")
    assert (late.succeeded, late.timed_out, late.code) == (False, True, None)
    assert (late.stdout, late.stderr) == ("begun", "")
    assert (uncompiled.succeeded, uncompiled.compiled, uncompiled.code) == (False, False, 1)


async def test_a_busy_server_is_asked_again() -> None:
    with answering((504, "busy"), (504, "busy"), (200, DONE)) as (address, requests):
        async with CodeServer(f"http://{address}", pause=0.01) as server:
            assert (await server.run("x")).succeeded
    assert len(requests) == 3


async def test_a_server_that_stays_busy_is_a_failure_of_the_infrastructure() -> None:
    with answering(*[(504, "busy")] * 3) as (address, requests):
        async with CodeServer(f"http://{address}", attempts=3, pause=0.01) as server:
            with pytest.raises(InfrastructureError, match="was busy at 3 attempts"):
                await server.run("x")
    assert len(requests) == 3


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (500, "oops", "status 500: oops"),
        (503, "oops", "status 503"),
        (302, "", "status 302"),
        (200, {"status": "SandboxError", "message": "no engine"}, "no engine"),
        (200, {"status": "Success"}, "an answer without a result"),
        (200, "<html>", "is not a SandboxFusion server"),
        (200, {"id": 1}, "is not a SandboxFusion server"),
    ],
)
async def test_a_failure_of_the_server_is_no_result_and_is_not_asked_again(
    status: int, body: Any, text: str
) -> None:
    with answering((status, body)) as (address, requests):
        async with CodeServer(f"http://air:secret@{address}") as server:
            with pytest.raises(InfrastructureError, match=text) as caught:
                await server.run("x")
    assert len(requests) == 1
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("status", [401, 404, 422])
async def test_a_refused_request_is_the_users_to_mend(status: int) -> None:
    with answering((status, "why")) as (address, _):
        async with CodeServer(f"http://{address}") as server:
            with pytest.raises(UsageError, match=f"with status {status}: why"):
                await server.run("x")


async def test_no_server_is_a_failure_of_the_infrastructure() -> None:
    with answering() as (address, _):
        pass
    async with CodeServer(f"http://{address}") as server:
        with pytest.raises(InfrastructureError, match=address):
            await server.run("x")


def test_a_url_is_checked() -> None:
    with pytest.raises(ConfigError, match="write http://HOST:PORT"):
        CodeServer("localhost:8080")
