"""The tools that end an episode."""

from __future__ import annotations

from air.tools import ToolContext, ToolSet, load


async def test_answer_and_submit_end_the_episode() -> None:
    tools = ToolSet([*load("answer"), *load("submit")])
    async with await tools.open(ToolContext(seed=0)) as opened:
        given = await opened.call("answer", {"answer": "x" * 5000})
        assert (given.status, given.prediction) == ("finish", "x" * 5000)
        done = await opened.call("submit", {})
        assert (done.status, done.observation, done.prediction) == ("finish", "Submitted.", "")
        wrong = await opened.call("answer", {"answer": 42})
        assert wrong.status == "error"
