from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from air.actions import Action
from air.errors import ConfigError, MissingError
from air.tasks.spec import RewardScale
from air.train.evaluation.episode_scores import EpisodeScores
from air.train.evaluation.suite_evaluation import _cells, accuracy, suite_settings
from air.train.evaluation.suites import SUITES, Data, data_of
from air.worlds import sources
from air.worlds.rows.splits import place_of
from air.worlds.sources import VALIDATION_SEED

SCALE = RewardScale.model_validate({"baseline": 0.0, "target": 1.0, "direction": "higher"})


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows(count: int) -> list[dict[str, Any]]:
    return [{"question": f"What is {n} + 1?", "answer": n + 1} for n in range(count)]


def played(data: Data, successes: Sequence[Sequence[float]]) -> list[EpisodeScores]:
    """Episodes of which the n-th sample of the row at each place has the n-th success of the place."""
    samples = [list(one) for one in successes]
    seeds = [VALIDATION_SEED + number for number in range(data.episodes)]
    return [
        EpisodeScores(
            data.task, SCALE, (), None, 0.0, 1, 0, samples[place_of(seed, len(samples))].pop(), seed
        )
        for seed in seeds
    ]


def test_the_published_rows_are_those_of_the_specification() -> None:
    suite = SUITES["math"]
    published = {one.name: [*one.published.values()] for one in suite.benchmarks if one.published}
    assert published == {"math500": [78.0, 82.4], "gsm8k": [89.1, 94.5], "amc": [52.0, 62.4]}
    above = {one.name: one.above for one in suite.benchmarks if one.above}
    assert above == {"math500": 78, "gsm8k": 89, "amc": 52}
    assert "aiming-lab/Agent0 at 3cf8bfe" in suite.source


def test_every_file_there_is_becomes_a_task_and_every_other_is_named(tmp_path: Path) -> None:
    write(tmp_path / "gsm8k.jsonl", *rows(3))
    (tmp_path / "amc.json").write_text(json.dumps(rows(2)))
    data, missing = data_of("math", tmp_path, None)
    assert [(one.benchmark.name, len(one.rows), one.samples) for one in data] == [
        ("gsm8k", 3, 1),
        ("amc", 2, 32),
    ]
    assert [line.partition(":")[0] for line in missing] == [
        "left out MATH-500",
        "left out AIME 2024",
        "left out AIME 2025",
    ]
    assert 'put rows {"question": …, "answer": …} into math500.jsonl in ' in missing[0]
    assert [one.samples for one in data_of("math", tmp_path, 4)[0]] == [4, 4]
    settings = suite_settings(
        data, runtime="docker", temperature=None, max_tokens=None, context=None
    )
    settings.check_tasks()
    assert (settings.temperature, settings.max_tokens, settings.context) == (1.0, 4096, 8192)
    assert {env.agent.harness.max_observation_tokens for env in settings.envs} == {8192}  # type: ignore[union-attr]


def test_a_toml_gives_a_benchmark_tools(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", *rows(2))
    (tmp_path / "amc.toml").write_text(
        'data = "rows.jsonl"\nchecker = "math_string_equal"\ntools = ["calculator"]\nturns = 4\n'
    )
    write(tmp_path / "amc.jsonl", *rows(9))
    (data,), _ = data_of("math", tmp_path, None)
    assert data.task == f"rows:{tmp_path}/amc.toml#checker=agent0&split=all"
    assert len(data.rows) == 2


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("6 * 7 = 42\n#### 42", r"gsm8k.jsonl:2: the answer .* is a solution, not only"),
        (r"So it is \boxed{42}.", r"gsm8k.jsonl:2: the answer .* is a solution, not only"),
        ("", r"gsm8k.jsonl:2: the checker does not accept the answer '' itself"),
        ("First we add. " * 30, r"gsm8k.jsonl:2: the answer .* is a solution, not only"),
        ("}{", r"gsm8k.jsonl:2: the checker does not accept the answer '}{' itself"),
    ],
)
def test_an_answer_that_no_reply_equals_is_refused(
    tmp_path: Path, answer: str, message: str
) -> None:
    write(tmp_path / "gsm8k.jsonl", *rows(1), {"question": "What?", "answer": answer})
    with pytest.raises(ConfigError, match=message) as error:
        data_of("math", tmp_path, None)
    assert "\n" not in str(error.value)


MMLU_PRO = {
    "question_id": 70,
    "question": "Which is the smallest?",
    "options": [str(n) for n in range(5, 15)],
    "answer": "A",
    "answer_index": 0,
    "category": "math",
}
SUPERGPQA = {
    "uuid": "1f",
    "question": "Which city is the capital of France?",
    "options": ["Rome", "Paris", "Oslo", "Bern"],
    "answer": "Paris",
    "answer_letter": "B",
    "discipline": "Geography",
}
"""Rows with the fields of the two data sets, and content of our own."""


async def test_multiple_choice_benchmarks_take_their_files_as_they_are(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist(
        [MMLU_PRO, {**MMLU_PRO, "options": ["1", "0"], "answer": "B"}]
    )
    parquet.write_table(table, tmp_path / "mmlu_pro.parquet")
    write(tmp_path / "supergpqa.jsonl", SUPERGPQA)
    data, missing = data_of("general", tmp_path, None)
    assert [(one.benchmark.name, len(one.rows), one.samples) for one in data] == [
        ("mmlu_pro", 2, 1),
        ("supergpqa", 1, 1),
    ]
    assert missing == []
    task = sources.load(data[1].task)
    assert "letter of the right option" in task.instructions
    assert task.make is not None
    for reply, reward in (("B", 1.0), ("(B) Paris", 1.0), ("A", 0.0), ("Rome", 0.0)):
        world = task.make()
        seen = await world.reset(VALIDATION_SEED)
        assert seen.text == f"{SUPERGPQA['question']}\n\nA. Rome\nB. Paris\nC. Oslo\nD. Bern"
        step = await world.step(Action(answer=f"\\boxed{{{reply}}}"))
        assert (step.done, step.reward, world.facts()["success"]) == (True, reward, reward)
    world = sources.load(data[0].task).make()  # type: ignore[misc]
    texts = [(await world.reset(VALIDATION_SEED + n)).text for n in range(2)]
    assert sorted(len(text.splitlines()) for text in texts) == [4, 12]
    assert any(text.endswith("J. 14") for text in texts)


def test_the_published_rows_of_multiple_choice_are_those_of_the_specification() -> None:
    benchmarks = SUITES["general"].benchmarks
    published = {one.name: [*(one.published or {}).values()] for one in benchmarks}
    assert published == {"mmlu_pro": [51.8, 63.4], "supergpqa": [28.3, 33.0]}
    assert {one.name: one.above for one in benchmarks} == {"mmlu_pro": 51, "supergpqa": 28}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": ["Paris"]}, r"supergpqa.jsonl:2: .*options.* 2 to 10 different texts"),
        ({"options": [str(n) for n in range(11)]}, r"supergpqa.jsonl:2: .*2 to 10"),
        ({"answer_letter": "E"}, r"supergpqa.jsonl:2: .*neither the letter nor the text"),
        ({"options": None}, r"supergpqa.jsonl:2: .*options"),
        ({"options": ["x" * 10_000, "y" * 10_000]}, r"supergpqa.jsonl:2: .*more than 20000"),
    ],
)
def test_a_malformed_multiple_choice_row_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write(tmp_path / "supergpqa.jsonl", SUPERGPQA, {**SUPERGPQA, **change})
    with pytest.raises(ConfigError, match=message):
        data_of("general", tmp_path, None)


def test_shown_options_are_part_of_the_digest(tmp_path: Path) -> None:
    write(tmp_path / "data.jsonl", {"question": "What?", "answer": "1", "options": ["1", "2"]})
    plain, options = (
        sources.load(f"rows:{tmp_path}/data.jsonl#checker=math_string_equal&split=all{more}").digest
        for more in ("", "&options=options")
    )
    assert plain != options


def test_data_that_is_missing_or_unclear_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        MissingError, match=r"no such folder — put rows .* into math500.jsonl, gsm8k"
    ):
        data_of("math", tmp_path / "absent", None)
    with pytest.raises(MissingError, match=r"has no file of the suite math — put rows"):
        data_of("math", tmp_path, None)
    write(tmp_path / "amc.jsonl", {"problem": "What?", "answer": 1})
    with pytest.raises(ConfigError, match=r"amc.jsonl:1: .*question"):
        data_of("math", tmp_path, None)
    write(tmp_path / "amc.jsonl", {"question": "What?"})
    with pytest.raises(ConfigError, match=r"amc.jsonl:1: the row has no field `answer`"):
        data_of("math", tmp_path, None)
    (tmp_path / "amc.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"several files of amc: amc.json, amc.jsonl"):
        data_of("math", tmp_path, None)
    hashed = tmp_path / "a#b"
    hashed.mkdir()
    write(hashed / "amc.jsonl", *rows(1))
    with pytest.raises(ConfigError, match="has a # in its path"):
        data_of("math", hashed, None)


def test_accuracy_is_the_mean_over_questions_with_their_standard_error(tmp_path: Path) -> None:
    write(tmp_path / "amc.jsonl", *rows(3))
    (data,), _ = data_of("math", tmp_path, 2)
    episodes = played(data, [(1.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
    mean = accuracy(data, episodes)
    assert mean is not None
    assert mean.mean == pytest.approx(0.5)
    # The shares 1, 1/2 and 0 have the standard deviation 1/2.
    assert mean.stderr == pytest.approx(0.5 / math.sqrt(3))
    assert accuracy(data, []) is None
    more = [*episodes, *played(data, [(0.0, 0.0)] * 3)]
    other = [EpisodeScores("rows:other", SCALE, (), None, 0.0, 1, 0, 1.0, VALIDATION_SEED)]
    late = [EpisodeScores(data.task, SCALE, (), None, 0.0, 1, 0, 1.0, VALIDATION_SEED + 6)]
    assert accuracy(data, [*episodes, *other, *late]) == mean
    assert accuracy(data, more) != mean
    assert _cells(data, episodes)[1].startswith(("above", "not above"))
    assert _cells(data, [*episodes[:-1], *other, *late])[1] == "incomplete"
