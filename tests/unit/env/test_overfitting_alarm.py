"""The alarm of the gap between validation and test scores."""

from __future__ import annotations

import pytest

from air.env.overfitting_alarm import WINDOW, OverfittingAlarm, grown


@pytest.mark.parametrize(
    ("before", "after", "growth"),
    [
        ([0.3] * WINDOW, [0.3] * WINDOW, 0.0),  # constant: the splits differ
        ([0.0] * WINDOW, [0.05] * WINDOW, 0.0),  # too little
        ([0.0] * WINDOW, [0.2] * WINDOW, 0.2),
        ([0.2] * WINDOW, [0.0] * WINDOW, 0.0),  # it shrinks
        ([-1.0, 1.0] * (WINDOW // 2), [-0.8, 1.2] * (WINDOW // 2), 0.0),  # within the noise
        ([0.0] * (WINDOW - 1), [1.0] * WINDOW, 0.0),  # too few
    ],
)
def test_only_growth_beyond_chance_counts(
    before: list[float], after: list[float], growth: float
) -> None:
    assert grown(before + after) == pytest.approx(growth)


def test_a_task_whose_gap_grows_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    alarm = OverfittingAlarm()
    for number in range(4 * WINDOW):
        alarm.note("titanic", 0.0 if number < 2 * WINDOW else 0.2)
        alarm.note("digits", 0.1)
    (record,) = caplog.records
    assert "task titanic: validation scores have risen by φ 0." in record.getMessage()
