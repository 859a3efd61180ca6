"""Classes of equal answers and p̂, on answers whose classes are counted by hand."""

from __future__ import annotations

import time
from itertools import permutations

import pytest

from air.rewards.proposals.agreement import (
    MOST_UNDECIDED,
    MathEqual,
    _measured,
    _values,
    agreement,
    canonical,
    equal_answers,
    p_hat,
    same,
)


def test_p_hat_is_the_share_of_the_largest_class() -> None:
    found = agreement(["4", "4.0", "$4$", "5", "five", None, "4", "5", "6", ""])
    assert [list(each) for each in found.classes] == [
        ["4", "4.0", "$4$", "4"],
        ["5", "5"],
        ["five"],
        ["6"],
    ]
    assert (found.k, found.valid, found.majority) == (10, 8, "4")
    assert p_hat(found, "4", "published") == pytest.approx(0.4)
    assert p_hat(found, "8/2", "as_coded") == pytest.approx(0.4)


def test_as_coded_is_0_if_the_proposer_disagrees_or_hardly_any_answers_agree() -> None:
    found = agreement(["4"] * 5 + ["5"] * 5)
    assert p_hat(found, "5", "as_coded") == 0.0  # the first answered class of two equal ones counts
    assert p_hat(found, "5", "published") == 0.5
    assert p_hat(found, None, "as_coded") == 0.0
    every = agreement([str(n) for n in range(10)])
    assert (p_hat(every, "0", "as_coded"), p_hat(every, "0", "published")) == (0.0, 0.1)
    two = agreement(["4", "4", *(str(n) for n in range(10, 18))])
    assert p_hat(two, "4", "as_coded") == 0.2
    none = agreement([None, ""])
    assert (p_hat(none, "1", "as_coded"), p_hat(none, "1", "published")) == (0.0, 0.0)
    assert none.majority is None


def test_p_hat_needs_enough_readable_answers() -> None:
    found = agreement(["4", "4", "5", *[None] * 5])  # p = 2/8, and 3/8 are readable
    for definition in ("as_coded", "published"):
        assert p_hat(found, "4", definition) == 0.25
        assert p_hat(found, "4", definition, least_valid=0.375) == 0.25
        assert p_hat(found, "4", definition, least_valid=0.376) == 0.0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1,000", "1000.0"),
        ("0.5", r"\frac{1}{2}"),
        ("-3/6", r"-\dfrac{1}{2}"),
        ("7.", "7"),
        (r"\text{Paris}", "paris"),
        ("−3", "-3"),
        ("\\(12\\)", "$12$"),
        ("３", "3"),
    ],
)
def test_obviously_equal_answers_share_a_form(one: str, other: str) -> None:
    assert canonical(one) == canonical(other) != ""


@pytest.mark.parametrize(
    ("one", "other"), [("1,00", "100"), ("1/0", "0"), ("12", "1 2 3"), ("x", "y"), ("1e3", "1000")]
)
def test_other_answers_do_not(one: str, other: str) -> None:
    assert canonical(one) != canonical(other)


def test_equality_is_tried_in_both_orders_and_joins_classes() -> None:
    def one_way(a: str, b: str) -> bool:
        return (a, b) == ("2+2", "4")

    assert [len(c) for c in agreement(["4", "2+2", "4", "5"], one_way).classes] == [3, 1]
    assert [len(c) for c in agreement(["2+2", "4", "4", "5"], one_way).classes] == [3, 1]
    assert same("4", "2+2", one_way)
    assert not same("4", "")


def test_the_majority_is_the_most_frequent_form_of_its_class() -> None:
    found = agreement(["2+2", "5", "4", "4"], lambda one, other: (one, other) == ("2+2", "4"))
    assert [list(each) for each in found.classes] == [["2+2", "4", "4"], ["5"]]
    assert found.majority == "4"
    assert p_hat(found, "4", "as_coded") == p_hat(found, "2+2", "as_coded") == 0.75


def test_mathematically_equal_answers_are_one_class() -> None:
    answers = ["2x", "x*2", r"x\cdot 2", "0.5", r"\frac{1}{2}", "3x"]
    found = agreement(answers, equal_answers("math", "What is x + x?"))
    assert [len(each) for each in found.classes] == [3, 2, 1]
    assert p_hat(found, "x + x", "as_coded") == 0.5
    assert p_hat(found, "x", "as_coded") == 0.0
    by_forms = agreement(answers, equal_answers("forms", "What is x + x?"))
    assert [len(each) for each in by_forms.classes] == [2, 1, 1, 1, 1]
    assert agreement(["$ $", r"5\boxed{}", "x"], equal_answers("math", "")).share == pytest.approx(
        1 / 3
    )
    # A word of the question is a unit.
    trees = agreement(["5 trees", "5"], equal_answers("math", "How many trees?"))
    assert trees.share == 1.0


def test_an_equality_that_is_not_transitive_gives_the_same_classes_in_any_order() -> None:
    equal = equal_answers("math", "")
    assert same("50", r"50\%", equal)
    assert same(r"50\%", "0.5", equal)
    assert not same("50", "0.5", equal)
    orders = list(permutations(["50", r"50\%", "0.5"]))
    found = [agreement(order, equal) for order in orders]
    assert {frozenset(map(frozenset, one.classes)) for one in found} == {
        frozenset({frozenset({"0.5", r"50\%"}), frozenset({"50"})})
    }
    often = [agreement([*order, "50"], equal) for order in orders]
    assert {(one.majority, one.share) for one in often} == {("50", 0.75)}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("10^{10000}", "100^{5000}"),
        ("1e10000", "10^{10000}"),
        ("(3!)!", "720"),
        (r"\int_0^1 x^x dx", r"\int_0^1 t^t dt"),
        (", ".join(f"{n}/2" for n in range(33)), ", ".join(f"{2 * n}/4" for n in range(33))),
    ],
)
def test_p_is_unknown_if_formulas_are_not_compared(one: str, other: str) -> None:
    """Otherwise one answer in two spellings would count as two answers, which is paid best."""
    found = agreement([one] * 4 + [other] * 4, equal_answers("math", "How much is it?"))
    assert not found.decided
    assert p_hat(found, one, "published") == 0.0
    prose = agreement([one] * 4 + ["It is large"] * 4, equal_answers("math", "How much is it?"))
    assert p_hat(prose, one, "published") == 0.5


def test_the_spellings_of_a_form_are_compared_alike_in_any_order() -> None:
    """Both spellings of 1/2 have one form, but only one of them is equal to `half`."""

    def equal(one: str, other: str) -> bool:
        return {one, other} == {"0.5", "half"}

    for answers in permutations(["0.5", "1/2", "half"]):
        assert len(agreement(answers, equal).classes) == 1


def test_few_comparisons_without_a_result_end_all_comparisons_of_a_question() -> None:
    calls = 0

    def undecided(one: str, other: str) -> None:
        nonlocal calls
        calls += 1

    found = agreement([str(n) for n in range(60)], undecided)
    assert len(found.classes) == 60
    assert calls == MOST_UNDECIDED
    # Such a question is not uncertain: its equal answers may be in different classes.
    assert p_hat(found, "1", "published") == p_hat(found, "1", "as_coded") == 0.0
    few = agreement([str(n) for n in range(3)], lambda one, other: False)
    assert p_hat(few, "1", "published") == pytest.approx(1 / 3)


def test_p_is_unknown_if_a_comparison_without_a_result_could_change_the_largest_class() -> None:
    """Otherwise, two spellings of one answer that cannot be compared look like an uncertain question."""

    def equal(one: str, other: str) -> bool | None:
        return None if {one, other} == {"a", "b"} else False

    def p(answers: str) -> float:
        return p_hat(agreement(list(answers), equal), "a", "published")

    assert p("aaaaabbbbb") == 0.0
    assert p("aaaaaabccc") == 0.0  # 6 or 7 of 10
    assert p("cccccaaabb") == 0.0  # c, or a and b, are the largest class
    assert p("cccccaabde") == 0.5  # a and b together are smaller
    assert p("ccccaaddbe") == 0.4
    decided = agreement(list("ab"), lambda one, other: True if one == "b" else None)
    assert (decided.decided, decided.share) == (True, 1.0)


def test_answers_without_a_known_p_earn_nothing_for_calls_either() -> None:
    unknown = agreement(["a", "b"], lambda one, other: None)
    assert not unknown.suffices(0.0)


def test_the_rest_is_not_compared_if_it_cannot_be_the_largest_class() -> None:
    pairs = []

    def equal(one: str, other: str) -> bool:
        pairs.append(one + other)
        return False

    found = agreement(list("aaaabbbcd"), equal)
    # b, c and d together are more than 4; c and d are not.
    assert pairs == ["ab", "ba", "ac", "ca", "ad", "da", "bc", "cb", "bd", "db"]
    assert [len(each) for each in found.classes] == [4, 3, 1, 1]


def test_slow_comparisons_of_one_question_end_after_a_limit() -> None:
    """Each of them has a result, but 64 such answers would take long."""
    answers = ["x + 1", "x + 2", "x + 3", "x + 4"]
    before = _values.cache_info().misses
    for _ in range(2):  # a result from the cache counts with the time that it took
        found = agreement(answers, MathEqual("What is limited?", most_seconds=0.0001))
        assert p_hat(found, None, "published") == 0.0
        assert _values.cache_info().misses == before + 2
    whole = agreement(answers, MathEqual("What is limited?"))
    assert p_hat(whole, None, "published") == 0.25


@pytest.mark.slow
def test_only_formulas_with_the_same_values_are_compared_with_each_other() -> None:
    """So the cost grows with the number of formulas, not with that of the pairs."""
    answers = [f"x^2 + {n}x + 1" for n in range(12)] + ["1 + 3x + x^2", "x (x + 5) + 1"]
    before = _measured.cache_info().misses, _values.cache_info().misses
    found = agreement(answers, equal_answers("math", "What is linear?"))
    assert [len(each) for each in found.classes] == [2, 2, *[1] * 10]
    assert found.decided
    compared, evaluated = _measured.cache_info().misses, _values.cache_info().misses
    assert (compared - before[0], evaluated - before[1]) == (2, 14)


def test_only_representatives_are_compared() -> None:
    calls = 0

    def never(a: str, b: str) -> bool:
        nonlocal calls
        calls += 1
        return False

    found = agreement([str(n % 100) for n in range(20_000)], never)
    assert len(found.classes) == 100
    assert calls == 2 * 64 * 63 // 2


def test_long_and_hostile_answers_take_no_time() -> None:
    began = time.process_time()
    assert canonical("9" * 10_000) == ""
    assert canonical("9" * 900) == "9" * 900
    assert canonical("$" * 999) == "$"
    assert canonical("\\text{" * 150 + "}" * 90)
    assert time.process_time() - began < 1.0


def test_no_answers_are_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="there is no answer"):
        agreement([])
