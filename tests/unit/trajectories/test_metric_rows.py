"""Lines of `metrics.jsonl` from every version of air are read under the present names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from air.errors import ConfigError
from air.trajectories import metric_rows


def test_names_of_an_earlier_air_become_those_of_prime_rl(tmp_path: Path) -> None:
    old = {
        "step": 1,
        "reward": 0.5,
        "train/mismatch_kl": 1e-7,
        "train/lr": 0.1,
        "train/tokens": 9.0,
    }
    old |= {"seconds": 4.0, "seconds_rollout": 2.0, "seconds_weights": 0.5, "seconds_train": 1.5}
    old |= {"seconds_model": 1.25, "tasks": {"t": {}}}
    warm_start = {"step": 2.0, "loss": 3.0, "lr": 0.2, "val_loss": 4.0, "grad_norm": 1.0}
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{json.dumps(old)}\n{json.dumps(warm_start)}\n{{"step": 3, "rew')
    first, second = metric_rows.read(path)
    assert first == {
        **{"step": 1, "reward": 0.5, "mismatch_kl/all/mean": 1e-7, "optim/lr": 0.1},
        **{"train/tokens": 9.0, "time/step": 4.0, "time/wait_for_batch": 2.0},
        **{"time/broadcast_weights": 0.5, "time/train": 1.5, "seconds_model": 1.25},
        "tasks": {"t": {}},
    }
    assert second == {
        **{"step": 2.0, "loss/mean": 3.0, "optim/lr": 0.2, "val/loss": 4.0},
        "optim/grad_norm": 1.0,
    }
    assert [metric_rows.current(row) for row in (first, second)] == [first, second]
    assert metric_rows.read(tmp_path / "absent.jsonl") == []


def test_lines_of_prime_rl_become_one_row_for_each_step(tmp_path: Path) -> None:
    agent = "train/agg/effective/agent"
    orchestrator = {
        **{"progress/rollouts": 16, "progress/tasks": 4, "train/agg/all/has_error/mean": 0.25},
        **{"train/agg/all/agent/solved_none": 0.5, "train/agg/all/agent/solved_all": 0.25},
        **{f"{agent}/reward/mean": 0.375, f"{agent}/is_truncated/mean": 0.125},
        **{f"{agent}/metrics/turns/mean": 4.0, f"{agent}/metrics/format_errors/mean": 1.0},
    }
    trainer = [{"optim/lr": 0.1, "optim/grad_norm": 2.0}, {"loss/mean": 1.5, "time/step": 3.0}]
    lines = [{"step": 1, "time": 9.5, **part} for part in (trainer[0], orchestrator, trainer[1])]
    lines.append({"step": 2, "time": 9.6, "optim/lr": 0.2})
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    first, second = metric_rows.read(path)
    assert first == {
        **{"step": 1, "time": 9.5, **orchestrator, **trainer[0], **trainer[1]},
        **{"episodes": 16, "failed_episodes": 4, "groups": 4, "zero_spread_groups": 3},
        **{"reward": 0.375, "cut_replies": 2, "context_ends": 0},
        **{"turns": 4, "format_errors": 1, "well_formed": 0.75},
    }
    assert second == {"step": 2, "time": 9.6, "optim/lr": 0.2}


def test_an_update_reports_under_prime_rls_names_where_it_has_them() -> None:
    assert metric_rows.of_update({"entropy": 1.0, "value_loss": 2.0, "off_policy/max": 3.0}) == {
        "entropy/all/mean": 1.0,
        "train/value_loss": 2.0,
        "off_policy/max": 3.0,
    }


@pytest.mark.parametrize("line", ["[1]", '{"reward": 0.5}', '{"step": 1, "reward": NaN}'])
def test_a_line_without_a_step_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl:2"):
        metric_rows.read(tmp_path / "metrics.jsonl")
