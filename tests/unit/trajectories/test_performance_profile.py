"""Performance profiles and AUP on numbers worked by hand."""

from __future__ import annotations

import pytest

from air.trajectories.performance_profile import (
    BASELINE,
    TaskScores,
    area,
    feasible,
    profiles,
    ratios,
    share,
    tau_max,
)


@pytest.mark.parametrize(
    ("score", "baseline", "direction", "is_feasible"),
    [
        (0.8, 0.5, "higher", True),
        (0.5, 0.5, "higher", True),  # as good as the baseline
        (0.4, 0.5, "higher", False),
        (None, 0.5, "higher", False),
        (2.0, 4.0, "lower", True),
        (5.0, 4.0, "lower", False),
        (-0.1, -0.5, "higher", False),  # better than the baseline, yet negative
        (0.0, -0.5, "higher", True),
        (-1.0, 4.0, "lower", False),
    ],
)
def test_what_is_feasible(
    score: float | None, baseline: float, direction: str, is_feasible: bool
) -> None:
    assert feasible(score, baseline, direction) is is_feasible  # type: ignore[arg-type]


def test_ratios_where_higher_is_better() -> None:
    """Best 0.8: the baseline has 0.8/0.4 = 2, b 0.8/0.5 = 1.6; c and d are 1.05 times the worst, 2.1."""
    task = TaskScores("higher", 0.4, {"a": 0.8, "b": 0.5, "c": 0.3})
    found = ratios(task, ["a", "b", "c", "d"])
    assert found is not None
    assert found.by_method == pytest.approx({BASELINE: 2.0, "a": 1.0, "b": 1.6, "c": 2.1, "d": 2.1})
    assert found.infeasible == {"c", "d"}
    assert found.worst == pytest.approx(2.0)


def test_ratios_where_lower_is_better() -> None:
    """Best 2: the baseline has 4/2 = 2, b 3/2; c is worse than the baseline."""
    task = TaskScores("lower", 4.0, {"a": 2.0, "b": 3.0, "c": 4.5, "d": None})
    found = ratios(task, ["a", "b", "c", "d"])
    assert found is not None
    assert found.by_method == pytest.approx({BASELINE: 2.0, "a": 1.0, "b": 1.5, "c": 2.1, "d": 2.1})


def test_where_only_the_baseline_is_feasible_it_is_the_best() -> None:
    found = ratios(TaskScores("higher", 0.5, {"a": 0.2}), ["a"])
    assert found is not None
    assert found.by_method == pytest.approx({BASELINE: 1.0, "a": 1.05})


def test_a_negative_baseline_is_infeasible_itself() -> None:
    """As blotto's: a reached 0.2 and b 0.1, ratio 2; the baseline and c, still negative, have 2.1."""
    task = TaskScores("higher", -0.25, {"a": 0.2, "b": 0.1, "c": -0.1})
    found = ratios(task, ["a", "b", "c"])
    assert found is not None
    assert found.by_method == pytest.approx({BASELINE: 2.1, "a": 1.0, "b": 2.0, "c": 2.1})
    assert found.infeasible == {BASELINE, "c"}


def test_where_all_are_negative_there_are_no_ratios() -> None:
    assert ratios(TaskScores("higher", -0.5, {"a": -0.1}), ["a"]) is None


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        # best / 0 is no ratio; nor is score / 0
        (TaskScores("higher", 0.0, {"a": 0.5, "b": 0.0}), {BASELINE: 1.05, "a": 1.0, "b": 1.05}),
        (TaskScores("lower", 4.0, {"a": 0.0, "b": 2.0}), {BASELINE: 1.05, "a": 1.0, "b": 1.05}),
        (TaskScores("higher", 0.0, {"a": 0.0, "b": 0.0}), {BASELINE: 1.0, "a": 1.0, "b": 1.0}),
    ],
)
def test_zeros(task: TaskScores, expected: dict[str, float]) -> None:
    found = ratios(task, ["a", "b"])
    assert found is not None
    assert found.by_method == pytest.approx(expected)


def test_the_share_counts_what_lies_at_the_edge() -> None:
    """log10 of 1, 10, 100."""
    assert [share([1, 10, 100, 100], tau) for tau in (0.0, 0.9, 1.0, 1.9, 2.0)] == [
        0.25,
        0.25,
        0.5,
        0.5,
        1.0,
    ]


@pytest.mark.parametrize(
    ("worst", "end"),
    [
        ([1.0], 0.4),  # ⌈1.05⌉ = 2, log10 2 = 0.301
        ([1.0, 2.0], 0.5),  # ⌈2.1⌉ = 3, log10 3 = 0.477
        ([9.5, 3.0], 1.0),  # ⌈9.975⌉ = 10, log10 10 = 1 exactly
        ([16.158 / 0.9], 1.3),  # ⌈18.85⌉ = 19, log10 19 = 1.279
    ],
)
def test_the_end_of_the_axis(worst: list[float], end: float) -> None:
    assert tau_max(worst) == end


def test_the_area_takes_the_left_value_of_each_step() -> None:
    assert area([0.5, 1.0, 0.25], [0.0, 1.0, 3.0]) == 0.5 * 1 + 1.0 * 2
    assert area([1.0], [0.0]) == 0.0


def test_aup_of_two_tasks() -> None:
    """x: a 1, b and baseline 2. y (lower): b 1, a 1.5, baseline 2. So τ_max = 0.5, Δ = 0.5/499.

    log10 2 = 0.30103 is reached from point 301 on (300.43 rounded up), so at 198 of the 499 left ends;
    log10 1.5 = 0.17609 from point 176 on (175.74), at 323 of them.
    """
    tasks = {
        "x": TaskScores("higher", 0.4, {"a": 0.8, "b": 0.4}),
        "y": TaskScores("lower", 4.0, {"a": 3.0, "b": 2.0}),
    }
    found = profiles(tasks, ["a", "b"])
    assert (len(found.taus), found.taus[0], found.taus[-1]) == (500, 0.0, 0.5)
    assert found.aup == pytest.approx(
        {
            "a": 0.5 * 0.5 + 0.5 * 323 * 0.5 / 499,
            "b": 0.5 * 0.5 + 0.5 * 198 * 0.5 / 499,
            BASELINE: 198 * 0.5 / 499,
        }
    )
    assert (found.rho["a"][0], found.rho["a"][175], found.rho["a"][176]) == (0.5, 0.5, 1.0)
    assert all(values[-1] == 1.0 for values in found.rho.values())


def test_a_task_without_ratios_is_left_out_for_all() -> None:
    tasks = {
        "x": TaskScores("higher", 0.4, {"a": 0.8}),
        "dead": TaskScores("higher", -1.0, {"a": None}),
    }
    found = profiles(tasks, ["a"])
    assert (found.left_out, list(found.ratios)) == (["dead"], ["x"])
    assert found.rho["a"][0] == 1.0
    nothing = profiles({"dead": tasks["dead"]}, ["a"])
    assert (nothing.left_out, nothing.aup, nothing.taus) == (["dead"], {}, [])


def test_a_method_that_missed_a_task_pays_for_it() -> None:
    """It has 1.05 times the worst ratio there, so its AUP is below that of an equal that played both."""
    tasks = {
        "x": TaskScores("higher", 0.5, {"a": 0.8, "b": 0.8}),
        "y": TaskScores("higher", 0.5, {"a": 0.8}),
    }
    found = profiles(tasks, ["a", "b"])
    assert found.ratios["y"].by_method["b"] == pytest.approx(1.05 * 1.6)
    assert found.aup["a"] > found.aup["b"]


def test_no_method_can_be_called_baseline() -> None:
    with pytest.raises(ValueError, match="baseline"):
        profiles({}, [BASELINE])
