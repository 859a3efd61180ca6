"""Classes of equal answers and p̂, on answers whose classes are counted by hand."""

from __future__ import annotations

import time

import pytest

from air.rewards.proposals.agreement import agreement, canonical, p_hat, same


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
