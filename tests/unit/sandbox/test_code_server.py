"""The client of SandboxFusion's protocol: what it tries again, and whose fault an answer is."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from air.errors import ConfigError, InfrastructureError, UsageError
from air.sandbox.remote.sandbox_fusion import EXTRA_SECONDS, CodeServer, TooLargeError
from tests.unit.sandbox.fusion_server import DONE, RAN, answering


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


async def test_a_token_is_sent() -> None:
    with answering((200, DONE)) as (address, requests):
        async with CodeServer(f"http://{address}", token="secret") as server:
            await server.run("x")
    assert requests[0]["authorization"] == "Bearer secret"


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
        pytest.param(200, "[" * 100_000, "is not a SandboxFusion server", id="nested"),
        (200, {"id": 1}, "is not a SandboxFusion server"),
        (200, DONE | {"run_result": RAN | {"stdout": 5}}, "is not a SandboxFusion server"),
        (200, DONE | {"run_result": "42"}, "is not a SandboxFusion server"),
        (200, DONE | {"files": {"a": "YQ"}}, "is not a SandboxFusion server"),
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


async def test_what_is_too_large_is_told_apart() -> None:
    long = DONE | {"run_result": RAN | {"stdout": "x" * 10_000}}
    with answering((413, "why"), (200, long)) as (address, _):
        async with CodeServer(f"http://{address}", most_bytes=5000) as server:
            with pytest.raises(TooLargeError, match="with status 413: why"):
                await server.run("x")
            with pytest.raises(TooLargeError, match="the answer has more than 5000 bytes"):
                await server.run("x")


async def test_half_a_character_in_the_output_is_a_result() -> None:
    with answering((200, DONE | {"run_result": RAN | {"stdout": "a\ud800b"}})) as (address, _):
        async with CodeServer(f"http://{address}") as server:
            assert (await server.run("x")).stdout == "a?b"


async def test_a_server_that_answers_without_end_is_a_failure_of_the_infrastructure() -> None:
    """Each byte comes soon after the one before, but the answer never ends."""

    ended = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b" ")
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await reader.read()
        writer.close()
        ended.set()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        async with CodeServer(f"http://127.0.0.1:{port}") as server:
            with pytest.raises(InfrastructureError, match="no complete answer within 1 s"):
                await server.run("x", compile_seconds=0, run_seconds=1 - EXTRA_SECONDS)
        await ended.wait()


async def test_no_server_is_a_failure_of_the_infrastructure() -> None:
    with answering() as (address, _):
        pass
    async with CodeServer(f"http://{address}") as server:
        with pytest.raises(InfrastructureError, match=address):
            await server.run("x")


@pytest.mark.parametrize("url", ["localhost:8080", "http://", "http://host:port", "ftp://host"])
def test_a_url_is_checked(url: str) -> None:
    with pytest.raises(ConfigError, match="write http://HOST:PORT"):
        CodeServer(url)
