"""The benchmark suites of `air eval --suite`: their benchmarks, what was published, and the user's data.

air ships no benchmark's data. The user gives a folder with a file of rows for each benchmark (see
`docs/rows.md`), or a `.toml` with the settings of such a task, for example with tools. Published numbers are
recorded facts: they are printed beside the measured ones, and nothing else follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from air.errors import ConfigError, MissingError
from air.rewards.answers.mathematics import agent0
from air.worlds.proposals.posed import INSTRUCTIONS
from air.worlds.proposals.whole_reply import FORMAT
from air.worlds.rows import settings as rows_settings
from air.worlds.rows.reading import READERS, Row
from air.worlds.rows.source import files_of, split
from air.worlds.rows.splits import Deck
from air.worlds.sources import load

_CHECK = "checker=agent0&split=all"
_FILE_OPTIONS = f"#{_CHECK}&format={FORMAT}&instructions={INSTRUCTIONS}"
"""The options of the task that is made of a file: its questions are asked and checked as Agent0 does with its
executor."""
_SOLUTION = ("####", "\\boxed")
"""Texts that a whole solution contains, and a final answer alone does not."""
_LONGEST_ANSWER = 300
"""The largest number of characters of a final answer. Those of MATH are shorter."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark, and what was published about it."""

    name: str
    """The name of the user's file, without its end."""
    title: str
    samples: int = 1
    """How often each question is asked by default. It is air's choice, not a published number: benchmarks
    with few questions ask each of them more often."""
    published: Mapping[str, float] | None = None
    """Published accuracies in percent, by model."""
    above: float | None = None
    """The accuracy in percent that a model must exceed in the benchmark check; None: no limit is checked."""


@dataclass(frozen=True)
class Suite:
    """Benchmarks that are played together."""

    source: str
    """The source of the published numbers, for example a paper."""
    benchmarks: Sequence[Benchmark]


def _published(base: float, trained: float) -> Mapping[str, float]:
    return {"Qwen3-8B-Base": base, "Agent0 on Qwen3-8B-Base": trained}


SUITES: Mapping[str, Suite] = {
    "math": Suite(
        "Agent0 (arXiv 2511.16043; aiming-lab/Agent0 at 3cf8bfe)",
        (
            Benchmark("math500", "MATH-500", 1, _published(78.0, 82.4), 78.0),
            Benchmark("gsm8k", "GSM8K", 1, _published(89.1, 94.5), 89.0),
            Benchmark("amc", "AMC", 32, _published(52.0, 62.4), 52.0),
            Benchmark("aime24", "AIME 2024", 32),
            Benchmark("aime25", "AIME 2025", 32),
        ),
    ),
}
"""The suites by name."""


@dataclass(frozen=True)
class Data:
    """The user's rows of one benchmark."""

    benchmark: Benchmark
    task: str
    """The id of the task that asks the rows' questions."""
    digest: str
    """A digest of all data and settings from which the task is made."""
    rows: Sequence[Row]
    samples: int
    """How often each row is asked."""

    @property
    def episodes(self) -> int:
        """The number of episodes."""
        return len(self.rows) * self.samples


def data_of(suite: str, folder: Path, samples: int | None) -> tuple[list[Data], list[str]]:
    """Returns the user's data of a suite in `folder`, and a line for each benchmark without a file, which
    says how to provide it. `samples` is how often each row is asked; None: as often as the benchmark says.
    Raises MissingError if there is no file at all, and ConfigError if a file is malformed."""
    benchmarks = SUITES[suite].benchmarks
    if not folder.is_dir():
        raise MissingError("no such folder", where=str(folder), remedy=_how(folder, benchmarks))
    files = {one.name: _file(folder, one.name) for one in benchmarks}
    if not any(files.values()):
        raise MissingError(
            f"has no file of the suite {suite}", where=str(folder), remedy=_how(folder, benchmarks)
        )
    missing = [
        f"left out {one.title}: {_how(folder, [one])}" for one in benchmarks if not files[one.name]
    ]
    present = [(one, files[one.name]) for one in benchmarks]
    return [_data(one, path, samples) for one, path in present if path is not None], missing


def _file(folder: Path, name: str) -> Path | None:
    """Returns the file of a benchmark; None if there is none."""
    paths = [folder / f"{name}{end}" for end in (".toml", *READERS)]
    there = [path for path in paths if path.is_file()]
    if there and "#" in str(folder.absolute()):
        raise ConfigError("has a # in its path", where=str(folder), remedy="rename it")
    if len(there) > 1 and there[0].suffix != ".toml":
        raise ConfigError(
            f"has several files of {name}: {', '.join(path.name for path in there)}",
            where=str(folder),
            remedy="keep one of them",
        )
    return there[0] if there else None


def _how(folder: Path, benchmarks: Sequence[Benchmark]) -> str:
    names = ", ".join(f"{one.name}.jsonl" for one in benchmarks)
    return f'put rows {{"question": …, "answer": …}} into {names} in {folder} (docs/rows.md)'


def _data(benchmark: Benchmark, path: Path, samples: int | None) -> Data:
    options = f"#{_CHECK}" if path.suffix == ".toml" else _FILE_OPTIONS
    name = f"{path.absolute()}{options}"
    world = load(f"rows:{name}")
    settings, folder = rows_settings.of(name, world.id)
    deck = Deck(world.id, split(settings, files_of(settings, folder)), settings.split)
    rows = deck.asked["all"]
    for row in rows:
        _check_answer(row)
    return Data(benchmark, world.id, world.digest, rows, samples or benchmark.samples)


def _check_answer(row: Row) -> None:
    """Raises ConfigError if the answer of a row is a whole solution, which no final answer equals, or if the
    checker cannot read it."""
    text = str(row.field("answer"))
    if len(text) > _LONGEST_ANSWER or any(mark in text for mark in _SOLUTION):
        raise ConfigError(
            f"the answer {text!r:.60} is a solution, not only the final answer",
            where=row.where,
            remedy="keep what follows #### or is in the box",
        )
    try:
        right = agent0(f"\\boxed{{{text}}}", text, row.question).reward == 1
    except ConfigError as error:
        raise ConfigError(str(error), where=row.where) from error
    if not right:
        raise ConfigError(
            f"the checker does not accept the answer {text!r:.60} itself, so no reply can be right",
            where=row.where,
            remedy="correct the answer, or remove the row",
        )
