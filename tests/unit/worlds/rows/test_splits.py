"""Splits are stable, seeds walk their split, filters keep what they say, and leakage is found."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pydantic import ValidationError

from air.errors import ConfigError
from air.worlds.rows.leakage import MOST_COMPARED, find, without_leaks, words
from air.worlds.rows.reading import Row
from air.worlds.rows.splits import Deck, Range, SplitRule, keeps
from air.worlds.sources import VALIDATION_SEED


def row(question: str, **fields: Any) -> Row:
    return Row(f"rows.jsonl:{question[:20]}", question, {"question": question, **fields})


def many(count: int) -> list[Row]:
    return [row(f"What is {number} times seven?", level=number % 4) for number in range(count)]


def test_a_rows_split_stays_when_rows_are_added() -> None:
    rule, rows = SplitRule(share=0.25), many(2000)
    before = {one.question: rule.of(one) for one in rows[:1000]}
    after = {one.question: rule.of(one) for one in reversed(rows)}
    assert before.items() <= after.items()
    share = list(after.values()).count("validation") / 2000
    assert 0.2 < share < 0.3
    larger = SplitRule(share=0.5)
    held_out = [one for one in rows if rule.of(one) == "validation"]
    assert {larger.of(one) for one in held_out} == {"validation"}


def test_equal_questions_are_in_the_same_split() -> None:
    for one in many(200):
        again = row(f"  {one.question.upper()} ", answer=3)
        assert SplitRule().of(again) == SplitRule().of(one)


@pytest.mark.parametrize(("share", "split"), [(0.0, "train"), (1.0, "validation")])
def test_the_shares_at_the_ends(share: float, split: str) -> None:
    assert {SplitRule(share=share).of(one) for one in many(200)} == {split}


def test_a_field_may_say_the_split() -> None:
    rule = SplitRule(field="part", train=("train", 1))
    assert [rule.of(row("a", part=value)) for value in ("train", 1, "test")] == [
        "train",
        "train",
        "validation",
    ]
    with pytest.raises(ConfigError, match=r"rows.jsonl:a: `part` is True, which names no split"):
        rule.of(row("a", part=True))
    with pytest.raises(ConfigError, match="has no field `part` — it has `question`"):
        rule.of(row("a"))
    with pytest.raises(ValidationError, match="both train and validation have 'a'"):
        SplitRule(field="part", train=("a",), validation=("a",))


@pytest.mark.parametrize(
    ("condition", "levels"),
    [
        (2, {2}),
        ("2", {2}),  # as a task id writes it
        ((0, "3"), {0, 3}),
        (Range(least=1, most=2), {1, 2}),
        (Range(least=3), {3}),
        (True, set()),
    ],
)
def test_filters_keep_what_they_say(condition: Any, levels: set[int]) -> None:
    kept = [one for one in many(8) if keeps(one, {"level": condition})]
    assert {one.fields["level"] for one in kept} == levels


def test_a_filter_needs_its_field() -> None:
    with pytest.raises(ConfigError, match="has no field `grade`"):
        keeps(row("a"), {"grade": 1})
    with pytest.raises(ConfigError, match="`level` is 'a', no number"):
        keeps(row("a", level="a"), {"level": Range(least=1)})


def deck(chosen: Any = "seed", train: int = 40, validation: int = 10) -> Deck:
    rows = many(train + validation)
    return Deck("rows:x", {"train": rows[:train], "validation": rows[train:]}, chosen)


def test_each_kind_of_seed_walks_its_split() -> None:
    cards = deck()
    training = [cards.row(seed).question for seed in range(40)]
    held_out = [cards.row(VALIDATION_SEED + number).question for number in range(10)]
    assert len(set(training)) == 40
    assert len(set(held_out)) == 10
    assert not set(training) & set(held_out)
    # The next turn asks all of them again, in another order.
    again = [cards.row(seed).question for seed in range(40, 80)]
    assert set(again) == set(training)
    assert again != training
    assert training != [one.question for one in cards.rows["train"]]


@pytest.mark.parametrize(("chosen", "count"), [("train", 40), ("validation", 10), ("all", 50)])
def test_a_chosen_split_is_walked_by_every_seed(chosen: str, count: int) -> None:
    cards = deck(chosen)
    for first in (0, VALIDATION_SEED):
        assert len({cards.row(first + number).question for number in range(count)}) == count


@pytest.mark.parametrize(
    ("chosen", "missing"), [("seed", "validation"), ("validation", "validation")]
)
def test_a_split_without_rows_is_refused(chosen: str, missing: str) -> None:
    with pytest.raises(ConfigError, match=f"rows:x: no row is left for {missing}"):
        deck(chosen, validation=0)


STORY = "Anna buys {} red apples at the market and gives half of them to her brother Tom on the way home"


@pytest.mark.parametrize(
    ("held_out", "training", "equal", "near"),
    [
        ("What is 2 + 2?", "what is 2+2", 1, 0),
        ("“Who” wrote Faust?", '"Who" wrote FAUST', 1, 0),
        ("What is 2 + 2?", "What is 2 - 2?", 0, 0),
        ("What is 2.5?", "What is 25?", 0, 0),
        (STORY.format("twelve"), STORY.format("twelve") + " today", 0, 1),
        (STORY.format("12"), "Tom walks home and gives Anna half of the red apples", 0, 0),
    ],
)
def test_leaks_are_told_from_others(held_out: str, training: str, equal: int, near: int) -> None:
    leakage = find([*many(50), row(training)], [row(held_out)])
    assert (len(leakage.equal), len(leakage.near)) == (equal, near)
    for pair in (*leakage.equal, *leakage.near):
        assert (pair.held_out.question, pair.training.question) == (held_out, training)


def test_the_similarity_is_jaccards() -> None:
    base = "a b c d e f g h i j k l"  # 10 runs of three words
    (pair,) = find([row(base)], [row(base + " m")]).near
    assert pair.similarity == pytest.approx(10 / 11)


def test_nothing_leaks_from_or_to_nothing() -> None:
    assert find([], many(3)) == find(many(3), []) == find([], [])


def test_all_copies_of_a_leak_are_left_out() -> None:
    near = [row(f"{STORY.format('twelve')} {number}") for number in range(MOST_COMPARED + 9)]
    equal = [row("What is 7 + 7?"), row("what is 7+7"), row("What is 7+7 ?")]
    others = many(50)
    held_out = [row(STORY.format("twelve")), row("What is 7 + 7?"), row("Who wrote Faust?")]
    kept = without_leaks([*near, *equal, *others], held_out)
    assert kept == others
    assert find(kept, held_out).equal == find(kept, held_out).near == []


def test_every_planted_near_duplicate_is_found() -> None:
    numbers, names = random.Random(0), [f"word{n}" for n in range(500)]
    base = [" ".join(numbers.choices(names, k=40)) for _ in range(1000)]
    training = [row(text) for text in base]
    held_out = [row(text + " indeed") for text in base[::10]]
    leakage = find(training, held_out)
    assert len(leakage.near) == 100
    assert leakage.crowded == 0


def test_rows_that_are_all_alike_take_no_quadratic_time() -> None:
    alike = [row(f"{STORY.format('twelve')} {number}") for number in range(2000)]
    held_out = [row(f"{STORY.format('twelve')} x{number}") for number in range(200)]
    leakage = find(alike, held_out)
    assert leakage.compared == 200 * MOST_COMPARED
    assert leakage.crowded == len(leakage.near) == 200


def test_words_keep_what_arithmetic_means() -> None:
    assert words("What's 1,200 - 3.5%?") == ("what", "s", "1,200", "-", "3.5", "%")
