"""The tasks `posed:FILE.jsonl`: answer a question that was proposed, against its label.

A row of the file is `{"question": …, "answer": …, "p_hat": …}`. The last `\\boxed{…}` of the reply is the
answer: it earns 1 if it equals the label, and −1 otherwise, as does a reply without one. Rows follow from
seeds: seed n asks row n, in turn. `p_hat` is the agreement with which the label was found; it is the fact
`p_hat`, from which ADPO takes it (`share = "p_hat"`). The label is in no prompt, observation, fact or record.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from air import json_lines
from air.actions.base import Action
from air.errors import ConfigError, MissingError
from air.rewards.proposals.agreement import same
from air.rewards.proposals.reading import last_boxed
from air.worlds.base import Observation, Step
from air.worlds.proposals.whole_reply import FORMAT
from air.worlds.sources import VALIDATION_SEED, WorldTask

RIGHT, WRONG = 1.0, -1.0
INSTRUCTIONS = "Solve the problem."
FACTS: Mapping[str, str] = {
    "success": "1 if the answer equals the label, else 0",
    "answered": "1 if the reply has an answer in \\boxed{…}, else 0",
    "p_hat": "the agreement with which the label was found; 1 if the row does not say it",
}


@dataclass(frozen=True)
class PosedRow:
    """One question with its label."""

    question: str
    answer: str
    p_hat: float = 1.0


class PosedWorld:
    """One question, answered once."""

    def __init__(self, rows: Sequence[PosedRow]) -> None:
        self._rows = rows
        self._row: PosedRow | None = None
        self._facts = {"success": 0.0, "answered": 0.0, "p_hat": 1.0}
        self._ended = False

    async def reset(self, seed: int) -> Observation:
        number = seed - VALIDATION_SEED if seed >= VALIDATION_SEED else seed
        self._row, self._ended = self._rows[number % len(self._rows)], False
        self._facts = {"success": 0.0, "answered": 0.0, "p_hat": self._row.p_hat}
        return Observation(self._row.question)

    async def step(self, action: Action) -> Step:
        if self._row is None:
            raise RuntimeError("step before reset")
        if self._ended:
            return Step(Observation("The episode has ended."), done=True)
        self._ended = True
        answer = last_boxed(action.answer)
        self._facts["answered"] = float(answer is not None)
        right = answer is not None and same(answer, self._row.answer)
        self._facts["success"] = float(right)
        return Step(Observation(""), done=True, reward=RIGHT if right else WRONG)

    def facts(self) -> dict[str, float]:
        return dict(self._facts)

    async def close(self) -> dict[str, Any]:
        self._ended = True
        return self.facts()


class PosedSource:
    """The source of all tasks `posed:…`."""

    def load(self, name: str) -> WorldTask:
        """Returns the task `posed:FILE`. Raises MissingError if there is no such file, and ConfigError if a
        row is malformed."""
        rows, digest = read_rows(Path(name).expanduser().absolute())
        return WorldTask(
            id=f"posed:{name}",
            make=lambda: PosedWorld(rows),
            instructions=INSTRUCTIONS,
            digest=digest,
            replays=True,
            max_turns=1,
            format=FORMAT,
            unanswered=WRONG,
            facts=FACTS,
        )

    def names(self) -> list[str]:
        """Returns nothing: the files are the user's."""
        return []


SOURCE = PosedSource()


def read_rows(path: Path) -> tuple[Sequence[PosedRow], str]:
    """Returns the rows of a file, and a digest of its content. Raises MissingError or ConfigError."""
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
    if not (isinstance(question, str) and question.strip() and isinstance(answer, str | int)):
        raise ConfigError(
            "a row needs a text `question` and an `answer`", where=where, remedy="correct the row"
        )
    if not isinstance(p_hat, int | float) or not math.isfinite(p_hat) or not 0 <= p_hat <= 1:
        raise ConfigError("`p_hat` must be between 0 and 1", where=where, remedy="correct the row")
    return PosedRow(question, str(answer), float(p_hat))
