"""Extracts the main facts about an episode from its trajectory (the recording, one JSON object per line), and
the position of each line in the file (`Place`).

Any JSON object is accepted as a line. A field that is absent or has an unexpected type counts as None.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from air.json_lines import Line

KEPT_SCORES = 60
"""The maximum number of scores that the index stores of an episode (those of the last gradings), so that
facts about an episode with very many gradings stay small."""


@dataclass
class Facts:
    """The main facts about one episode, from those lines of its trajectory (recording) that have been read so
    far. A fact that is not recorded is None."""

    episode: str | None = None
    task: str | None = None
    model: str | None = None
    metric: str | None = None
    direction: str | None = None
    """Which scores are better: `higher` or `lower` ones."""
    baseline: float | None = None
    isolation: str | None = None
    started: float | None = None
    """The time of the trajectory's first line, in seconds since the epoch."""
    ended: float | None = None
    """The time of the trajectory's line `end`, in seconds since the epoch."""
    how: str = "unfinished"
    """How the episode ended: `well`, `failed` (something failed that the agent did not cause) or `unfinished`
    (it is running, or was killed)."""
    why: str | None = None
    """The reason why the episode ended, from the trajectory's line `end`."""
    error: str | None = None
    reward: float | None = None
    score: float | None = None
    """The score in the last grading that has a score."""
    best: float | None = None
    test: float | None = None
    turns: int = 0
    validates: int = 0
    errors: int = 0
    """The number of turns with a failed command or without an action, plus the number of gradings in which
    the agent's result was missing or malformed."""
    seconds: float = 0.0
    """Seconds from the time of the trajectory's first line to that of its last line."""
    seconds_model: float = 0.0
    seconds_exec: float = 0.0
    seconds_grading: float = 0.0
    seconds_queue: float = 0.0
    scores: str = "[]"
    """The scores in the last `KEPT_SCORES` gradings, as a JSON list; null for a grading without a score."""
    lines: int = 0
    items: int = 0
    """The number of items. An item is a turn with its gradings, or gradings without a recorded turn."""
    turn: int | None = None
    """The turn number in the last line of the type `step` (a turn) or `validate` (a grading)."""

    @property
    def ending(self) -> str:
        """A short text for users about how the episode ended, with the reason or the error."""
        if self.how == "well":
            return self.why or "well"
        return f"failed: {self.error or self.why}" if self.how == "failed" else self.how


@dataclass(frozen=True)
class Place:
    """The position of one line in a trajectory file (the recording of an episode), and some of the line's
    fields. The index stores a `Place` for each line."""

    seq: int
    kind: str
    item: int
    """The position, from 0, of the item to which the line belongs; -1 if it belongs to none. An item is a
    turn with its gradings."""
    offset: int
    """The position of the line's first byte in the file."""
    length: int
    """The length in bytes of the line of the trajectory file."""
    turn: int | None
    bad: int
    """1 if the line records a failed command, a reply without an action, a grading with a problem, or an
    infrastructure error (which the agent did not cause); otherwise 0."""
    score: float | None
    phi: float | None
    delta: float | None


def read_line(facts: Facts, line: dict[str, Any], offset: int, length: int) -> Place | None:
    """Adds the content of one trajectory line to `facts`, and returns a `Place`: the line's position in the
    file and its main fields. Returns None if the line has no `type`, because it is then not a line of a
    trajectory.

    `offset` is the line's position in the file, and `length` its length, both in bytes.
    """
    kind = text(line.get("type"))
    if kind is None:
        return None
    when = number(line.get("t"))
    facts.started = when if facts.started is None else facts.started
    if when is not None and facts.started is not None:
        facts.seconds = max(0.0, when - facts.started)
    bad = _READ[kind](facts, line) if kind in _READ else False
    own = kind in ("start", "end")
    place = Place(
        seq=facts.lines,
        kind=kind,
        item=-1 if own else facts.items - 1,
        offset=offset,
        length=length,
        turn=integer(line.get("turn")),
        bad=int(bad),
        score=number(line.get("score")) if kind == "validate" else None,
        phi=number(line.get("phi")) if kind == "validate" else None,
        delta=number(line.get("delta")) if kind == "validate" else None,
    )
    facts.lines += 1
    facts.errors += int(bad and not own)
    return place


def read_lines(facts: Facts, lines: Iterable[Line]) -> tuple[list[Place], int]:
    """Adds the content of trajectory lines to `facts`. Returns the `Place` (the position and main fields) of
    each line, and the number of lines that cannot be used."""
    places, problems = [], 0
    for line in lines:
        place = None
        if line.data is not None:
            place = read_line(facts, line.data, line.offset, line.length)
        if place is None:
            problems += 1
        else:
            places.append(place)
    return places, problems


def _start(facts: Facts, line: dict[str, Any]) -> bool:
    for name in ("episode", "task", "model", "metric", "direction", "isolation"):
        setattr(facts, name, text(line.get(name)))
    facts.baseline = number(line.get("baseline"))
    facts.seconds_queue = number(line.get("queue_seconds")) or 0.0
    return False


def _step(facts: Facts, line: dict[str, Any]) -> bool:
    facts.items += 1
    facts.turns += 1
    facts.turn = integer(line.get("turn"))
    facts.seconds_exec += number(line.get("exec_seconds")) or 0.0
    facts.seconds_model += number(line.get("model_seconds")) or 0.0
    code = line.get("code")
    failed = code is not None and code != 0
    return (
        line.get("action") is None or failed or bool(line.get("timed_out") or line.get("problem"))
    )


def _validate(facts: Facts, line: dict[str, Any]) -> bool:
    if facts.turn is None or integer(line.get("turn")) != facts.turn:
        facts.items += 1  # validates of an agent program that records no turns
        facts.turn = integer(line.get("turn"))
    score = number(line.get("score"))
    facts.validates += 1
    facts.seconds_grading += number(line.get("seconds")) or 0.0
    facts.scores = json.dumps([*json.loads(facts.scores), score][-KEPT_SCORES:])
    if score is not None:
        facts.score = score
        better = min if facts.direction == "lower" else max
        facts.best = score if facts.best is None else better(facts.best, score)
    return bool(line.get("problem"))


def _end(facts: Facts, line: dict[str, Any]) -> bool:
    ok = line.get("ok") is True
    facts.how = "well" if ok else "failed"
    facts.ended = number(line.get("t"))
    facts.why, facts.error = text(line.get("why")), text(line.get("error"))
    facts.reward = number(line.get("reward"))
    metrics = line.get("metrics")
    metrics = metrics if isinstance(metrics, dict) else {}
    facts.test = number(metrics.get("test_score"))
    if not facts.validates:  # a world's only score
        facts.score = facts.best = number(metrics.get("score"))
    for name in ("model", "exec", "grading", "queue"):
        seconds = number(metrics.get(f"seconds_{name}"))
        if seconds is not None:
            setattr(facts, f"seconds_{name}", seconds)
    return not ok


_READ = {"start": _start, "step": _step, "validate": _validate, "end": _end}


def number(value: object) -> float | None:
    """Returns `value` as a float, or None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def integer(value: object) -> int | None:
    """Returns `value` if it is an integer that SQLite can store (64 bits); otherwise None."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if abs(value) < 2**63 else None


def whole(value: object) -> int | None:
    """Returns `value` as an integer if it is a number without a fractional part, such as 3 or 3.0; otherwise
    None."""
    as_float = number(value)
    return integer(int(as_float)) if as_float is not None and as_float.is_integer() else None


def text(value: object) -> str | None:
    """Returns `value` as text that SQLite can store (without surrogate characters) if it is a string;
    otherwise None."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None
