"""Defines `Strategy`, by which an evaluation script calls the agent's strategy in another process. A strategy
is the function that the agent hands in, such as a strategy in a game.

The script calls a function of air in the place of the strategy. This function forwards the call to the
strategy's process (`runner.py`) and returns a copy of its answer. If the strategy fails or breaks a limit,
`BadStrategy` ends the script.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from grading import BadArtefact
from mlgym_values import dumps, loads
from runner import Limits, Runner

_CPU_SHARE = 0.1
"""The limit of the strategy's processor time, as a share of its time limit. Air's own games use the same
share."""
_ADDRESSES = 2
"""The limit of the strategy's address space, as a multiple of the memory limit of its box."""


class BadStrategy(BaseException):
    """Raised if the agent's strategy is at fault. Not an `Exception`, so that no `except Exception` in the
    evaluation script hides it."""

    def __init__(self, error: BadArtefact) -> None:
        super().__init__(str(error))
        self.remember = error.remember


class Strategy:
    """The agent's strategy in a process of its own, and a module of air that stands for it in this process.
    While the `with` block runs, the evaluation script can import this module and call the strategy.

    `player` has the settings that `grade.py` wrote: the strategy's file, its function and its limits.
    """

    def __init__(self, player: dict[str, Any]) -> None:
        self._player = player
        self._file = Path(player["folder"], f"{player['module']}.py")
        self._past: list[Any] | None = None
        self._known = 0
        self._open = ExitStack()

    def __enter__(self) -> Strategy:
        """Loads the strategy in its process. Adds a module with the function `call` to `sys.modules`, under
        the name of the strategy's module. Raises BadStrategy if the strategy cannot be loaded."""
        seconds = self._player["seconds"]
        limits = Limits(
            seconds=seconds,
            cpu_seconds=math.ceil(seconds * _CPU_SHARE),
            memory_mb=self._player["memory_mb"] * _ADDRESSES,
            file_mb=1,  # there is one load, so nothing of it remains
            source_bytes=1_000_000,
        )
        try:
            runner = Runner(
                self._file,
                self._player["function"],
                seed=self._player["seed"],
                limits=limits,
                protocol=answers,
                modules=tuple(self._player["modules"]),
                imports=self._file.parent,
            )
            self._runner = self._open.enter_context(runner)
            self._runner.load()
        except BadArtefact as error:
            self._open.close()
            raise BadStrategy(error) from None
        except BaseException:  # an infrastructure error: the strategy's process must end
            self._open.close()
            raise
        module = types.ModuleType(self._player["module"])
        setattr(module, self._player["function"], self.call)
        sys.modules[module.__name__] = module
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def call(self, *arguments: Any) -> Any:
        """Calls the strategy with copies of `arguments` and returns a copy of its answer. Raises BadStrategy
        if the strategy fails, breaks a limit, or returns something that cannot be sent."""
        request = self._request(arguments)
        try:
            answer = self._runner.ask(request.encode())
            return self._value(answer)
        except BadArtefact as error:
            raise BadStrategy(error) from None

    def _request(self, arguments: tuple[Any, ...]) -> str:
        """Encodes a call as the request that `answers` describes. If the only argument is a list, this is the
        history of a game: if it has grown by one element since the last call, only this element is sent."""
        if len(arguments) != 1 or not isinstance(arguments[0], list):
            return f"C{dumps(list(arguments))}"
        past = arguments[0]
        count, grown = len(past), past is self._past and len(past) == self._known + 1
        request = f"A{dumps(past[-1])}" if grown else f"F{dumps(past)}" if past else "N"
        self._past, self._known = past, count
        return request

    def _value(self, answer: bytes) -> Any:
        try:
            return loads(answer.decode())
        except (ValueError, OverflowError):
            text = "returned something other than numbers, text, lists, tuples and dicts"
            raise BadArtefact(f"{self._file.name} {text}") from None


def answers(function: Callable[..., Any]) -> Callable[[bytes], bytes]:
    """Returns a function that answers requests, for the strategy's process. `function` is the agent's
    strategy.

    A request is one call, and begins with a letter. `C`: the arguments are the list that follows the letter.
    With the other letters, the only argument is the history of a game. `N`: the history is empty. `A`: it is
    the history of the last such request and one more element, which follows the letter. `F`: it is the list
    that follows the letter. Arguments, and what the strategy returns, are encoded by `mlgym_values`. The
    answer is empty if what the strategy returns cannot be encoded.
    """
    from mlgym_values import dumps, loads

    past: list[Any] = []

    def answer(request: bytes) -> bytes:
        nonlocal past
        order, given = request[:1], request[1:].decode()
        if order == b"C":
            returned = function(*loads(given))
        else:
            if order == b"A":
                past.append(loads(given))
            else:
                past = loads(given) if order == b"F" else []
            returned = function(list(past))
        try:
            text: str = dumps(returned)
        except (TypeError, ValueError, RecursionError):
            text = ""
        return text.encode()

    return answer
