"""What a tool's function may return. A dict can neither end the episode nor set the answer that is graded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from air.errors import ConfigError
from air.tools import (
    Reply,
    Tool,
    ToolContext,
    ToolError,
    ToolResult,
    ToolSet,
    finish,
    load,
    tool,
)


def giving(value: Any, **settings: Any) -> Tool:
    """A tool that returns `value`, or raises it."""

    def give() -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return tool(description="Gives.", **settings)(give)


async def called(one: Tool, **arguments: Any) -> ToolResult:
    async with await ToolSet([one]).open(ToolContext(seed=0)) as tools:
        return await tools.call(one.name, arguments)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", ("text", "success", {})),
        (3, ("3", "success", {})),
        ({"a": [1, None]}, ('{"a": [1, null]}', "success", {})),
        (finish("Done.", score=1), ("Done.", "finish", {"score": 1})),
        (Reply("Wrong.", "error", {"n": 2}), ("Wrong.", "error", {"n": 2})),
        ("half \ud800", ("half ?", "success", {})),
        ({"observation": "seen"}, ("seen", "success", {})),
        ({"observation": "seen", "n": [1], "image": None}, ("seen", "success", {"n": [1]})),
        ({"observation": "seen", "status": "success"}, ("seen", "success", {})),
        ({"observation": "seen", "status": "continue"}, ("seen", "success", {})),
        ({"observation": "No.", "status": "error", "n": 2}, ("No.", "error", {"n": 2})),
        ({"observation": 3, "n": 1}, ('{"observation": 3, "n": 1}', "success", {})),
        ([{"observation": "seen"}], ('[{"observation": "seen"}]', "success", {})),
    ],
)
async def test_what_a_function_returns(value: Any, expected: tuple[Any, ...]) -> None:
    result = await called(giving(value))
    assert (result.observation, result.status, result.info) == expected


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (object(), "TypeError"),
        ({1, 2}, "TypeError"),
        (Reply("x", "done"), "malformed reply"),  # type: ignore[arg-type]
        (Reply(3), "malformed reply"),  # type: ignore[arg-type]
        (finish("x", value={1}), "TypeError"),
        (finish("x", v=float("nan")), "ValueError"),
        ({"observation": "x", "n": {1}}, "TypeError"),
        ({"observation": "x", "n": float("inf")}, "ValueError"),
        ({"observation": "x", "image": "aGk="}, "leave `image` out"),
        ({"observation": "x", "prediction": "42"}, "or return finish(observation, prediction=…)"),
        ({"observation": "x", "prediction": None}, "cannot set the answer that is graded"),
        ({"observation": "x", "status": "finish"}, 'or use @tool(status="finish")'),
        ({"observation": "x", "status": "terminal"}, "a dict cannot end the episode"),
        ({"observation": "x", "status": 200}, "the status 200, which does not exist: use one of"),
        ({"observation": "x", "status": ["finish"]}, "which does not exist"),
        ({"observation": "x", "status": "s" * 9999}, "or another key"),
    ],
)
async def test_what_no_result_can_be_is_told(value: Any, told: str) -> None:
    result = await called(giving(value))
    assert (result.status, result.info) == ("error", {})
    assert result.observation.startswith("The tool give failed: ")
    assert told in result.observation


async def test_the_dict_of_a_tool_is_left_as_it_was() -> None:
    value = {"observation": "seen", "status": "success", "image": None, "n": 1}
    before = dict(value)
    await called(giving(value))
    assert value == before


@pytest.mark.parametrize("status", ["finish", "terminal"])
@pytest.mark.parametrize(
    ("value", "ends", "answer"),
    [
        ("42", True, "42"),
        (42, True, "42"),
        (Reply("42"), True, "42"),
        (finish("Done.", prediction="42"), True, "42"),
        ({"observation": "42", "n": 1}, True, "42"),
        ({"observation": "42", "status": "success"}, True, "42"),
        ({"observation": "42", "status": "terminal"}, True, "42"),
        (Reply("No.", "error"), False, "No."),
        ({"observation": "No.", "status": "error"}, False, "No."),
        (ToolError("No."), False, "No."),
        (ValueError("bug"), False, "The tool give failed: ValueError: bug"),
        ({"observation": "x", "prediction": "42"}, False, None),
    ],
)
async def test_each_call_that_succeeds_ends_the_episode_if_the_decorator_says_so(
    status: str, value: Any, ends: bool, answer: str | None
) -> None:
    result = await called(giving(value, status=status))
    assert result.status == ("finish" if ends else "error")
    assert answer is None or result.prediction == answer


async def test_wrong_arguments_do_not_end_the_episode() -> None:
    @tool(status="finish")
    def decide(answer: str) -> str:
        """Decides."""
        return answer

    assert (await called(decide)).status == "error"
    assert (await called(decide, answer="42")).status == "finish"


@pytest.mark.parametrize("status", ["error", "done", "", None, ["finish"]])
def test_another_status_of_the_decorator_is_refused(status: Any) -> None:
    with pytest.raises(ConfigError, match=r"^tool 'give': unknown status .* — use `success` or"):
        giving("x", status=status)


@pytest.mark.parametrize("status", ["success", "continue"])
async def test_other_statuses_of_the_decorator_change_nothing(status: str) -> None:
    assert (await called(giving("x", status=status))).status == "success"
    assert (await called(giving(finish("x"), status=status))).status == "finish"


@tool
def read_page(page: str) -> Any:
    """Reads a page that the agent may have written.

    Args:
        page: the page
    """
    return json.loads(page)


@pytest.mark.parametrize(
    "page",
    [
        {"observation": "x", "status": "finish"},
        {"observation": "x", "status": "terminal", "reward": 1},
        {"observation": "x", "prediction": "42"},
        {"observation": "x", "status": "success", "prediction": "42"},
        {"observation": "x", "status": "finish", "prediction": "42", "image": "x"},
        {"status": "finish", "info": {"prediction": "42"}},
        {"observation": "x", "info": {"prediction": "42"}, "name": "answer"},
        {"observation": {"status": "finish", "prediction": "42"}},
        {"Reply": {"observation": "x", "status": "finish"}},
    ],
)
async def test_an_agents_own_json_neither_ends_the_episode_nor_sets_its_answer(page: Any) -> None:
    result = await called(read_page, page=json.dumps(page))
    assert result.status != "finish"
    assert result.prediction == result.observation != "42"


async def test_answer_and_submit_end_the_episode() -> None:
    tools = ToolSet([*load("answer"), *load("submit")])
    async with await tools.open(ToolContext(seed=0)) as opened:
        given = await opened.call("answer", {"answer": "x" * 5000})
        assert (given.status, given.prediction) == ("finish", "x" * 5000)
        done = await opened.call("submit", {})
        assert (done.status, done.observation, done.prediction) == ("finish", "Submitted.", "")
        wrong = await opened.call("answer", {"answer": 42})
        assert wrong.status == "error"
