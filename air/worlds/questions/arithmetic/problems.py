"""Word problems whose answer is one integer. They are generated from a seed and a level, or read from a
user's file."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from air import json_lines
from air.errors import ConfigError, MissingError
from air.rewards.answers.integers import final_answer
from air.worlds.questions.arithmetic.expressions import Expression, NotWhole, read, solve
from air.worlds.questions.arithmetic.stories import story
from air.worlds.questions.arithmetic.templates import ITEMS, NAMES, TEMPLATES
from air.worlds.questions.episodes import belongs, for_validation

LEVELS = (1, 2, 3, 4, 5)
_MANY = 10_000
"""The maximum number of random draws for one problem. If no draw gives a usable problem, an AssertionError is
raised."""


@dataclass(frozen=True)
class Problem:
    """A word problem with its answer and a worked solution."""

    question: str
    answer: str
    """The integer as text, in the canonical form of `air.rewards.answers.integers.canonical`, such as
    `-12`."""
    solution: str
    """The worked solution in GSM8K's format. Its last line is `#### ` followed by the answer."""
    expression: Expression | None = None
    """The expression tree of a generated problem; None for a problem from a file."""


Problems = Callable[[int], Problem]
"""A function that takes an episode's seed and returns the problem for this episode."""


def generated(level: int | None) -> Problems:
    """Returns a function that takes a seed and generates the problem for it. All problems have the level
    `level`. If `level` is None, the level is drawn uniformly for each seed."""

    def draw_problem(seed: int) -> Problem:
        draw = random.Random(f"arithmetic {level} {seed}")
        chosen = level or draw.choice(LEVELS)
        for _ in range(_MANY):
            key, question, expression = _story(draw) if chosen == 5 else _drawn(chosen, draw)
            if belongs(key, seed):
                return _problem(question, expression)
        raise AssertionError(f"no problem of level {chosen} belongs to seed {seed}")

    return draw_problem


def _drawn(level: int, draw: random.Random) -> tuple[str, str, Expression]:
    """Draws a problem of the level `level`, from 1 to 4. Returns its key, question and expression tree (the
    operations that give the answer). The key is a string that identifies the problem; problems that differ
    only in the names of people and things have the same key."""
    index = draw.randrange(len(TEMPLATES[level]))
    template = TEMPLATES[level][index]
    for _ in range(_MANY):
        numbers = {name: draw.randint(*limits) for name, limits in template.ranges.items()}
        expression = read(template.formula, numbers)
        try:
            solve(expression)
        except NotWhole:
            continue
        name, other = draw.sample(NAMES, 2)
        words = {"name": name, "other": other, "item": draw.choice(ITEMS)}
        return f"{level} {index} {numbers}", template.text.format(**words, **numbers), expression
    raise AssertionError(f"no numbers fit the template {template.text!r}")


def _story(draw: random.Random) -> tuple[str, str, Expression]:
    text, expression, numbers = story(draw)
    return f"5 {numbers}", text, expression


def _problem(question: str, expression: Expression) -> Problem:
    value, lines = solve(expression)
    solution = "\n".join([*map(str, lines), f"#### {value}"])
    return Problem(question, str(value), solution, expression)


def from_files(path: Path) -> tuple[Problems, str]:
    """Returns a function from a seed to a problem in the user's files, and a digest (hash) of the files.

    If `path` is a JSON Lines file with `question` and `answer` in each row, about four fifths of its rows
    are for training seeds and the rest for validation seeds. If `path` is a folder with `train.jsonl` and
    `test.jsonl`, training seeds use the first file and validation seeds the second. Consecutive seeds use
    all rows of their split before any row is repeated. Raises MissingError if a file is absent, and
    ConfigError if a row is malformed or a split has no rows.
    """
    if path.is_dir():
        files = {False: path / "train.jsonl", True: path / "test.jsonl"}
        rows = {validation: _rows(file, _stamp(file)) for validation, file in files.items()}
        split = {validation: problems for validation, (problems, _) in rows.items()}
        digest = " ".join(digest for _, digest in rows.values())
    else:
        problems, digest = _rows(path, _stamp(path))
        split = {
            v: [p for p in problems if belongs(p.question, -1 if not v else 10**9)]
            for v in (False, True)
        }
    for validation, part in split.items():
        if not part:
            kind = "validation" if validation else "training"
            raise ConfigError(
                f"too few rows: none is for {kind}",
                where=str(path),
                remedy="add rows, or give a folder with train.jsonl and test.jsonl",
            )

    def row_of(seed: int) -> Problem:
        part = split[for_validation(seed)]
        return part[seed % len(part)]

    return row_of, digest


def _stamp(path: Path) -> tuple[int, int]:
    """Returns a pair of a file's modification time in nanoseconds and its size in bytes, by which a change of
    the file is noticed. Raises MissingError if the file does not exist."""
    try:
        status = path.stat()
    except OSError:
        raise MissingError(
            "no such file", where=str(path), remedy="check the path after the @ of the task id"
        ) from None
    return status.st_mtime_ns, status.st_size


@cache
def _rows(path: Path, stamp: tuple[int, int]) -> tuple[list[Problem], str]:
    """Reads the problems in the file `path`. Returns them with a digest (hash) of the file. The result is
    cached. `stamp` is the file's time and size; it is only a part of the cache's key, so that a changed file
    is read again. Raises ConfigError if the file or a row is malformed."""
    try:
        data = path.read_bytes()
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read as UTF-8 text: {error}", where=str(path)) from None
    lines = enumerate(text.split("\n"), start=1)
    rows = [_row(line, f"{path}:{number}") for number, line in lines if line.strip()]
    return rows, hashlib.sha256(data).hexdigest()


def _row(line: str, where: str) -> Problem:
    try:
        row = json_lines.decode(line)
    except ValueError as error:
        raise ConfigError(f"no JSON: {error}", where=where) from None
    question, solution = (
        row.get(k) if isinstance(row, dict) else None for k in ("question", "answer")
    )
    if not (isinstance(question, str) and question.strip() and isinstance(solution, str)):
        raise ConfigError(
            "the row needs the texts `question` and `answer`", where=where, remedy="add them"
        )
    answer = final_answer(solution)
    if answer is None:
        raise ConfigError(
            "the answer does not end in `#### ` and an integer",
            where=where,
            remedy="correct the row",
        )
    return Problem(question.strip(), answer, solution)
