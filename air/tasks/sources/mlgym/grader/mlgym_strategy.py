"""Defines `Strategy`, by which the evaluation script of a game calls the agent's strategy in another process.

The script calls a function of air in the place of the strategy, with the history of the game so far. This
function forwards the call to the strategy's process (`runner.py`) and returns a copy of its answer. If the
strategy fails or breaks a limit, `BadStrategy` ends the script.
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
            source_bytes=1_000_000,
        )
        try:
            runner = Runner(
                self._file,
                self._player["function"],
                seed=self._player["seed"],
                limits=limits,
                protocol=moves,
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

    def call(self, past: list[Any]) -> Any:
        """Calls the strategy with the list `past`, the history of the game, and returns its answer. If the
        list has grown by one element since the last call, only this element is sent to the strategy's
        process."""
        count = len(past)
        if count == 0:
            order = "N"
        elif past is self._past and count == self._known + 1:
            order = "A" + dumps(past[-1])
        else:
            order = "F" + dumps(past)
        self._past, self._known = past, count
        try:
            answer = self._runner.ask(order.encode())
            return self._value(answer)
        except BadArtefact as error:
            raise BadStrategy(error) from None

    def _value(self, answer: bytes) -> Any:
        try:
            return loads(answer.decode())
        except (ValueError, OverflowError):
            text = "returned something other than numbers, text, lists, tuples and dicts"
            raise BadArtefact(f"{self._file.name} {text}") from None


def moves(function: Callable[[list[Any]], Any]) -> Callable[[bytes], bytes]:
    """Returns a function that answers requests for moves, for the strategy's process. `function` is the
    agent's strategy.

    A request asks for the move after some history of the game, and begins with one letter. `N`: the history
    is empty. `A`: the history is that of the last request and one more element, which follows the letter.
    `F`: the history is the list that follows the letter. Elements, lists and the answer, which is the move,
    are encoded by `mlgym_values`. The answer is empty if the move cannot be encoded.
    """
    from mlgym_values import dumps, loads

    past: list[Any] = []

    def answer(request: bytes) -> bytes:
        nonlocal past
        order, given = request[:1], request[1:].decode()
        if order == b"A":
            past.append(loads(given))
        else:
            past = loads(given) if order == b"F" else []
        move = function(list(past))
        try:
            text: str = dumps(move)
        except (TypeError, ValueError, RecursionError):
            text = ""
        return text.encode()

    return answer
