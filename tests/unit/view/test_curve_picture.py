"""The learning curves that `air report --plot` draws."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from air.cli.main import main
from air.errors import MissingError, UsageError
from air.view import curve_picture


def rows(steps: int, **more: float) -> list[dict[str, Any]]:
    return [
        {
            **{
                "step": step,
                "reward": 0.1 * step,
                "reward/delta": 0.1 * step,
                "reward/format": 0.0,
            },
            **{"phi": 0.5, "validation_test_gap": 0.2, "train/updated": float(step != 2)},
            **{"entropy/all/mean": 0.3, "mismatch_kl/all/mean": 1e-8, "optim/grad_norm": 0.5},
            **{"groups": 4, "zero_spread_groups": 1, "episodes": 8, "failed_episodes": 0},
            **{"train/agg/effective/num_output_tokens/mean": 40.0, "time/step": 9.0},
            **{f"train/agg/effective/num_output_tokens/{name}": 40.0 for name in ("p10", "p90")},
            **more,
        }
        for step in range(1, steps + 1)
    ]


def test_one_run_has_its_terms_and_several_have_a_curve_each() -> None:
    one = {panel.title: panel for panel in curve_picture.panels({"r": rows(4)})}
    assert [curve.label for curve in one["terms of the reward"].curves] == ["delta"]
    validation, test = one["normalised score φ"].curves
    assert [value for _, value in test.points] == pytest.approx([0.3] * 4)
    assert [value for _, value in validation.points] == [0.5] * 4
    # Step 2 changed no weights: its entropy and gradient are no measurement.
    assert [step for step, _ in one["entropy (nats per token)"].curves[0].points] == [1, 3, 4]
    assert one["shares"].curves[0].points[0][1] == 0.25
    several = curve_picture.panels(
        {"a": rows(4), "b": rows(3), "old": [{"step": 1, "reward": 0.5}]}
    )
    assert [(c.label, c.number) for c in several[0].curves] == [("a", 0), ("b", 1), ("old", 2)]
    assert "terms of the reward" not in [panel.title for panel in several]


def test_a_warm_start_has_its_loss() -> None:
    (loss,) = curve_picture.panels(
        {"warm": [{"step": 1.0, "loss/mean": 2.0}, {"step": 2.0, "val/loss": 3.0}]}
    )
    assert [(c.label, c.points) for c in loss.curves] == [
        ("training", [(1.0, 2.0)]),
        ("held out", [(2.0, 3.0)]),
    ]


@pytest.mark.slow
def test_the_command_draws_a_picture_of_all_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    for name, steps in (("a", 12), ("b", 5)):
        (tmp_path / name).mkdir()
        lines = "".join(json.dumps(row) + "\n" for row in rows(steps))
        (tmp_path / name / "metrics.jsonl").write_text(lines)
    picture = tmp_path / "curves.png"
    # The runs recorded no episodes, as those of `sft`: there is nothing to report but the curves.
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "b"), "--plot", str(picture)]) == 0
    assert capsys.readouterr().err == f"learning curves: {picture}\n"
    assert main(["report", str(tmp_path / "a")]) == 2
    assert "a trajectory" in capsys.readouterr().err
    head = picture.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:])
    assert (width > 1000, height > 500) == (True, True)
    with pytest.raises(UsageError, match="cannot be written"):
        curve_picture.save(tmp_path / "absent" / "x.png", {"a": rows(3)})


def test_nothing_to_draw_and_nothing_to_draw_with_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["report", str(tmp_path), "--plot", str(tmp_path / "x.png")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # as if it were not installed
    with pytest.raises(MissingError, match=r"air-agent\[plot\]"):
        curve_picture.save(tmp_path / "x.png", {"a": rows(3)})
