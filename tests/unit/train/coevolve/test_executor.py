"""The executor answers with its tools: its calls are counted, and its last replies are the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf

from air.config import plugin
from air.env.chat.harness import PROMPT_TOO_LONG
from air.env.config import ResearchEnvConfig
from air.errors import InfrastructureError, UserCodeError
from air.testing import ScriptedServer
from air.tools import ToolSet, load
from air.train.coevolve.executor import Executor, RememberingExecutor, _answered
from air.train.evaluation.local_model import SampledModel
from air.train.loop.rollout import Rollout
from air.worlds.proposals.scorer import Answered

CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "3 + 4"}}</tool_call>'
WRONG_CALL = CALL.replace("3 + 4", "3 +")


async def answers(
    *said: str, turns: int | None = 3, tools: Sequence[Any] = ("calculator",), env: Any = None
) -> Answered:
    """Lets an executor that gives these replies answer one question twice."""
    with scripted(said, tools, env) as executor:
        (found,) = await executor.answers(["3 + 4?"], 2, turns, {})
    return found


@contextmanager
def scripted(said: Sequence[str], tools: Sequence[Any], env: Any = None) -> Iterator[Executor]:
    """Context manager: yields an executor that gives these replies in each episode."""

    def reply(messages: Any) -> str:
        own = sum(message["role"] == "assistant" for message in messages)
        return said[min(own, len(said) - 1)]

    with ScriptedServer(reply) as server:
        client = vf.EvalClientConfig(base_url=server.url, api_key_var="AIR_TEST_KEY")
        ctx = vf.ModelContext(model="scripted", client=client)
        model = SampledModel(ctx, lambda env: env, "scripted")
        agent = {"runtime": {"type": "subprocess"}, "harness": {"id": "air", **(env or {})}}
        config = ResearchEnvConfig.model_validate({"taskset": {"id": "air"}, "agent": agent})
        loaded = ToolSet(tool for spec in tools for tool in load(spec))
        yield Executor(model, config, tools=loaded)


async def test_calls_that_a_tool_carried_out_are_counted() -> None:
    assert await answers(CALL, CALL, "It is \\boxed{7}.") == Answered(["7", "7"], 2.0)
    assert await answers(CALL, WRONG_CALL, "\\boxed{7}") == Answered(["7", "7"], 1.0)
    assert await answers(f"{CALL[:-12]} \\boxed{{7}}") == Answered([None, None], 0.0)


async def test_a_call_is_no_answer() -> None:
    assert await answers(f"\\boxed{{8}} {CALL}", turns=2) == Answered([None, None], 2.0)
    plain = {"format": "air.worlds.proposals.whole_reply:WholeReply"}
    told = await answers(f"\\boxed{{8}} {CALL}", tools=(), turns=1, env=plain)
    assert told == Answered(["8", "8"], 0.0)  # text that looks like a call


async def test_there_are_four_turns_with_tools_and_one_without() -> None:
    said = [CALL, CALL, CALL, "\\boxed{7}"]
    assert await answers(*said, turns=None) == Answered(["7", "7"], 3.0)
    assert await answers(CALL, *said, turns=None) == Answered([None, None], 4.0)
    assert await answers("\\boxed{7}", turns=None, tools=()) == Answered(["7", "7"], 0.0)
    assert await answers(*said, turns=None, tools=()) == Answered([None, None], 0.0)


async def test_an_interpreter_works_in_a_box_of_its_own() -> None:
    arguments = '{"code": "x = 3 + 4\\nprint(x)"}'
    code = f'<tool_call>{{"name": "code_interpreter", "arguments": {arguments}}}</tool_call>'
    found = await answers(code, "\\boxed{7}", tools=["code_interpreter"])
    assert found == Answered(["7", "7"], 1.0)


async def test_your_own_tools_are_loaded_from_their_file(tmp_path: Path) -> None:
    code = "from air.tools import tool\n\n\n@tool\ndef own() -> str:\n    'Says.'\n    return 'x'\n"
    (tmp_path / "own.py").write_text(code)
    call = '<tool_call>{"name": "own", "arguments": {}}</tool_call>'
    named = f"{tmp_path}/own.py:own"
    assert await answers(call, "\\boxed{7}", tools=[named]) == Answered(["7", "7"], 1.0)


HANGING = """
from air.errors import HangingToolError
from air.tools import tool

calls = []


@tool
def own() -> str:
    "Hangs."
    calls.append(1)
    raise HangingToolError("it hangs", where="tool own", remedy="give it a time limit")
"""


async def test_a_tool_that_hangs_stops_the_executor(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(HANGING)
    call = '<tool_call>{"name": "own", "arguments": {}}</tool_call>'
    with scripted([call, "\\boxed{7}"], [f"{tmp_path}/own.py:own"]) as executor:
        for _ in range(2):
            with pytest.raises(UserCodeError, match=r"^tool own: it hangs — give it a time limit$"):
                await executor.answers(["3 + 4?"], 2, 3, {})
    calls = plugin("own.py:calls", tmp_path)
    assert 1 <= len(calls) <= 2  # of the first two episodes; nothing is played again


def test_a_question_that_leaves_no_room_for_a_reply_has_no_answer() -> None:
    long = Rollout("answers", "posed:x", [], error=f"InferenceError: {PROMPT_TOO_LONG}")
    assert _answered([long, long]) == Answered([None, None], 0.0)
    away = Rollout("answers", "posed:x", [], error="InferenceError: the model server is away")
    with pytest.raises(InfrastructureError, match="is away"):
        _answered([long, away])


class Counting:
    """An executor that answers a question with the number of questions it has got so far, after it has let
    other requests go on. It fails at the first question if `fails` is set."""

    def __init__(self, fails: bool = False) -> None:
        self.asked: list[str] = []
        self._fails = fails

    async def answers(
        self, questions: Sequence[str], k: int, max_turns: int | None, sampling: Mapping[str, Any]
    ) -> list[Answered]:
        self.asked += questions
        number = len(self.asked)
        await asyncio.sleep(0)
        if self._fails and number == 1:
            raise InfrastructureError("the model server is away")
        return [Answered([str(number)] * k, 0.0) for _ in questions]


async def test_a_question_is_answered_once_with_the_same_settings() -> None:
    counting = Counting()
    executor = RememberingExecutor(counting)
    ask = executor.answers
    requests = [ask(["a"], 2, 1, {"max_tokens": 9}) for _ in range(3)]  # at the same time
    assert await asyncio.gather(*requests) == 3 * [[Answered(["1", "1"], 0.0)]]
    both = await ask(["b", "a"], 2, 1, {"max_tokens": 9})
    assert [one.answers for one in both] == [["2", "2"], ["1", "1"]]
    for others in ((3, 1, {"max_tokens": 9}), (2, 2, {"max_tokens": 9}), (2, 1, {})):
        await ask(["a"], *others)
    assert counting.asked == ["a", "b", "a", "a", "a"]


async def test_an_error_is_not_remembered() -> None:
    executor = RememberingExecutor(Counting(fails=True))
    with pytest.raises(InfrastructureError, match="is away"):
        await executor.answers(["a"], 1, 1, {})
    assert await executor.answers(["a"], 1, 1, {}) == [Answered(["2"], 0.0)]
