"""Loads the tasks `rows:PATH`, whose episodes ask the questions in the rows of a user's dataset, with tools
and an answer checker.

PATH is a file of rows (.json, .jsonl, .parquet), or a `.toml` file with `RowsSettings`. Settings may follow
after `#`: `rows:data.jsonl#checker=math_equal&tools=calculator,search&turns=4`.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from air.errors import ConfigError
from air.rewards.answers import CHECKERS, Checker, check
from air.sandbox.contract.box import BoxSpec
from air.source_code import code_of_function
from air.tools import ToolSet, load
from air.worlds.rows import settings as rows_settings
from air.worlds.rows.reading import Row, RowFile, read
from air.worlds.rows.settings import RowsSettings, SplitFiles
from air.worlds.rows.splits import SPLITS, Deck, Split, keeps
from air.worlds.rows.world import FACTS, RowsTask, RowsWorld, calls_of, metric_of
from air.worlds.sources import WorldTask

RULES = 2
"""The version of the code that selects a row by a seed and processes an answer. Raise this number with every
change after which the row or the reward of any episode differs. It is part of the task's digest (hash)."""
TURNS_WITH_TOOLS = 8


class RowsSource:
    """Loads the tasks whose id begins with `rows:`. It implements `air.worlds.sources.WorldSource`."""

    def load(self, name: str) -> WorldTask:
        """Returns the task `rows:NAME`. Raises MissingError if a file, tool, checker or package is absent,
        and ConfigError if a setting or a row is wrong."""
        task_id = f"rows:{name}"
        settings, folder = rows_settings.of(name, task_id)
        if settings.checker is None:
            raise ConfigError(
                "`checker` is missing",
                where=task_id,
                remedy=f"add #checker=NAME, or the key to the .toml; known: {', '.join(CHECKERS)}",
            )
        files = files_of(settings, folder)
        tools = ToolSet(tool for spec in settings.tools for tool in load(spec, folder))
        checker = check(settings.checker, folder=folder)
        rows = split(settings, files)
        task = RowsTask(
            deck=Deck(task_id, rows, settings.split),
            tools=tools,
            checker=checker,
            public=settings.public,
            metrics=settings.metrics,
            success_at=settings.success_at,
            options=settings.options,
        )
        check_rows(task)
        return WorldTask(
            id=task_id,
            instructions=settings.instructions or _instructions(tools),
            digest=_digest(settings, files, tools, checker),
            replays=tools.replays and tools.box is None and not checker.needs_box,
            max_turns=settings.turns or (TURNS_WITH_TOOLS if tools else 1),
            format=settings.format or ("tool_calls" if tools else "think_answer"),
            format_penalty=settings.format_penalty,
            unanswered=checker.lowest,
            tools=tools.schemas,
            answers=True,
            seconds=settings.seconds,
            facts=_facts(tools, settings.metrics),
            **_makers(task, settings),
        )

    def names(self) -> list[str]:
        """Returns the task names that the command `air tasks` lists: none, because the tasks come from files
        of the user."""
        return []


def files_of(settings: RowsSettings, folder: Path) -> Mapping[Split | None, RowFile]:
    """Reads the dataset's files. Returns a dict from a split, `train` or `validation`, to the rows in its
    file. If a single file contains the rows of both splits, the only key is None. Relative paths are relative
    to `folder`."""
    if isinstance(settings.data, SplitFiles):
        written: dict[Split | None, str] = {
            "train": settings.data.train,
            "validation": settings.data.validation,
        }
    else:
        written = {None: settings.data}
    return {key: read(folder / Path(path).expanduser()) for key, path in written.items()}


def split(
    settings: RowsSettings, files: Mapping[Split | None, RowFile]
) -> Mapping[Split, list[Row]]:
    """Divides the rows of the dataset into the splits `train` and `validation`, without those that do not
    satisfy the conditions in `settings.where`. `files` maps each split to the rows in its file, or None to
    the rows of a single file."""
    rows: dict[Split, list[Row]] = {split: [] for split in SPLITS}
    for held, file in files.items():
        for row in file.rows:
            if keeps(row, settings.where):
                rows[held or settings.splits.of(row)].append(row)
    return rows


def check_rows(task: RowsTask) -> None:
    """Checks all rows that a seed can select, before any episode runs. Raises ConfigError if a row lacks a
    field that the checker or the tools need, or if its options are malformed."""
    needed = [*task.checker.columns, *task.public]
    for rows in task.deck.asked.values():
        for row in rows:
            for name in needed:
                if name != "question":
                    row.field(name)
            task.question(row)


def _makers(task: RowsTask, settings: RowsSettings) -> dict[str, Any]:
    """Returns those fields of the task (`WorldTask`) that say how its world is made and which boxes (isolated
    places for commands) it needs, by name."""
    box, make = task.tools.box, functools.partial(RowsWorld, task)
    if task.checker.needs_box:
        # A fresh box is needed: in its own box, the agent could prepare that every test passes.
        check_box = BoxSpec(image=settings.check_image)
        return {"box": box, "check_box": check_box, "make_checked": make}
    return {"make": make} if box is None else {"box": box, "make_in": make}


def _instructions(tools: ToolSet) -> str:
    return "Answer the question." + (" You may use tools." if tools else "")


def _facts(tools: ToolSet, metrics: tuple[str, ...]) -> dict[str, str]:
    calls = {calls_of(name): f"number of calls of {name}" for name in tools.tools}
    return {**FACTS, **calls, **{metric_of(m): f"the checker's metric {m}" for m in metrics}}


def _digest(
    settings: RowsSettings,
    files: Mapping[Split | None, RowFile],
    tools: ToolSet,
    checker: Checker,
) -> str:
    """Returns a digest (hash) of the data, the tools, the checker and the settings, by which records of
    episodes identify the task. It does not depend on the location of the files."""
    unused = {"data"} if settings.options else {"data", "options"}  # older digests stay valid
    parts = [
        RULES,
        settings.model_dump(mode="json", exclude=unused),
        [file.digest for file in files.values()],
        tools.digest,
        checker.name,
        code_of_function(checker.function),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


SOURCE = RowsSource()
