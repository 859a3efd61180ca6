"""Plays one episode by a stock client, and prints what it saw as JSON: `python stock_client.py KIND URL`."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import Any


async def value(result: Any) -> Any:
    """What a call of the async or the sync client returns."""
    return await result if inspect.isawaitable(result) else result


async def refused(call: Callable[[], Any]) -> str:
    """The text of the error that a call raises."""
    try:
        await value(call())
    except Exception as error:
        return str(error).removeprefix("Server error: ")
    raise AssertionError("it was not refused")


async def openenv(url: str, sync: bool) -> dict[str, Any]:
    from openenv import GenericEnvClient

    def connected() -> Any:
        made = GenericEnvClient(base_url=url)
        return made.sync() if sync else made

    env = connected()
    await value(env.connect())
    seen: dict[str, Any] = {"before": await refused(lambda: env.step({"message": "1"}))}
    seen["first"] = (await value(env.reset(seed=3))).observation["text"]
    other = connected()
    await value(other.connect())
    seen["second"] = await refused(lambda: other.reset())
    await value(other.close())
    listed = await value(env.step({"type": "list_tools"}))
    seen["tools"] = [tool["name"] for tool in listed.observation["tools"]]
    call = {"type": "call_tool", "tool_name": "act", "arguments": {"answer": "6"}}
    steps = [await value(env.step({"message": "5"})), await value(env.step(call))]
    while not steps[-1].done:
        steps.append(await value(env.step({"message": "5"})))
    seen["rewards"] = [step.reward for step in steps]
    seen["done"] = steps[-1].done
    seen["after"] = await refused(lambda: env.step({"message": "1"}))
    await value(env.close())
    return seen


def ors(url: str) -> dict[str, Any]:
    os.environ |= {"OPENREWARD_SESSION_URL": url, "OPENREWARD_API_URL": url}
    from openreward import OpenReward

    env = OpenReward(api_key="none", base_url=url).environments.get("air")
    seen: dict[str, Any] = {"tasks": env.num_tasks("train"), "rewards": []}
    with env.session(split="train", index=3) as session:
        seen["prompt"] = session.get_prompt()[0].text
        finished, answer = False, 5
        while not finished:
            output = session.call_tool("act", {"answer": str(answer)})
            seen["rewards"].append(output.reward)
            finished, answer = output.finished, 6
            if "unknown" not in seen:
                seen["unknown"] = _error(lambda: session.call_tool("nope", {}))
        seen["after"] = _error(lambda: session.call_tool("act", {"answer": "1"}))
    return seen


def _error(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return str(error)
    raise AssertionError("it was not refused")


if __name__ == "__main__":
    kind, address = sys.argv[1:]
    result = ors(address) if kind == "ors" else asyncio.run(openenv(address, kind == "sync"))
    print(json.dumps(result), flush=True)
