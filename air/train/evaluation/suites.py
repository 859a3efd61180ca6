"""The benchmark suites of `air eval --suite`: their benchmarks, published accuracies, and the user's data.

air ships no data of benchmarks. The user provides a folder with one file for each benchmark: rows of
questions and answers (see `docs/rows.md`), or a `.toml` file with the settings of a task of such rows, for
example with tools. Published accuracies are only printed beside the measured ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from air.errors import ConfigError, MissingError
from air.rewards.answers.mathematics import agent0
from air.rewards.answers.texts import choice
from air.worlds.proposals.posed import INSTRUCTIONS
from air.worlds.proposals.whole_reply import FORMAT
from air.worlds.rows import settings as rows_settings
from air.worlds.rows.reading import READERS, Row
from air.worlds.rows.source import files_of, split
from air.worlds.rows.splits import Deck
from air.worlds.sources import load

_CHECK = "checker=agent0&split=all"
"""The settings of a task whose questions have no options: all rows (questions) of the data are asked, and the
checker `agent0` decides which answers are right, by the rules of the project Agent0."""
_CHOICE = "checker=choice&options=options&split=all"
"""The settings of a task of multiple-choice questions: all rows (questions) of the data are asked, a row's
field `options` has its options, and the checker `choice` decides which answers are right."""
_CHOOSE = "Answer the multiple-choice question with the letter of the right option."
_SOLUTION = ("####", "\\boxed")
"""Marks of a whole worked solution. A row whose answer contains one of them is refused, because the answer
must be only the final result."""
_LONGEST_ANSWER = 300
"""The largest number of characters of a final answer; a longer one is taken for a whole solution. All final
answers of the benchmark MATH are shorter."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark and its published accuracies."""

    name: str
    """The name of the user's file with the questions, without suffix, such as `math500` for
    `math500.jsonl`."""
    title: str
    samples: int = 1
    """How often the model answers each question by default. A benchmark with few questions needs more answers
    to each, so that its accuracy is not mostly chance. The number is air's choice, not a published one."""
    published: Mapping[str, float] | None = None
    """Published accuracies in percent, by the name of the model."""
    above: float | None = None
    """An accuracy in percent with which the table compares the model's accuracy: the table says `above`, `not
    above` or, while episodes are missing, `incomplete`. None: the table makes no comparison."""
    has_options: bool = False
    """Whether the questions are multiple choice: a row has a list `options`."""


@dataclass(frozen=True)
class Suite:
    """A set of benchmarks that one command `air eval --suite` plays."""

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
    "general": Suite(
        "Agent0 (arXiv 2511.16043; aiming-lab/Agent0 at 3cf8bfe)",
        (
            Benchmark(
                "mmlu_pro", "MMLU-Pro", 1, _published(51.8, 63.4), has_options=True, above=51.0
            ),
            Benchmark(
                "supergpqa", "SuperGPQA", 1, _published(28.3, 33.0), has_options=True, above=28.0
            ),
        ),
    ),
}
"""The benchmark suites, by the name that `air eval --suite` takes."""


@dataclass(frozen=True)
class Data:
    """The user's data of one benchmark: rows of questions and answers."""

    benchmark: Benchmark
    task: str
    """The id of the task that asks the benchmark's questions."""
    digest: str
    """A hash of the task's data and settings, to detect changes."""
    rows: Sequence[Row]
    samples: int
    """How often the model answers each question."""

    @property
    def episodes(self) -> int:
        """The number of episodes of the benchmark: the number of questions times `samples`."""
        return len(self.rows) * self.samples


def data_of(suite: str, folder: Path, samples: int | None) -> tuple[list[Data], list[str]]:
    """Reads the user's data of the suite `suite` (a key of `SUITES`) from `folder`. Returns the data of each
    benchmark that has a file, and for each other benchmark a line of text that says how to provide the file.
    `samples` is how often the model answers each question; None: the benchmark's default. Raises MissingError
    if the folder does not exist or has no file of the suite, and ConfigError if a file is malformed."""
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
    """Returns the file of the benchmark `name` in `folder`, or None if there is no file. If there are several
    files, returns the `.toml` file. Raises ConfigError if there are several files but no `.toml` file, or if
    there is a file and the path of `folder` contains a `#`, which separates path and settings in the ids of
    tasks."""
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
    options = '"options": […], ' if any(one.has_options for one in benchmarks) else ""
    row = f'{{"question": …, {options}"answer": …}}'
    return f"put rows {row} into {names} in {folder} (docs/rows.md)"


def _data(benchmark: Benchmark, path: Path, samples: int | None) -> Data:
    check, asks = (_CHOICE, _CHOOSE) if benchmark.has_options else (_CHECK, INSTRUCTIONS)
    ask = "" if path.suffix == ".toml" else f"&format={FORMAT}&instructions={asks}"
    name = f"{path.absolute()}#{check}{ask}"
    world = load(f"rows:{name}")
    settings, folder = rows_settings.of(name, world.id)
    deck = Deck(world.id, split(settings, files_of(settings, folder)), settings.split)
    rows = deck.asked["all"]
    for row in rows:
        if benchmark.has_options:
            _check_choice(row)
        else:
            _check_answer(row)
    return Data(benchmark, world.id, world.digest, rows, samples or benchmark.samples)


def _check_choice(row: Row) -> None:
    """Raises ConfigError if the row does not name one of its options as the right one."""
    letter = row.fields.get("answer_letter", "")
    try:
        choice("", row.field("options"), row.field("answer"), letter)
    except ConfigError as error:
        raise ConfigError(str(error), where=row.where) from None


def _check_answer(row: Row) -> None:
    """Raises ConfigError if no reply could be right: the answer in the row is a whole solution instead of a
    final answer, or the checker does not accept it."""
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
