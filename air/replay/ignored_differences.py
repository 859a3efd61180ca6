"""Compares a recorded text with the text of a replay, and ignores parts that differ in every run, such as
times.

For the comparison, parts of both texts are replaced by fixed words: the box's folder paths and GPU names
(`Folders`), and every text that a pattern in `RULES` matches, such as a time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"


@dataclass(frozen=True)
class Rule:
    """A kind of text, such as a time, that can differ between a recording and its replay, and is therefore
    not compared."""

    name: str
    kind: str
    """The group of the rule: `time`, `path`, `seed` or `process`."""
    pattern: re.Pattern[str]
    """Matches the text that can differ."""
    instead: str
    """The text that replaces each match in both texts before they are compared."""
    example: str
    """An example of a text that `pattern` matches."""


def _rule(name: str, kind: str, pattern: str, instead: str, example: str) -> Rule:
    return Rule(name, kind, re.compile(pattern), instead, example)


RULES: tuple[Rule, ...] = (
    _rule(
        "date and time",
        "time",
        r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z\b| ?[+-]\d\d:?\d\d\b)?)?",
        "<time>",
        "2026-11-21T21:02:14.5Z",
    ),
    _rule(
        "date as `date` prints it",
        "time",
        rf"\b{_DAY} {_MONTH} [ \d]?\d \d\d:\d\d:\d\d(?: [A-Z]{{2,5}})?(?: \d{{4}})?",
        "<time>",
        "Sat Nov 21 21:02:14 UTC 2026",
    ),
    _rule(
        "date as `ls` prints it",
        "time",
        rf"\b{_MONTH} [ \d]\d (?:\d\d:\d\d\b| \d{{4}}\b)",
        "<time>",
        "Nov 21 21:02",
    ),
    _rule("time of day", "time", r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b", "<time>", "21:02:14.123"),
    _rule("seconds since 1970", "time", r"\b1[6-9]\d{8}(?:\.\d+)?\b", "<time>", "1795295436.418"),
    _rule("minutes and seconds", "time", r"\b\d+m ?\d+(?:\.\d+)?s\b", "<duration>", "0m0.012s"),
    _rule("rate", "time", r"\b\d+(?:\.\d+)? ?(?:it/s|s/it)(?!\w)", "<rate>", "31.5it/s"),
    _rule(
        "duration",
        "time",
        r"\b\d+(?:\.\d+)?(?:e-\d+)? ?(?:ns|µs|us|ms|s|secs?|seconds?)\b",
        "<duration>",
        "0.31 s",
    ),
    _rule(
        "name of a temporary file",
        "path",
        r"/tmp/(?:tmp[a-z0-9_]{8}|tmp\.[A-Za-z0-9]{10}|\.air-shell-[0-9a-f]{16})(?![A-Za-z0-9_])",
        "/tmp/<name>",
        "/tmp/tmpx81_k2ab",
    ),
    _rule(
        "seed",
        "seed",
        r"(?i)\b((?:random[_ ])?seed)([ \t]*[:=]?[ \t]*)\d+\b",
        r"\1\2<seed>",
        "seed=1234",
    ),
    _rule("process id", "process", r"(?i)\b(pid)([ =:]+)\d+\b", r"\1\2<pid>", "pid 4711"),
    _rule("background job", "process", r"(?m)^(\[\d+\]) \d+$", r"\1 <pid>", "[1] 4711"),
    _rule(
        "command ended by a signal",
        "process",
        r"(line \d+: +)\d+( +(?:Killed|Terminated|Aborted|Segmentation fault)\b)",
        r"\1<pid>\2",
        "bash: line 1: 4711 Killed",
    ),
    _rule(
        "memory address",
        "process",
        r"\b0x[0-9a-f]{6,16}\b",
        "<address>",
        "<object at 0x7f12a4c0d1f0>",
    ),
)
"""The kinds of text that can differ between a recording and its replay."""
NEVER: tuple[str, ...] = (
    "times, durations, and whether a grade came from the cache",
    "who played: model, tokens, trace, worker, versions of packages",
    "names and hashes of the episode, its settings and its image (a note says if the image differs)",
    "a reply's text around its action, and the system prompt before the action format",
    "the task's fields in the first line; the hash of the task's files is compared",
    "settings without effect on what is compared",
    "a step's changes in the workspace (`diff`)",
    "an artefact's bytes (a note says if they differ; its score is compared), and their path",
    "the reason of the end, counts, and metrics except the test score",
    "terms of the reward except `delta`; their sum is compared (`--rescore` computes all terms anew)",
)
"""Descriptions, for users, of the parts of a trajectory (recorded episode) that a replay does not compare."""


@dataclass(frozen=True)
class Folders:
    """The names in the output of one box (sandbox) that can differ in another box: folder paths and GPU
    UUIDs."""

    workspace: str = "/workspace"
    """The path of the workspace (the agent's folder) inside the box."""
    temporary: str = "/tmp"
    """Path of the folder for temporary files inside the box."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the box's GPUs."""

    def named(self, text: str) -> str:
        """Returns `text` with the box's folder paths replaced by the default paths, and each of its GPU UUIDs
        by `<gpu N>`, where N is the index in `gpus`."""
        for place, uuid in enumerate(self.gpus):
            text = text.replace(uuid, f"<gpu {place}>")
        for here, usual in ((self.workspace, "/workspace"), (self.temporary, "/tmp")):
            if here != usual:
                text = text.replace(here, usual)
        return text


def normalised(text: str, folders: Folders, *, exact: bool = False) -> str:
    """Returns `text` in a comparable form. Default names replace the folder paths and GPU UUIDs of its box,
    `folders`. Unless `exact` is true, fixed words also replace all matches of `RULES`, such as times."""
    text = folders.named(text)
    if not exact:
        for rule in RULES:
            text = rule.pattern.sub(rule.instead, text)
    return text


@dataclass(frozen=True)
class Difference:
    """The first difference between a recorded text or value and the replayed one."""

    turn: int
    """Number of the step that differs, from 1. It is 0 for a text before the first step, such as the prompt.
    For what happens after the last step, such as the final grading, it is the number of the last step."""
    what: str
    """Name of the text or value that differs: `prompt`, `observation`, `exit code`, `score`, …"""
    recorded: str
    """The differing part of the recording as a Python literal, with some text around it."""
    replayed: str
    """The differing part of the replay as a Python literal, with some text around it."""

    def __str__(self) -> str:
        where = f"step {self.turn}" if self.turn else "before step 1"
        return f"{where}: {self.what}\n  recorded: {self.recorded}\n  replayed: {self.replayed}"


def texts(
    turn: int,
    what: str,
    recorded: tuple[str, Folders],
    replayed: tuple[str, Folders],
    *,
    exact: bool = False,
) -> Difference | None:
    """Returns the first difference between two texts, or None if they are equal. Each text comes as a pair
    with the `Folders` (paths and GPU names) of the box that wrote it.

    `turn` is the number of the step and `what` the name of the text; both are stored in the result. Parts
    that `RULES` matches, such as times, are not compared, unless `exact` is true.
    """
    old = normalised(*recorded, exact=exact)
    new = normalised(*replayed, exact=exact)
    if old == new:
        return None
    at = next(
        (n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
        min(len(old), len(new)),
    )
    line = old.count("\n", 0, at) + 1
    return Difference(turn, f"{what}, line {line}", _around(old, at), _around(new, at))


def values(turn: int, what: str, recorded: object, replayed: object) -> Difference | None:
    """Returns a `Difference` with the representations of two values, or None if they are equal. `turn` is the
    number of the step and `what` the name of the value; both are stored in the result."""
    if recorded == replayed:
        return None
    return Difference(turn, what, repr(recorded), repr(replayed))


def _around(text: str, at: int) -> str:
    """Returns at most 160 characters of `text` around the index `at`, from the same line, as a Python string
    literal. If `at` is the end of the text, the result says so."""
    start = max(text.rfind("\n", 0, at) + 1, at - 80)
    end = text.find("\n", at)
    line = text[start : min(len(text) if end < 0 else end, at + 80)]
    return repr(line) if at < len(text) else f"{line!r}, then the text ends"
