"""The exactness report of a run, from its metrics: numbers worked by hand."""

from __future__ import annotations

import pytest

from air.trajectories.exactness_report import Agreement, exactness, together

KEYS = ("tokens", "mismatch_kl_mean", "mismatch_kl_max", "logprob_diff_mean", "logprob_diff_max")


def row(
    step: int, branches: float, most: int, failed: int, **versions: tuple[float, ...]
) -> dict[str, object]:
    return {
        **{"step": step, "episodes": 8, "failed_episodes": failed},
        "train/agg/effective/num_branches/mean": branches,
        "train/agg/effective/num_branches/max": most,
        "off_policy/tokens": 5 * (len(versions) - 1),
        "off_policy/max": len(versions) - 1,
        "versions": {
            name[1:]: dict(zip(KEYS, cell, strict=True)) for name, cell in versions.items()
        },
    }


def test_versions_are_summed_up_over_steps_and_weighted_by_tokens() -> None:
    report = exactness(
        [
            row(1, 1.0, 1, 0, v0=(30, 0.1, 0.5, 0.2, 0.9)),
            {"step": 2, "episodes": 8, "failed_episodes": 8},
            row(3, 2.0, 3, 4, v0=(10, 0.5, 0.6, 0.6, 0.7), v1=(60, 0.0, 0.0, 0.0, 0.0)),
        ]
    )
    assert report is not None
    assert report.versions[0] == Agreement(40, pytest.approx(0.2), 0.6, pytest.approx(0.3), 0.9)
    assert report.total == Agreement(100, pytest.approx(0.08), 0.6, pytest.approx(0.12), 0.9)
    assert (report.off_policy_tokens, report.off_policy_max) == (5, 1)
    # 8 episodes of one sample, and 4 of two
    assert report.branches_mean == pytest.approx(16 / 12)
    assert report.branches_max == 3


def test_runs_of_an_earlier_air_have_no_report() -> None:
    assert exactness([{"step": 1, "mismatch_kl/all/mean": 0.1}]) is None
    assert exactness([]) is None
    assert together([]) == Agreement()
