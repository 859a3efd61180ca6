"""Environments on the stock server of the package `openenv`. Run by the interpreter that has it:
`python stock_server.py KIND PORT PLACES`."""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    """One text."""

    message: str


class Move(Action):
    """Two numbers."""

    left: int
    right: int


class Seen(Observation):
    """What the agent sees."""

    text: str = ""
    tries: int = 0


class Guessing(Environment):
    """Guess the number that the seed decides. The number is `seed % 10`, or the task's."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    made = 0
    closed = 0

    def __init__(self) -> None:
        super().__init__()
        self.number, self.tries = 0, 0
        type(self).made += 1

    def reset(
        self, seed: int | None = None, split: str = "", index: int | None = None, **_: Any
    ) -> Seen:
        self.number = (seed or 0) % 10 if index is None else 10 + index
        self.tries = 0
        return Seen(text=f"Guess the number. Its split is {split!r}.", metadata={"seed": seed})

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Seen:
        value = action.message if isinstance(action, Guess) else str(action.left + action.right)
        if value == "raise":
            raise RuntimeError("the environment is broken")
        if value == "nan":
            return Seen(text="?", reward=float("nan"))
        if value == "state":
            return Seen(text=f"{type(self).made} made, {type(self).closed} closed")
        self.tries += 1
        right = value == str(self.number)
        text = "right" if right else "wrong"
        return Seen(text=text, tries=self.tries, reward=1.0 if right else None, done=right)

    @property
    def state(self) -> State:
        return State(step_count=self.tries)

    def close(self) -> None:
        type(self).closed += 1

    def list_splits(self) -> list[str]:
        return ["train", "test"]

    def num_tasks(self, split: str) -> int:
        return 4 if split == "train" else 2


class Tools(MCPEnvironment):
    """Tools by MCP; `answer` ends the episode."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        mcp = FastMCP("tools")

        @mcp.tool()
        def add(a: int, b: int) -> int:
            """Adds two numbers."""
            return a + b

        @mcp.tool()
        def answer(number: int) -> str:
            """Gives the answer."""
            if number < 0:
                raise ValueError("no negative number")
            return "right" if number == 42 else "wrong"

        super().__init__(mcp)

    def reset(self, seed: int | None = None, **_: Any) -> Observation:
        return Observation(metadata={"message": "What is 6 * 7?"})

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return self._judged(super().step(action, timeout_s=timeout_s, **kwargs), action)

    async def step_async(
        self, action: Any, timeout_s: float | None = None, **kwargs: Any
    ) -> Observation:
        seen = await super().step_async(action, timeout_s=timeout_s, **kwargs)
        return self._judged(seen, action)

    def _judged(self, seen: Observation, action: Any) -> Observation:
        if isinstance(action, CallToolAction) and action.tool_name == "answer":
            seen.done = True
            seen.reward = float(action.arguments.get("number") == 42)
        return seen

    def _step_impl(self, action: Any, timeout_s: float | None = None, **_: Any) -> Observation:
        raise ValueError("only tools")

    @property
    def state(self) -> State:
        return State()


KINDS: dict[str, Any] = {
    "text": (Guessing, Guess, Seen),
    "fields": (Guessing, Move, Seen),
    "tools": (Tools, CallToolAction, CallToolObservation),
}

if __name__ == "__main__":
    env, action, observation = KINDS[sys.argv[1]]
    app = create_app(
        env, action, observation, env_name="guess", max_concurrent_envs=int(sys.argv[3])
    )
    uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
