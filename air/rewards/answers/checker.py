"""Loads answer checkers, and calls their functions, which compute an episode's reward from its final answer.

A checker's function gets those fields that have the names of its parameters. The fields come from the dataset
row (a question with the right answer) and from the episode (`GIVEN`). The function is pure; only a function
that queries a server or runs a script in the check box (a fresh sandbox) is not, and is asynchronous. It
returns a number (the reward), a `Verdict`, or a dict with the key `reward`, whose other items are metrics.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import math
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from air.config import plugin, validate
from air.errors import AirError, ConfigError, MissingError, RewardTermError
from air.rewards.answers import gui, judge, mathematics, programs, runner, texts
from air.rewards.answers.verdict import Verdict, lowest_of

GIVEN: Mapping[str, str] = {
    "prediction": "the final answer's text",
    "response": "the last reply",
    "tool_calls": "number of tool calls that succeeded",
    "turns": "number of turns",
    "thoughts": "list of the turns' thoughts",
    "run": "runs a script in a fresh box: `await run(script)` gives exit code, stdout and stderr",
}
"""The fields that a checker can get from the episode, besides those of the dataset row, each with its
meaning."""
CHECKERS: Mapping[str, Callable[..., Any]] = {
    "math_equal": mathematics.math_equal,
    "math_equal_tool": mathematics.math_equal_tool,
    "math_equal_think": mathematics.math_equal_think,
    "math_string_equal": mathematics.math_string_equal,
    "agent0": mathematics.agent0,
    "choice": texts.choice,
    "qa_f1": texts.qa_f1,
    "qa_em": texts.qa_em,
    "qa_em_format": texts.qa_em_format,
    "ok_vqa": texts.ok_vqa,
    "infoseek": texts.infoseek,
    "gui": gui.gui,
    "code_tests": programs.code_tests,
    "judge": judge.Judge,
}
"""The shipped checkers by name: a function, or a class of settings whose method `check` is the function."""
_NEED_MATH = {"math_equal", "math_equal_tool", "math_equal_think", "agent0"}


@dataclass(frozen=True)
class Checker:
    """An answer checker: a function that computes an episode's reward from its answer, and the function's
    name."""

    name: str
    """A key of `CHECKERS`, or the path of a user's function: `file.py:function` or `module:function`."""
    function: Callable[..., Any]

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the fields that the function requires: its parameters without a default. Fields come
        from the dataset row or from the episode."""
        parameters = self._parameters().values()
        return tuple(p.name for p in parameters if p.default is p.empty)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the fields that every dataset row must contain, because the function requires them and
        the episode does not provide them."""
        return tuple(name for name in self.needs if name not in GIVEN)

    @property
    def needs_box(self) -> bool:
        """Whether the function runs scripts in a check box, a fresh sandbox. It does if it has the parameter
        `run`."""
        return "run" in self._parameters()

    @property
    def lowest(self) -> float:
        """The lowest reward that the function can return, as its decorator `pays` declares. An episode that
        ends without an answer gets this reward."""
        return float(lowest_of(_called(self.function)))

    async def __call__(self, **fields: Any) -> Verdict:
        """Grades an answer, and returns its reward and metrics. `fields` are the fields of the dataset row
        and those of the episode (`GIVEN`); the function gets those that have the names of its parameters.

        Raises ConfigError if the row lacks a field or has a malformed one, RewardTermError if a user's
        function fails or its reward is not finite or is below `lowest`, and InfrastructureError if the answer
        cannot be graded.
        """
        missing = [name for name in self.needs if name not in fields]
        if missing:
            raise ConfigError(
                f"the checker {self.name} needs the field {missing[0]!r}",
                where="row",
                remedy="add it to every row, or choose another checker",
            )
        names = self._parameters()
        call = partial(self.function, **{n: v for n, v in fields.items() if n in names})
        try:
            if inspect.iscoroutinefunction(_called(self.function)):
                result = await call()
            else:
                result = await asyncio.get_running_loop().run_in_executor(_threads(), call)
        except AirError:
            raise
        except Exception as error:  # a user's function may raise anything
            raise self._failed(f"raised {type(error).__name__}: {error}") from error
        return self._verdict(result)

    def _parameters(self) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(self.function).parameters)

    def _verdict(self, result: Any) -> Verdict:
        if isinstance(result, Mapping) and "reward" in result:
            rest = {name: value for name, value in result.items() if name != "reward"}
            result = Verdict(result["reward"], rest)
        elif isinstance(result, int | float):
            result = Verdict(result)
        if not isinstance(result, Verdict):
            raise self._failed(
                f"must return a number, a Verdict or a dict with `reward`, not {result!r:.80}"
            )
        for name, value in {"reward": result.reward, **result.metrics}.items():
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise self._failed(f"must give a finite {name}, not {value!r:.80}")
        if result.reward < self.lowest:
            raise RewardTermError(
                f"the checker pays {result.reward:g}, less than an episode without an answer "
                f"({self.lowest:g}), so an agent would not answer",
                where=self.name,
                remedy="write @pays(lowest=…) of air.rewards.answers above the function",
            )
        metrics = {name: float(value) for name, value in result.metrics.items()}
        return Verdict(float(result.reward), metrics)

    def _failed(self, what: str) -> RewardTermError:
        return RewardTermError(
            f"the checker {what}",
            where=self.name,
            remedy="correct the function so that it returns a finite number for every answer",
        )


def check(spec: str | Mapping[str, Any], *, folder: Path | None = None) -> Checker:
    """Loads an answer checker. `spec` is the name of a shipped checker (a key of `CHECKERS`), the path of a
    user's function (`file.py:function` or `module:function`), or a mapping with such a name or path as
    `name`, and the checker's settings as its other items. A relative file path starts at `folder` (None: the
    current folder).

    Raises ConfigError for a malformed name or setting, and MissingError if the checker does not exist or a
    package that it needs is not installed.
    """
    settings = {} if isinstance(spec, str) else {k: v for k, v in spec.items() if k != "name"}
    name = spec if isinstance(spec, str) else spec.get("name")
    if not isinstance(name, str) or not name:
        raise ConfigError("needs a name", where="checker", remedy=_KNOWN)
    function = CHECKERS.get(name) or _users(name, folder)
    if name in _NEED_MATH:
        runner.check_installed()
    if isinstance(function, type) and issubclass(function, BaseModel):
        made: Any = validate(function, settings, where=f"checker {name}")
        return Checker(name, made.check)
    if not callable(function):
        raise ConfigError("is no function", where=f"checker {name}", remedy="name a function")
    _check_parameters(name, function, settings)
    _check_lowest(name, function)
    return Checker(name, partial(function, **settings) if settings else function)


def _check_parameters(name: str, function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Raises ConfigError if the checker's function has `*args`, `**kwargs` or a positional-only parameter, or
    if a key of `settings` is not a parameter of the function, or one that gets its value from the episode.
    `name` is the checker's name in error messages."""
    parameters = inspect.signature(function).parameters
    if any(p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters.values()):
        raise ConfigError(
            "a parameter cannot be given by name",
            where=f"checker {name}",
            remedy="name every field that the function takes; no *args and no **kwargs",
        )
    for key in settings:
        if key not in parameters or key in GIVEN:
            raise ConfigError(
                f"there is no setting {key!r}", where=f"checker {name}", remedy="remove it"
            )


def _check_lowest(name: str, function: Callable[..., Any]) -> None:
    lowest = lowest_of(function)
    if not isinstance(lowest, int | float) or not -math.inf < lowest <= 0:
        raise ConfigError(
            f"its lowest reward is {lowest!r:.40}",
            where=f"checker {name}",
            remedy="declare a finite number of at most 0 with @pays(lowest=…)",
        )


_KNOWN = (
    f"known: {', '.join(CHECKERS)}; or a function of yours as file.py:function or module:function"
)


def _users(name: str, folder: Path | None) -> Any:
    path, colon, function = name.rpartition(":")
    if not colon:
        raise MissingError("there is no such checker", where=f"checker {name}", remedy=_KNOWN)
    if not path.endswith(".py"):
        return plugin(name)
    file = Path(folder or ".", path).expanduser()
    spec = importlib.util.spec_from_file_location(f"air_user_checker_{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise MissingError(
            "no such file", where=str(file), remedy="check the path before the colon"
        )
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return getattr(module, function)
    except Exception as error:  # a user's file may raise anything
        raise ConfigError(
            f"{function} cannot be imported: {type(error).__name__}: {error}",
            where=str(file),
            remedy="correct the file",
        ) from error


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, partial):
        function = function.func
    return function


_pools: dict[int, ThreadPoolExecutor] = {}
"""The threads in which checkers' functions run: one pool for each process, by process id. After a fork, the
child has this table but no threads of its parent, so it makes a pool of its own."""


def _threads() -> ThreadPoolExecutor:
    pid = os.getpid()
    if pid not in _pools:
        _pools[pid] = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="answers")
    return _pools[pid]
