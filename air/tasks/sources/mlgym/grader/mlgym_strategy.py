"""Puts a function of air's in the place of an agent's strategy: it asks the runner, which plays the strategy.

The evaluation script calls it as it would call the strategy, with the history of the game so far, and gets a
copy of what the strategy answers. Whatever the strategy does wrong ends the script with `BadStrategy`.
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
"""Processor time of the strategy as a share of the time limit, as honest code gets in air's own games."""
_ADDRESSES = 2
"""Address space of the strategy, as a multiple of the memory that its box may use."""


class BadStrategy(BaseException):
    """The strategy is at fault. No `except Exception` of a script hides it."""

    def __init__(self, error: BadArtefact) -> None:
        super().__init__(str(error))
        self.remember = error.remember


class Strategy:
    """The function that the script calls. Use through `with`: the strategy runs until its end.

    `player` has the settings that `grade.py` wrote: where the strategy is and what it may use.
    """

    def __init__(self, player: dict[str, Any]) -> None:
        self._player = player
        self._file = Path(player["folder"], f"{player['module']}.py")
        self._past: list[Any] | None = None
        self._known = 0
        self._open = ExitStack()

    def __enter__(self) -> Strategy:
        """Loads the strategy, and enlists this function as its module.

        Raises:
            BadStrategy: it cannot be loaded.
        """
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
        except BaseException:  # an infrastructure error: nothing is left running; raised again
            self._open.close()
            raise
        module = types.ModuleType(self._player["module"])
        setattr(module, self._player["function"], self.call)
        sys.modules[module.__name__] = module
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def call(self, past: list[Any]) -> Any:
        """One call of the strategy with a list; only what is new in a growing list is sent."""
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
    """Runs in the player: `N` asks for the move after an empty list, `A…` after the last list and one more
    element, `F…` after a whole list. The answer is empty if the move cannot be sent."""
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
