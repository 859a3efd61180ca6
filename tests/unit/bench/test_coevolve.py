"""The problems of `make coevolve`, its demonstrations, and its verdict on results made by hand."""

from __future__ import annotations

import importlib
import random
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from air.rewards.proposals.novelty import clusters
from air.rewards.proposals.reading import read
from air.train.config import overrides
from air.train.config.coevolve_config import CoevolveConfig


@pytest.fixture
def results(problems: ModuleType) -> ModuleType:
    return importlib.import_module("bench.coevolve.results")


@pytest.fixture
def problems() -> ModuleType:
    return importlib.import_module("bench.coevolve.problems")


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is 7 + 15?", "22"),
        ("What is 310 - 45?", "265"),
        ("Largest of 12, 5, 73?", "73"),
        ("Reverse 4 7 2.", "2 7 4"),
        ("What is 3 - 9?", None),
        ("What is 1000 + 1?", None),
        ("What is 07 + 1?", None),
        ("What is 7 + 1", None),
        ("Largest of 5?", None),
        ("Largest of 1, 2, 3, 4, 5, 6, 7?", None),
        ("Reverse 12 3.", None),
    ],
)
def test_the_right_answers_of_questions(
    problems: ModuleType, question: str, answer: str | None
) -> None:
    found = problems.parsed(question)
    assert (None if found is None else found.answer) == answer


def test_every_problem_can_be_parsed(problems: ModuleType) -> None:
    rng = random.Random(0)
    for kind in problems.KINDS:
        for size in problems.SIZES:
            for _ in range(50):
                one = problems.problem(rng, kind, size)
                assert problems.parsed(one.question) == one


def test_a_hundred_held_out_questions_of_each_kind(problems: ModuleType) -> None:
    held_out = problems.held_out()
    kinds = Counter(question.split()[-2] in "+-" or question.split()[0] for question in held_out)
    assert kinds == {True: 200, "Largest": 100, "Reverse": 100}
    lists = Counter(len(q.split()) - 1 for q in held_out if q.startswith("Reverse"))
    assert lists == {3: 25, 4: 25, 5: 25, 6: 25}
    assert {question: problems.parsed(question).answer for question in held_out} == held_out


def test_demonstrations_have_all_sizes_and_no_held_out_question(problems: ModuleType) -> None:
    held_out = problems.held_out()
    talks = problems.demonstrations(problems.proposing, "seed", 4000, held_out.keys())
    shown = [read(talk[-1]["content"], 80) for talk in talks]
    assert not held_out.keys() & {one.text for one in shown}
    assert all(problems.parsed(one.text).answer == one.answer for one in shown)
    lists = Counter(len(one.text.split()) - 2 for one in shown if one.text.startswith("Reverse"))
    assert set(lists) == {1, 2, 3, 4, 5}
    assert lists[1] / lists.total() > 0.9
    assert talks == problems.demonstrations(problems.proposing, "seed", 4000, held_out.keys())


def test_different_problems_of_a_kind_are_not_all_similar(problems: ModuleType) -> None:
    """Otherwise, the penalty for repetitions would punish a kind of problems, and not copies."""
    rng = random.Random(0)
    for kind in problems.KINDS:
        drawn = {problems.problem(rng, kind, 3).question for _ in range(48)}
        assert max(Counter(clusters(sorted(drawn))).values()) < len(drawn) / 4, kind


def config() -> CoevolveConfig:
    side = {"model": "m", "run_files": ["configs/agent0/small_executor.toml"]}
    held_out = {"data": "x.jsonl"}
    random_arm = {"least": 0, "most": 1}
    payment = {"reward": "published"}  # as in configs/agent0/small.toml
    return CoevolveConfig.model_validate(
        {
            **{"proposer": side, "executor": side, "held_out": held_out},
            **{"generation": random_arm, "payment": payment},
        }
    )


def test_the_measures_of_a_round_by_hand(results: ModuleType) -> None:
    lines = [
        {"question": question, "proposed": "0", "answers": list(answers), "tool_calls": 0.0}
        for question, answers in [
            ("What is 3 + 4?", "7788"),  # p = .5
            ("What is 3 + 4?", "7788"),
            ("Reverse 5 9.", "9999"),  # p = 1: not in range, although this arm keeps it
            ("Why 8?", "8888"),
        ]
    ]
    lines.append({"malformed": "the question is empty", "text": ""})
    rows = [
        {"question": "What is 3 + 4?", "answer": "7.0"},
        {"question": "Reverse 5 9.", "answer": "59"},
        {"question": "Why 8?", "answer": "8"},
    ]
    assert results.measures(lines, rows, config()) == pytest.approx(
        {
            "in_range": 2 / 5,
            "kept": 3,
            "right_labels": 1 / 3,
            "grammatical": 3 / 5,
            "different": 3 / 5,
            "novelty": 3 / 4,
            "largest_cluster": 2 / 4,
        }
    )
    assert results.measures(lines[-1:], [], config())["right_labels"] is None


def arm(name: str, seed: int, *measured: float, finished: bool = True) -> dict[str, Any]:
    """An arm in which both shares and the accuracy are `measured`, by round."""
    names = ("held_out", "in_range", "different", "novelty")
    rounds = [{"round": n, **dict.fromkeys(names, value)} for n, value in enumerate(measured)]
    return {"arm": name, "seed": seed, "finished": finished, "rounds": rounds}


def shown(results: ModuleType, *arms: dict[str, Any]) -> list[bool | None]:
    return [claim["shown"] for claim in results.verdict(arms)]


def test_claims_need_more_than_two_standard_errors(results: ModuleType) -> None:
    real = [arm("coevolve", 0, 0.1, 0.9, 0.5), arm("coevolve", 1, 0.1, 0.9, 0.7)]
    free = [arm("free", 0, 0.1, 0.5), arm("free", 1, 0.1, 0.7)]
    copies = [arm("copies", seed, 0.5, 0.2) for seed in (0, 1)]
    pair = [*free, *copies]
    control = [arm("random", 0, 0.1, 0.2), arm("random", 1, 0.1, 0.3)]
    # Gains of .4 and .6: .5 ± .1. Differences of .3 and .4: .35 ± .05.
    assert shown(results, *real, *pair, *control) == [True, True, True]
    # Differences of 0 and .4: .2 ± .2.
    control[0] = arm("random", 0, 0.1, 0.5)
    assert shown(results, *real, *pair, *control) == [True, False, True]
    pair[3] = arm("copies", 1, 0.5, 0.36)  # more than half of 0.7
    assert shown(results, *real, *pair, *control) == [True, False, False]
    pair[3] = arm("copies", 1, 0.5, 0.1, 0.9)  # a collapse counts although the last round left it
    assert shown(results, *real, *pair, *control) == [True, False, True]
    # Gains of 0 and .6: .3 ± .3.
    real[0] = arm("coevolve", 0, 0.5, 0.9, 0.5)
    assert shown(results, *real, *pair, *control)[0] is False


def test_a_claim_without_its_arms_or_with_one_seed_is_not_tested(results: ModuleType) -> None:
    real = [arm("coevolve", 0, 0.1, 0.5), arm("coevolve", 1, 0.1, 0.7)]
    assert shown(results, *real) == [True, None, None]
    begun = [arm("random", seed, 0.1, 0.2, finished=False) for seed in (0, 1)]
    assert shown(results, *real, *begun) == [True, None, None]
    other = [arm(name, 0, 0.1, 0.2) for name in ("random", "free", "copies")]
    assert shown(results, real[0], *other) == [None, None, None]


def test_a_claim_that_is_not_shown_has_an_exit_code(results: ModuleType, tmp_path: Path) -> None:
    full = dict.fromkeys(results.COLUMNS, 0.5)
    for last, code in ((0.9, 0), (0.5, 1)):
        arms = [arm("coevolve", seed, 0.5, last) for seed in (0, 1)]
        for one in arms:
            one["rounds"] = [full | each for each in one["rounds"]]
        results.write(tmp_path / "results.json", arms)
        assert results.exit_code(tmp_path / "results.json") == code


def test_the_settings_of_the_arms(problems: ModuleType, tmp_path: Path) -> None:
    coevolve = importlib.import_module("bench.coevolve.__main__")
    bench = coevolve.Bench(tmp_path, tmp_path, ["--rounds", "2"])
    plans = {arm: bench.plan(arm, 3).config for arm in coevolve.ARMS}
    assert len({one.name for one in plans.values()}) == 4
    models = {(one.proposer.model, one.executor.model) for one in plans.values()}
    assert models == {(f"{tmp_path}/seed3/proposer", f"{tmp_path}/seed3/executor")}
    assert {one.generation.rows for one in plans.values()} == {48}
    ranges = {arm: (one.generation.least, one.generation.most) for arm, one in plans.items()}
    usual = (0.3, 0.8)
    assert ranges == {"coevolve": usual, "random": (0, 1), "free": usual, "copies": usual}
    assert [arm for arm, one in plans.items() if one.proposer.frozen] == ["random"]
    assert [arm for arm, one in plans.items() if not one.payment.repetition] == ["copies"]
    kl = {arm: one.proposer.settings["embedded"]["kl"] for arm, one in plans.items()}
    held = [arm for arm, one in kl.items() if one["coefficient"] > 0]
    assert held == ["coevolve", "random"]
    assert {one["estimator"] for one in kl.values()} == {"full"}  # the flags keep the other keys
    references = {one.proposer.settings["embedded"]["reference"]["model"] for one in plans.values()}
    assert references == {f"{tmp_path}/seed3/proposer"}
    last = overrides.parse([*bench.flags("coevolve", 3), "--rounds", "0"], CoevolveConfig)
    assert overrides.build(CoevolveConfig, last).rounds == 0  # how the gate calls it


def test_the_executor_calls_the_calculator_for_half_of_the_problems_that_are_not_easy(
    problems: ModuleType,
) -> None:
    calls: dict[bool, list[bool]] = {True: [], False: []}
    for talk in problems.demonstrations(problems.answering, "seed", 1000, set()):
        question = talk[1]["content"].split("\n\n")[-1]
        one = problems.parsed(question)
        assert talk[-1]["content"] == f"\\boxed{{{one.answer}}}"
        if question.startswith("What is"):
            calls[len(question) == len("What is 1 + 2?")].append(len(talk) > 3)
        else:
            assert len(talk) == 3
    assert not any(calls[True])
    assert 0.4 < sum(calls[False]) / len(calls[False]) < 0.6


def test_a_policy_of_other_demonstrations_is_not_used(problems: ModuleType, tmp_path: Path) -> None:
    coevolve = importlib.import_module("bench.coevolve.__main__")
    (tmp_path / "proposer").mkdir()
    (tmp_path / "proposer" / "config.json").write_text("{}")
    with pytest.raises(SystemExit, match="give another --policy"):
        coevolve.warm_start(tmp_path, "proposer", 0)
    assert [each.name for each in tmp_path.iterdir()] == ["proposer"]
