"""Extracts facts about an episode from its trajectory's lines, with the place of each line in the file.

Accepts any line: a field that is absent or of another type is None.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

KEPT_SCORES = 60


@dataclass
class Facts:
    """One episode, as far as it is recorded."""

    episode: str | None = None
    task: str | None = None
    model: str | None = None
    metric: str | None = None
    direction: str | None = None
    """`higher` or `lower` is better."""
    baseline: float | None = None
    isolation: str | None = None
    started: float | None = None
    """Seconds since the epoch; `ended` too."""
    ended: float | None = None
    how: str = "unfinished"
    """`well`, `failed` (an infrastructure failure) or `unfinished`: it still runs, or its run was killed."""
    why: str | None = None
    """Why it ended."""
    error: str | None = None
    reward: float | None = None
    score: float | None = None
    """Of the last validate that has one."""
    best: float | None = None
    test: float | None = None
    turns: int = 0
    validates: int = 0
    errors: int = 0
    """Commands that failed, replies that were no action, and failed validates."""
    seconds: float = 0.0
    """From its first line to its last."""
    seconds_model: float = 0.0
    seconds_exec: float = 0.0
    seconds_grading: float = 0.0
    seconds_queue: float = 0.0
    scores: str = "[]"
    """The scores of its last validates, as JSON."""
    lines: int = 0
    items: int = 0
    """Turns, each with its validates; a validate without a turn counts too."""
    turn: int | None = None
    """The number of the last turn."""


@dataclass(frozen=True)
class Place:
    """One line of a trajectory."""

    seq: int
    kind: str
    item: int
    """The item that the line belongs to, from 0; -1: none, as for the first and the last line."""
    offset: int
    """In bytes, as the length."""
    length: int
    turn: int | None
    bad: int
    """1 if something failed in the line."""
    score: float | None
    phi: float | None
    delta: float | None


def read_line(facts: Facts, line: dict[str, Any], offset: int, length: int) -> Place | None:
    """Adds a line to the facts; returns its place, or None if it is not a line of a trajectory."""
    kind = text(line.get("type"))
    if kind is None:
        return None
    when = number(line.get("t"))
    facts.started = when if facts.started is None else facts.started
    if when is not None and facts.started is not None:
        facts.seconds = max(0.0, when - facts.started)
    bad = _READ.get(kind, _other)(facts, line)
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
        facts.items += 1  # a program without recorded turns
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
    for name in ("model", "exec", "grading", "queue"):
        seconds = number(metrics.get(f"seconds_{name}"))
        if seconds is not None:
            setattr(facts, f"seconds_{name}", seconds)
    return not ok


def _other(facts: Facts, line: dict[str, Any]) -> bool:
    return False


_READ = {"start": _start, "step": _step, "validate": _validate, "end": _end}


def number(value: object) -> float | None:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def integer(value: object) -> int | None:
    """A whole number that SQLite can hold."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if abs(value) < 2**63 else None


def text(value: object) -> str | None:
    """A string that SQLite can hold."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None
