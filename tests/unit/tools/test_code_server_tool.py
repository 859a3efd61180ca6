"""The code interpreter on a server that speaks SandboxFusion's protocol: the agent sees what its program
does, and never what the server does wrong."""

from __future__ import annotations

from typing import Any

import pytest

from air.errors import ConfigError, InfrastructureError
from air.sandbox.remote.sandbox_fusion import longest_run
from air.tools import ToolContext, ToolResult, ToolSet, load
from tests.unit.sandbox.fusion_server import DONE, RAN, answering


def tools(address: str, **settings: Any) -> ToolSet:
    return ToolSet(
        load({"name": "code_interpreter", "server": f"http://{address}", "seconds": 5, **settings})
    )


async def called(tools: ToolSet, code: str = "print(42)") -> ToolResult:
    assert tools.box is None
    async with await tools.open(ToolContext(seed=0)) as opened:
        return await opened.call("code_interpreter", {"code": code})


def failed(**result: Any) -> dict[str, Any]:
    return {"status": "Failed", "run_result": RAN | result}


@pytest.mark.parametrize(
    ("answer", "observation", "status"),
    [
        (DONE, "42", "success"),
        (DONE | {"run_result": RAN | {"stdout": "", "stderr": None}}, "[no output]", "success"),
        (failed(return_code=1, stderr="ValueError\n"), "42\nValueError\n[exit 1]", "error"),
        (
            failed(status="TimeLimitExceeded", return_code=None),
            "42\n[the program exceeded its time limit of 5 s]",
            "error",
        ),
    ],
)
async def test_what_a_program_does_is_the_observation(
    answer: Any, observation: str, status: str
) -> None:
    with answering((200, answer)) as (address, requests):
        result = await called(tools(address))
    assert (result.observation, result.status) == (observation, status)
    (request,) = requests
    assert (request["code"], request["language"]) == ("print(42)", "python")
    assert request["run_timeout"] == 5


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, "oops"),
        (503, "full"),
        (401, "no token"),
        (422, "no Python"),
        (200, {"status": "SandboxError", "message": "no engine"}),
        (200, "<html>"),
    ],
)
async def test_a_failure_of_the_server_is_no_observation(status: int, body: Any) -> None:
    with (
        answering((status, body)) as (address, requests),
        pytest.raises(InfrastructureError, match=r"127\.0\.0\.1"),
    ):
        await called(tools(address))
    codes = [request["code"] for request in requests]
    # A wrong token, for example, fails at every program.
    probed = [] if status in (401, 422) else ["print(1)"]
    assert codes == ["print(42)", *probed]


async def test_a_program_at_which_the_server_fails_once_is_repeated() -> None:
    with answering((500, "oops"), (200, DONE), (200, DONE)) as (address, requests):
        result = await called(tools(address))
    assert (result.observation, result.status) == ("42", "success")
    assert [request["code"] for request in requests] == ["print(42)", "print(1)", "print(42)"]


async def test_a_program_that_makes_the_server_fail_is_the_agents() -> None:
    """Otherwise an agent could end any episode without its reward."""
    with answering((500, "oops"), (200, DONE), (500, "oops")) as (address, _):
        result = await called(tools(address))
    assert (result.observation, result.status) == ("The server cannot run this program.", "error")


async def test_a_server_that_is_away_is_no_observation() -> None:
    with answering() as (address, _):
        pass
    with pytest.raises(InfrastructureError, match=address):
        await called(tools(address))


def test_a_call_lasts_longer_than_all_attempts_at_a_slow_or_full_server() -> None:
    """Otherwise the end of the call, which is an observation, would come first."""
    (tool,) = tools("127.0.0.1:1", seconds=7).tools.values()
    assert tool.seconds > 3 * longest_run(10 + 7)


async def test_a_program_that_is_too_large_is_not_the_servers_fault() -> None:
    with answering((413, "why")) as (address, requests):
        large = await called(tools(address))
        half = await called(tools(address), "print('\ud800')")
    assert (large.status, half.status) == ("error", "error")
    assert large.observation == "The program or its output is too large."
    assert len(requests) == 1  # no JSON can hold the other program


async def test_the_token_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIR_TEST_TOKEN", raising=False)
    with answering((200, DONE)) as (address, requests):
        with pytest.raises(ConfigError, match="AIR_TEST_TOKEN is not set"):
            tools(address, key_variable="AIR_TEST_TOKEN")
        monkeypatch.setenv("AIR_TEST_TOKEN", "secret")
        assert (await called(tools(address, key_variable="AIR_TEST_TOKEN"))).observation == "42"
    assert requests[0]["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"server": "localhost:8080"}, "write http://HOST:PORT"),
        ({"server": "http://a", "box": {"image": "b"}}, "`box` is for calls in a box"),
        ({"key_variable": "KEY"}, "`key_variable` is for a `server`"),
    ],
)
def test_settings_that_contradict_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load({"name": "code_interpreter", **settings})
