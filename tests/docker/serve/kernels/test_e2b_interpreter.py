"""E2B's stock code interpreter against `air serve sandbox`: results, errors and output of Python cells."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from e2b_code_interpreter import AsyncSandbox, Sandbox

from tests.docker.serve.serving import Served, serving
from tests.until import until

# Not marked `docker`: where Docker is required, this image is still not.
pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the clients' own parts
]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    from air.sandbox.docker import air_images

    if reason := air_images.why_not_ready("air-e2b"):
        pytest.skip(f"{reason}: air images build e2b")
    with serving("--max-boxes", "2", "--warm", "0") as server:
        yield server


@pytest.fixture(scope="module")
def options(server: Served) -> dict[str, Any]:
    return {"api_url": server.url, "sandbox_url": server.url, "api_key": "e2b_" + "0" * 40}


@pytest.fixture(scope="module")
def sandbox(options: dict[str, Any]) -> Iterator[Sandbox]:
    with Sandbox.create(timeout=600, **options) as it:
        yield it


def test_cells_share_variables_and_give_their_last_value(sandbox: Sandbox) -> None:
    sandbox.files.write("numbers.txt", "1 2 3")
    sandbox.run_code("numbers = [int(n) for n in open('numbers.txt').read().split()]")
    done = sandbox.run_code("import sys; print('out'); print('no', file=sys.stderr); sum(numbers)")
    assert done.text == "6"
    assert done.error is None
    assert ("".join(done.logs.stdout), "".join(done.logs.stderr)) == ("out\n", "no\n")


def test_an_error_has_a_name_a_value_and_a_traceback(sandbox: Sandbox) -> None:
    done = sandbox.run_code("print('before')\n1 / 0")
    assert done.error is not None
    assert (done.error.name, done.error.value) == ("ZeroDivisionError", "division by zero")
    assert "ZeroDivisionError" in done.error.traceback  # the rest is coloured
    assert "".join(done.logs.stdout) == "before\n"
    assert sandbox.run_code("40 + 2").text == "42"


def test_a_picture_is_a_result(sandbox: Sandbox) -> None:
    code = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"
    assert [bool(result.png) for result in sandbox.run_code(code).results] == [True]


def test_contexts_do_not_share_variables(sandbox: Sandbox) -> None:
    sandbox.run_code("colour = 'green'")
    other = sandbox.create_code_context()
    missing = sandbox.run_code("colour", context=other)
    assert missing.error is not None
    assert missing.error.name == "NameError"
    sandbox.remove_code_context(other)
    assert sandbox.run_code("colour").text == "'green'"


def test_environment_of_one_cell_ends_with_it(sandbox: Sandbox) -> None:
    read = "import os; os.environ.get('SIZE')"
    assert sandbox.run_code(read, envs={"SIZE": "7"}).text == "'7'"
    assert sandbox.run_code(read).text is None


async def test_the_async_client_runs_cells_of_two_contexts_at_once(options: dict[str, Any]) -> None:
    sandbox = await AsyncSandbox.create(timeout=600, **options)
    try:
        first, second = [await sandbox.create_code_context() for _ in range(2)]
        # Each waits for the other, so both must run at the same time.
        code = (
            "import pathlib, time\npathlib.Path('{}').touch()\n"
            "while not pathlib.Path('{}').exists(): time.sleep(0.05)\nname = '{}'; name"
        )
        results = await asyncio.gather(
            sandbox.run_code(code.format("a", "b", "first"), context=first, timeout=300),
            sandbox.run_code(code.format("b", "a", "second"), context=second, timeout=300),
        )
        assert [result.text for result in results] == ["'first'", "'second'"]
        assert (await sandbox.run_code("name", context=first)).text == "'first'"
        streamed: list[str] = []
        failed = await sandbox.run_code(
            "print('out')\n1 / 0", on_stdout=lambda message: streamed.append(message.line)
        )
        assert failed.error is not None
        assert failed.error.name == "ZeroDivisionError"
        assert "".join(streamed) == "out\n"
    finally:
        await sandbox.kill()


WAITS = """
import pathlib, time
pathlib.Path('began').touch()
while not pathlib.Path('go').exists(): time.sleep(0.05)
time.sleep(5)  # the kernel's program learns in a few milliseconds who has left
'kept'
"""


async def test_a_client_that_leaves_stops_its_own_code_alone(
    server: Served, options: dict[str, Any]
) -> None:
    sandbox = await AsyncSandbox.create(timeout=600, **options)
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49999"}
    headers |= {"X-Access-Token": str(sandbox._envd_access_token)}

    def executions() -> int:
        return sum(line.get("path") == "/execute" for line in server.log())

    async def left(code: str, seconds: float) -> None:
        """Runs code whose client leaves after so many seconds."""
        before = executions()
        async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:
            body = {"code": code}
            async with client.stream("POST", "/execute", json=body, headers=headers) as answer:
                assert answer.status_code == 200
                await asyncio.sleep(seconds)
        await until(lambda: executions() > before, every=0.1)

    try:
        first = asyncio.create_task(sandbox.run_code(WAITS, timeout=300))
        while not await sandbox.files.exists("began"):  # noqa: ASYNC110 — a file has no event
            await asyncio.sleep(0.1)
        for seconds in (0.0, 0.1, 1.0):
            await left("open('late', 'w').close()", seconds)
        await sandbox.files.write("go", "")
        result = await first
        assert (result.error, result.text) == (None, "'kept'")
        late = await sandbox.run_code("pathlib.Path('late').exists()")
        assert late.text == "False"
        for seconds in (0.0, 0.01, 1.0):  # perhaps before the code begins
            await left("time.sleep(3600)", seconds)
        assert (await sandbox.run_code("40 + 2", timeout=300)).text == "42"
    finally:
        await sandbox.kill()
