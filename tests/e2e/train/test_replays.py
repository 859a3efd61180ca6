"""A run that plays groups again if their rewards are all equal."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.train.test_further_models import groups, run
from tests.e2e.train.test_resume import rows


def test_a_group_without_spread_is_played_again(small: Path, tmp_path: Path) -> None:
    """Replies of one token are never an action, so all episodes earn the same however often they play."""
    folder = run(
        tmp_path,
        small,
        "--embedded.replays-without-spread",
        "2",
        "--orchestrator.train.sampling.max-completion-tokens",
        "1",
    )
    (row,) = rows(folder)
    assert (row["groups"], row["zero_spread_groups"], row["group_replays"]) == (1, 1, 2)
    assert row["episodes"] == 4  # only those of the last attempt count
    assert len(groups(folder)) == 1
    assert len(list((folder / "trajectories").glob("*.jsonl"))) == 12
