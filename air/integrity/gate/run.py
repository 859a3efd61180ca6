"""Checks whether Harbor tasks are sound (see `air.integrity.gate.check`), many at a time. Stores the verdicts
in a file, so that an interrupted check can continue."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from air import json_lines, paths, tasks
from air.aio import run_concurrently
from air.errors import AirError, ConfigError, UsageError, boundary
from air.integrity.gate.check import VERSION, Finding, GateVerdict, check, digest_of, not_checked
from air.integrity.gate.hacks import Hack
from air.integrity.gate.replays import TIME_LIMIT
from air.sandbox.pool.box_pool import Pool
from air.tasks.grading import Grader
from air.tasks.sources.harbor.settings import HarborSettings


@dataclass(frozen=True)
class Gate:
    """Checks whether Harbor tasks are sound. At most `at_once` agents' boxes (containers) run at the same
    time."""

    settings: HarborSettings
    at_once: int
    hacks: Sequence[Hack] = ()
    """The hacks (scripts that try to earn a reward without doing the work) with which each task is checked.
    They are run after the task's solution and an agent that does nothing."""
    report: Path | None = None
    """The file for the verdicts, which is rewritten after each task. If the file exists, its verdict on a
    task (`sound` or `weak`) is reused, unless the task, the settings or the hacks have changed since, or a
    time limit ended the replay of a trajectory. None: no file."""
    on_verdict: Callable[[GateVerdict], None] = lambda verdict: None
    """A function that is called with each verdict as soon as it is known."""
    replays: Mapping[str, Sequence[Hack]] = field(default_factory=dict)
    """Further hacks of single tasks, by the task's id: they replay recorded trajectories."""

    async def run(self, ids: Sequence[str]) -> list[GateVerdict]:
        """Checks the tasks with these ids; returns one verdict for each task, in the order of `ids`. There is
        also a verdict on a task that cannot be played.

        Raises ConfigError if the file `report` exists but is not a report of the gate, cannot be written, or
        is in use by another check.
        """
        with contextlib.nullcontext() if self.report is None else _in_use(self.report):
            return await self._run(ids)

    async def _run(self, ids: Sequence[str]) -> list[GateVerdict]:
        known = {} if self.report is None else await asyncio.to_thread(read, self.report)
        verdicts: dict[str, GateVerdict] = {}
        async with Pool(self.at_once) as boxes, Pool(self.at_once, nested=True) as graders:
            grader = Grader(graders, "docker")

            async def one(task_id: str) -> None:
                verdict = await self._check(task_id, known.get(task_id), boxes, grader)
                verdicts[task_id] = verdict
                if self.report is not None:
                    # Old verdicts of tasks that are not checked yet stay: this check may be interrupted, too.
                    both = known | verdicts
                    write(self.report, [both[name] for name in ids if name in both])
                self.on_verdict(verdict)

            await run_concurrently([one(task_id) for task_id in ids], self.at_once)
        return [verdicts[name] for name in ids]

    async def _check(
        self, task_id: str, known: GateVerdict | None, boxes: Pool, grader: Grader
    ) -> GateVerdict:
        try:
            task = await asyncio.to_thread(tasks.load, task_id, harbor=self.settings)
            hacks = [*self.hacks, *self.replays.get(task_id, ())]
            digest = await digest_of(task, hacks)
            if known is not None and self._holds(known, digest, hacks):
                return known
            return await check(task, boxes, grader, hacks)
        except UsageError as error:
            return not_checked(task_id, "refused", error)
        except AirError as error:  # the other tasks are checked in any case
            return not_checked(task_id, "failed", error)

    @staticmethod
    def _holds(known: GateVerdict, digest: str, hacks: Sequence[Hack]) -> bool:
        return (
            known.digest == digest
            and known.version == VERSION
            and known.tried == tuple(hack.name for hack in hacks)
            and known.result in ("sound", "weak")
            and not any(TIME_LIMIT in reason for reason in known.incomplete.values())
        )


def write(file: Path, verdicts: Sequence[GateVerdict]) -> None:
    """Writes the report `file` in JSON: the verdicts on Harbor tasks, and the versions of air and Python."""
    report = {
        "v": VERSION,
        "kind": "harbor",
        "versions": {"air": version("air-agent"), "python": platform.python_version()},
        "tasks": [one.row() for one in verdicts],
    }
    with boundary(ConfigError, f"cannot write {file}", OSError):
        paths.write_whole(file, json.dumps(report, indent=1).encode())


@contextlib.contextmanager
def _in_use(report: Path) -> Iterator[None]:
    """Context manager: locks the report, so that no other check writes to it while the `with` block runs."""
    lock = report.with_name(f".{report.name}.lock")
    with contextlib.ExitStack() as stack:
        with boundary(ConfigError, f"cannot write {report}", OSError):
            report.parent.mkdir(parents=True, exist_ok=True)
            stream = stack.enter_context(lock.open("a"))
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    "another check writes this report",
                    where=str(report),
                    remedy="wait for it, or name another file",
                ) from None
        stack.callback(lock.unlink, missing_ok=True)
        yield


def read(file: Path) -> dict[str, GateVerdict]:
    """Returns the verdicts in a report, by the task's id; an empty dict if the file does not exist. Raises
    ConfigError if the file is no report."""
    try:
        report = json_lines.decode(file.read_bytes())
        if report["kind"] != "harbor":
            raise ValueError("it is of another kind")
        if report["v"] != VERSION:
            return {}
        return {row["task"]: _verdict(row) for row in report["tasks"]}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"is no report of a check of Harbor tasks: {error}",
            where=str(file),
            remedy="name another file, or remove this one",
        ) from None


def _verdict(row: dict[str, Any]) -> GateVerdict:
    findings = tuple(Finding(**one) for one in row["findings"])
    return GateVerdict(**{**row, "findings": findings, "tried": tuple(row["tried"])})
