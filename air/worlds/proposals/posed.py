"""Loads the tasks `posed:FILE`, in which an agent answers a question that another model (the proposer) wrote,
optionally with tools. The agent's answer is graded against a label, the answer that counts as right.

A row of FILE.jsonl is `{"question": …, "answer": …, "p_hat": …}`, with the label as `answer`. The last
`\\boxed{…}` in the reply that ends the episode is the agent's answer. The episode earns 1 if this answer
equals the label (by the setting `equality`), and −1 if it differs or there is none. Seed n uses row n modulo
the number of rows (from 0); the seeds of evaluation episodes are counted from `VALIDATION_SEED`. The label is
in no prompt, observation, fact or record.

The label was derived from several answers of an executor, the model that learns to answer the questions;
`p_hat`, from 0 to 1, says how far these answers agreed. Each episode reports `p_hat` as a fact (a number
about the episode). The training algorithm ADPO (ambiguity-dynamic policy optimisation) uses this fact if its
setting `share` is `"p_hat"`.

FILE is a settings file (FILE.toml or FILE.json) or a file of rows (FILE.jsonl). A settings file has the keys
of `PosedSettings`, which name the file of rows and the tools. If FILE is the file of rows itself, the task
has the tools in the context variable `LENT`, and compares answers by their canonical forms (`forms`).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field

from air import actions, json_lines
from air.actions.base import Action, ToolCall
from air.config import BaseConfig, read_toml, validate
from air.errors import ConfigError, MissingError
from air.rewards.proposals.agreement import Equality, check_equality, equal_answers, same
from air.rewards.proposals.reading import last_boxed
from air.sandbox.contract.box import Box
from air.tools import OpenTools, Tool, ToolContext, ToolSet, load
from air.worlds.base import Observation, Step
from air.worlds.proposals.comparison_threads import compare_in_thread
from air.worlds.proposals.whole_reply import FORMAT
from air.worlds.sources import VALIDATION_SEED, WorldTask

RIGHT, WRONG = 1.0, -1.0
INSTRUCTIONS = "Solve the problem."
WITH_TOOLS = f"{INSTRUCTIONS} You may use tools. Put the final answer in \\boxed{{…}}."
TURNS_WITH_TOOLS = 4
"""The default maximum number of turns of an episode with tools, as in Agent0, the published method that these
tasks follow."""
ENDING_TOOLS = ("answer", "submit")
"""The names of the tools shipped with air that end an episode. The tasks of this module refuse these tools,
because only a reply with the answer may end an episode."""
LENT: ContextVar[ToolSet | None] = ContextVar("lent_tools", default=None)
"""A context variable with the tools that tasks `posed:FILE.jsonl` get when they are loaded, because such
tasks have no settings file that could name tools. The command `air coevolve` sets it. None: these tasks have
no tools."""
FACTS: Mapping[str, str] = {
    "success": "1 if the answer equals the label, else 0",
    "answered": "1 if the reply that ended the episode has an answer in \\boxed{…}, else 0",
    "p_hat": "the agreement with which the label was found; 1 if the row does not say it",
}
TOOL_FACTS: Mapping[str, str] = {
    "tool_calls": "number of calls that a tool carried out without an error",
    "tool_errors": "number of calls with an error, also of tools that do not exist",
}
"""The additional facts (numbers about an episode) of a task with tools: each fact's meaning, by its name."""


class PosedSettings(BaseConfig):
    """The settings in the file of a task `posed:FILE.toml`, in which an agent answers questions from a file
    of rows."""

    rows: str
    """The path of the file of rows (.jsonl). A relative path is relative to the folder of this settings
    file."""
    tools: tuple[str | dict[str, Any], ...] = ()
    """The tools of the agent. Each entry is a name, or a table with a name under the key `name` and with
    settings of the tool. A name is that of a tool shipped with air, such as `calculator`, or `FILE.py:NAME`
    or `MODULE:NAME` for a tool of the user."""
    folder: str = ""
    """The folder to which relative paths in `tools` are relative. A relative `folder` is itself relative to
    the folder of this settings file. Empty: the folder of this settings file."""
    turns: int | None = Field(None, ge=1)
    """The maximum number of turns of an episode. None: 4 with tools, else 1."""
    format: str = ""
    """The name of the action format. Empty: `tool_calls` if there are tools, else the format in which the
    whole reply is the action (`WholeReply`)."""
    equality: Equality = "math"
    """The rule by which the agent's answer equals the label, the answer in the row: `math`, by the checker of
    mathematical answers, or `forms`, only by canonical forms: `0.5` equals `1/2`, but `2x` does not equal
    `x*2`."""


@dataclass(frozen=True)
class PosedRow:
    """One question, with the answer that counts as right (`answer`). This answer was derived from several
    answers of an executor, a model that answers the questions. `p_hat`, from 0 to 1, says how far these
    answers agreed."""

    question: str
    answer: str
    p_hat: float = 1.0


class PosedWorld:
    """A world (an environment for an agent) in which each episode asks the question of one of `rows`. Without
    tools, the first action ends the episode. `equality` is the rule by which an answer equals the label, the
    right answer. `box` is the isolated place in which the tools run; None if no tool needs a box."""

    def __init__(
        self,
        rows: Sequence[PosedRow],
        tools: ToolSet | None = None,
        equality: Equality = "forms",
        box: Box | None = None,
    ) -> None:
        self._rows, self._tools, self._box = rows, tools or ToolSet(()), box
        self._equality = equality
        self._row: PosedRow | None = None
        self._open: OpenTools | None = None
        self._facts = self._no_facts()
        self._ended = False

    def _no_facts(self) -> dict[str, float]:
        facts = {"success": 0.0, "answered": 0.0, "p_hat": self._row.p_hat if self._row else 1.0}
        return facts | (dict.fromkeys(TOOL_FACTS, 0.0) if self._tools else {})

    async def reset(self, seed: int) -> Observation:
        await self.close()
        number = seed - VALIDATION_SEED if seed >= VALIDATION_SEED else seed
        row = self._rows[number % len(self._rows)]
        fields = {"question": row.question}
        self._open = await self._tools.open(ToolContext(seed=seed, fields=fields, box=self._box))
        self._row, self._ended = row, False
        self._facts = self._no_facts()
        return Observation(row.question)

    async def step(self, action: Action) -> Step:
        if self._row is None or self._open is None:
            raise RuntimeError("step before reset")
        if self._ended:
            return Step(Observation("The episode has ended."), done=True)
        if self._tools and action.tool is not None:
            return await self._call(self._open, action, action.tool)
        # The whole reply, as `air coevolve` reads it when it counts the answers.
        text = action.message.text if action.message is not None else action.answer
        answer = last_boxed(text)
        self._facts["answered"] = float(answer is not None)
        right = answer is not None and await self._is_right(answer, self._row)
        self._facts["success"] = float(right)
        return self._end(RIGHT if right else WRONG)

    async def _is_right(self, answer: str, row: PosedRow) -> bool:
        """Returns whether `answer` equals the label, the right answer in `row`. Raises InfrastructureError if
        the comparison fails and the answers are not the cause."""
        equal = equal_answers(self._equality, row.question)
        return await compare_in_thread(functools.partial(same, row.answer, answer, equal))

    async def _call(self, tools: OpenTools, action: Action, call: ToolCall) -> Step:
        result = await tools.call(call.name, dict(call.arguments or {}))
        self._facts["tool_calls"] += result.status != "error"
        self._facts["tool_errors"] += result.status == "error"
        if result.status == "finish" or action.ending == "submit":
            return self._end(WRONG)  # an end without an answer
        return Step(Observation(result.observation))

    def _end(self, reward: float) -> Step:
        self._ended = True
        return Step(Observation(""), done=True, reward=reward)

    def facts(self) -> dict[str, float]:
        return dict(self._facts)

    async def close(self) -> dict[str, Any]:
        self._ended = True
        if self._open is not None:
            await self._open.close()
        return self.facts()


class PosedSource:
    """Loads the tasks whose id begins with `posed:`. It implements `air.worlds.sources.WorldSource`."""

    def load(self, name: str) -> WorldTask:
        """Returns the task `posed:FILE`. `name` is FILE, a path that may be relative to the current folder.
        Raises MissingError if a file, a tool or a package is absent, and ConfigError if a row or a setting is
        malformed."""
        path = Path(name).expanduser().absolute()
        settings = read_settings(name)
        if settings is None:
            rows, digest = read_rows(path)
            plain = PosedSettings(rows=name, equality="forms")
            return _task(name, rows, plain, LENT.get() or ToolSet(()), digest)
        check_equality(settings.equality)
        if settings.format:
            actions.get(settings.format, f"{path}: format")
        rows, digest = read_rows(path.parent / Path(settings.rows).expanduser())
        return _task(name, rows, settings, own_tools(name, settings), digest)

    def names(self) -> list[str]:
        """Returns the task names that the command `air tasks` lists: none, because the tasks come from files
        of the user."""
        return []


SOURCE = PosedSource()


def read_settings(name: str) -> PosedSettings | None:
    """Reads the settings of the task `posed:NAME`. Returns None if NAME is a file of rows, which has no
    settings. Raises MissingError if the file is absent, and ConfigError if a setting is malformed."""
    path = Path(name).expanduser().absolute()
    if path.suffix not in (".toml", ".json"):
        return None
    return validate(PosedSettings, read_toml(path), where=str(path))


def own_tools(name: str, settings: PosedSettings) -> ToolSet:
    """Loads the tools that the settings file of a task `posed:NAME` lists. `name` is NAME, the path of this
    file, and `settings` are its settings. Raises UsageError if a tool does not exist or cannot be used."""
    path = Path(name).expanduser().absolute()
    folder = path.parent / Path(settings.folder).expanduser()
    return tool_set((tool for spec in settings.tools for tool in load(spec, folder)), str(path))


def tool_set(tools: Iterable[Tool], where: str) -> ToolSet:
    """Makes the tool set of a task `posed:…` from `tools`, and checks that an episode can end only with an
    answer in a reply. Raises ConfigError, with the location `where`, if a tool would end an episode, or if a
    tool computes the final answer itself (`Tool.outcome`)."""
    result = ToolSet(tools)
    for tool in result.tools.values():
        if tool.name in ENDING_TOOLS:
            problem = f"the tool `{tool.name}` would end an episode without an answer"
        elif tool.outcome is not None:
            problem = f"the outcome of the tool `{tool.name}` would not count"
        else:
            continue
        remedy = "remove it from `tools`: the answer is the \\boxed{…} of a reply"
        raise ConfigError(problem, where=where, remedy=remedy)
    return result


def _task(
    name: str, rows: Sequence[PosedRow], settings: PosedSettings, tools: ToolSet, digest: str
) -> WorldTask:
    """Returns the task `posed:NAME` with these rows, settings and tools. `digest` is a digest (hash) of the
    rows. Without tools and with the equality `forms`, the task has the same digest; otherwise the task's
    digest is computed from `digest`, the tools and the equality."""
    make = functools.partial(PosedWorld, rows, tools, settings.equality)
    makers: dict[str, Any] = {"make": make}
    if tools.box is not None:
        makers = {"box": tools.box, "make_in": make}
    if tools:
        digest = hashlib.sha256(f"{digest} {tools.digest}".encode()).hexdigest()
    if settings.equality != "forms":
        digest = hashlib.sha256(f"{digest} {settings.equality}".encode()).hexdigest()
    return WorldTask(
        id=f"posed:{name}",
        instructions=WITH_TOOLS if tools else INSTRUCTIONS,
        digest=digest,
        replays=tools.replays and tools.box is None,
        max_turns=settings.turns or (TURNS_WITH_TOOLS if tools else 1),
        format=settings.format or ("tool_calls" if tools else FORMAT),
        unanswered=WRONG,
        tools=tools.schemas,
        answers=True,
        facts={**FACTS, **(TOOL_FACTS if tools else {})},
        **makers,
    )


def read_rows(path: Path) -> tuple[Sequence[PosedRow], str]:
    """Reads a JSON Lines file in which each row is a question with its answer. Returns the rows, and a digest
    (hash) of their content. Raises MissingError if the file is absent, and ConfigError if a row is malformed
    or there are no rows."""
    try:
        status = path.stat()
    except OSError:
        raise MissingError("no such file", where=str(path), remedy="check the path") from None
    return _read(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=64)
def _read(path: Path, _modified: int, _size: int) -> tuple[Sequence[PosedRow], str]:
    rows = [_row(where, value) for where, value in json_lines.read(path, complete=True)]
    if not rows:
        raise ConfigError("has no rows", where=str(path), remedy="add rows")
    return rows, hashlib.sha256(repr(rows).encode()).hexdigest()


def _row(where: str, value: Any) -> PosedRow:
    row = value if isinstance(value, dict) else {}
    question, answer, p_hat = row.get("question"), row.get("answer"), row.get("p_hat", 1.0)
    if not isinstance(question, str) or not question.strip():
        problem = "a row needs a text `question`"
    elif not isinstance(answer, str | int) or isinstance(answer, bool):
        problem = "a row needs an `answer`, which is a text or an integer"
    elif not _is_share(p_hat):
        problem = "`p_hat` must be a number between 0 and 1"
    else:
        return PosedRow(question, str(answer), float(p_hat))
    raise ConfigError(problem, where=where, remedy="correct the row")


def _is_share(value: Any) -> bool:
    """Returns whether `value` is a number from 0 to 1. A boolean does not count as a number."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= 1
