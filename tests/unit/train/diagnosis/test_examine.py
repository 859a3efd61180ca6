"""Each known way to go wrong is planted into a healthy run's metrics and named with its first step."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from air.cli.main import main
from air.train.diagnosis.examine import ALWAYS, TRENDS, examine, names, needs_spread
from air.train.diagnosis.series import Series
from air.train.diagnosis.thresholds import LIMITS

Row = dict[str, Any]
Plant = Callable[[Row, int], Row]
STEPS, BEGINS = 24, 13


def healthy(steps: int = STEPS) -> list[Row]:
    """A run that learns, with values that go up and down as those of a real one do."""
    return [row(step) for step in range(1, steps + 1)]


def row(step: int) -> Row:
    wave = math.sin(2.0 * step)
    return {
        **{"step": step, "episodes": 32, "failed_episodes": step % 2, "groups": 4},
        **{"zero_spread_groups": step % 3, "reward": 0.2 + 0.01 * step + 0.05 * wave},
        **{"validation_test_gap": 0.03 * wave, "well_formed": 0.9 + 0.05 * wave},
        **{
            "entropy/all/mean": 0.5 - 0.005 * step + 0.05 * wave,
            "optim/grad_norm": 0.3 + 0.1 * wave,
        },
        **{"mismatch_kl/all/mean": 1e-8 * (1 + wave), "train/updated": 1.0},
        **{"weights_version": step - 1, "train/reference_kl": 0.002 * step},
        **{"context_ends": 1 + step % 2, "cut_replies": 1},
        **{"seconds_model": 40.0, "seconds_exec": 20.0 + wave, "seconds_grading": 9.0},
        "seconds_queue": 20.0 - wave,
        "tasks": {"digits": task(16, step % 2), "titanic": task(16, 0)},
        "sources": {"games": source(2, 1), "research": source(2, step % 2)},
    }


def task(episodes: int, failed: int, ungraded: int = 0) -> Row:
    return {
        "episodes": episodes,
        "failed_episodes": failed,
        "ungraded_episodes": ungraded,
    }


def source(groups: int, zero_spread: int) -> Row:
    return {"groups": groups, "zero_spread_groups": zero_spread}


def planted(plant: Plant) -> list[Row]:
    """A healthy run that goes wrong from step `BEGINS` on; `plant` gets the number of steps since then."""
    return [
        one if one["step"] < BEGINS else one | plant(one, one["step"] - BEGINS) for one in healthy()
    ]


PLANTS: dict[str, Plant] = {
    "stale weights": lambda one, n: {"weights_version": BEGINS - 2},
    "mismatch": lambda one, n: {"mismatch_kl/all/mean": 0.004 * (n + 1)},
    "failed episodes": lambda one, n: {
        "failed_episodes": 20,
        "tasks": {"digits": task(16, 10), "titanic": task(16, 10)},
    },
    "failures on one task": lambda one, n: {
        "failed_episodes": 14,
        "tasks": {"digits": task(16, 0), "titanic": task(16, 14)},
    },
    "ungraded task": lambda one, n: {
        "tasks": {"digits": task(16, n % 2, 2), "titanic": task(4, 0, 4)}
    },
    "no spread": lambda one, n: {"zero_spread_groups": 3},
    "no update": lambda one, n: {"train/updated": 0.0},
    "entropy collapse": lambda one, n: {"entropy/all/mean": 0.02},
    "growing kl": lambda one, n: {"train/reference_kl": 1.0 + n},
    "gradient growth": lambda one, n: {"optim/grad_norm": 5.0},
    "gradient spikes": lambda one, n: {"optim/grad_norm": 0.3 if n % 5 else 30.0},
    "lost format": lambda one, n: {"well_formed": 0.3},
    "validation leaves test": lambda one, n: {"validation_test_gap": 0.4},
    "starving source": lambda one, n: {
        "sources": {"games": source(2, 0), "research": source(2, 2)}
    },
    "cut episodes": lambda one, n: {"context_ends": 10, "cut_replies": 10},
    "bottleneck": lambda one, n: {"seconds_queue": 100.0},
}


def test_a_healthy_run_is_called_so() -> None:
    assert examine(healthy()) == []
    for steps in (1, 3, 7, 50):
        assert examine(healthy(steps)) == []


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_named_with_its_step(name: str) -> None:
    findings = examine(planted(PLANTS[name]))
    assert [finding.check for finding in findings] == [name]
    (finding,) = findings
    assert finding.step == BEGINS
    assert finding.state == ("warn" if name == "bottleneck" else "fail")
    assert any(letter.isdigit() for letter in finding.numbers)
    assert finding.remedy


def test_every_check_has_a_planted_case() -> None:
    assert set(PLANTS) == set(names())
    assert len(PLANTS) == len(ALWAYS + TRENDS)


@pytest.mark.parametrize(
    ("activity", "named"),
    [("model", "sampling"), ("exec", "commands"), ("grading", "grading"), ("queue", "boxes")],
)
def test_the_bottleneck_is_named(activity: str, named: str) -> None:
    (finding,) = examine(planted(lambda one, n: {f"seconds_{activity}": 900.0}))
    assert finding.numbers.startswith(f"{named}: seconds_{activity} is 9")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("mismatch", {"mismatch_kl/all/mean": 0.004}),
        ("entropy collapse", {"entropy/all/mean": 0.07}),
        ("growing kl", {"train/reference_kl": 15.0}),
        ("lost format", {"well_formed": 0.3}),
    ],
)
def test_a_run_that_breaks_in_its_second_step_is_named(name: str, values: Row) -> None:
    """The mean over the first ten steps is then as bad as that over the last ones."""
    rows = [one if one["step"] == 1 else one | values for one in healthy(40)]
    assert [(finding.check, finding.step) for finding in examine(rows)] == [(name, 2)]


def test_a_fault_that_went_away_is_not_reported() -> None:
    rows = healthy(40)
    for one in rows[9:15]:
        one |= {"zero_spread_groups": 4, "well_formed": 0.1}
    assert examine(rows) == []


@pytest.mark.parametrize("metric", ["train/value_loss", "ref_kl/mean"])
def test_algorithms_that_compare_no_rewards_need_no_spread(metric: str) -> None:
    assert examine(planted(lambda one, n: {"zero_spread_groups": 4})) != []
    assert examine([one | {metric: 0.1} for one in planted(PLANTS["no spread"])]) == []


@pytest.mark.parametrize(
    ("algo", "needed"), [("grpo", True), ("rae", False), ("reinforce_plus_plus", False)]
)
def test_a_run_without_baselines_of_groups_needs_no_spread(
    tmp_path: Path, algo: str, needed: bool
) -> None:
    assert needs_spread(tmp_path)
    config = {"orchestrator": {"algo": {"type": algo}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert needs_spread(tmp_path) == needed
    for name in ("no spread", "starving source"):
        rows = planted(PLANTS[name])
        assert bool(examine(rows, needs_spread=needs_spread(tmp_path))) == needed


def test_steps_with_nothing_to_train_are_no_lack_of_updates() -> None:
    """Groups of equal rewards are named as such; in its warm-up a value model alone is trained."""
    equal = planted(lambda one, n: {"train/updated": 0.0, "zero_spread_groups": 4})
    assert [finding.check for finding in examine(equal)] == ["no spread"]
    warm_up = [one | {"train/updated": float(one["step"] > 10)} for one in healthy(12)]
    assert [f.check for f in examine([one | {"train/value_loss": 0.1} for one in warm_up])] == []
    assert [f.check for f in examine(warm_up[:10])] == ["no update"]


def test_a_few_groups_are_no_starving_source() -> None:
    rows = [one | {"sources": {"games": source(4, 0)}} for one in healthy(12)]
    rows[-1]["sources"]["research"] = source(1, 1)
    assert examine(rows) == []


def test_one_failed_episode_is_no_failing_task() -> None:
    one = row(2) | {"tasks": {"digits": task(4, 1), "titanic": task(28, 0)}, "failed_episodes": 1}
    assert examine([one]) == []


def test_a_mismatch_counts_only_the_tokens_of_the_newest_weights() -> None:
    def versions(one: Row, newest: float) -> Row:
        step = one["step"]
        cells = {step - 1: newest, step - 2: 0.5}
        return {"versions": {str(v): {"mismatch_kl_mean": kl} for v, kl in cells.items()}}

    stale = {"mismatch_kl/all/mean": 0.2}
    assert examine(planted(lambda one, n: stale | versions(one, 1e-8))) == []
    rows = [one | versions(one, 1e-8) for one in healthy()]
    for one in rows[BEGINS - 1 :]:
        one |= versions(one, 0.2)
    assert [(f.check, f.step) for f in examine(rows)] == [("mismatch", BEGINS)]


@pytest.mark.parametrize("steps", range(8, 25))
def test_a_rise_of_the_gradient_that_stays_is_growth_and_no_spike(steps: int) -> None:
    rows = [one | {"optim/grad_norm": 0.01 if one["step"] < 8 else 0.15} for one in healthy(steps)]
    found = [(finding.check, finding.step) for finding in examine(rows)]
    # A median of three (in longer runs up to six) steps follows after two (up to four) of them.
    assert found == ([] if steps < 9 else [("gradient growth", 8)])


def test_a_moderate_rise_of_the_gradient_is_normal() -> None:
    rows = [one | {"optim/grad_norm": 0.01 if one["step"] < 8 else 0.09} for one in healthy()]
    assert examine(rows) == []


def test_steps_without_an_update_are_no_collapse() -> None:
    rows = planted(lambda one, n: {"entropy/all/mean": 0.0, "train/updated": 0.0} if n % 2 else {})
    assert examine(rows) == []


def test_a_short_run_is_judged_by_what_few_steps_can_show() -> None:
    rows = [one | {"failed_episodes": 30, "zero_spread_groups": 4} for one in healthy(4)]
    assert [finding.check for finding in examine(rows)] == ["failed episodes"]


def test_a_run_that_fails_from_its_first_step_is_called_so() -> None:
    for steps in (1, 2, 3):
        rows = [one | {"failed_episodes": one["episodes"]} for one in healthy(steps)]
        found = {finding.check: finding for finding in examine(rows)}["failed episodes"]
        assert found.step == 1
        assert f"the last {steps} steps" in found.numbers


def test_the_beginning_is_the_first_bad_value_of_the_first_bad_mean() -> None:
    values = [1.0, 9.0, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0]
    series = Series(range(1, 10), values, 3)
    assert (series.first, series.last) == (pytest.approx(11 / 3), 9.0)
    # Means of three: 11/3, 11/3, 1, 11/3, 19/3, 9, 9. Above 5 from the fifth on, which holds steps 5 to 7.
    assert series.began(lambda mean: mean > 5) == 6
    assert series.began(lambda mean: mean > 9) is None
    assert series.began(lambda mean: mean > 0) == 1


def write(folder: Path, rows: list[Row]) -> Path:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_command_prints_findings_and_tells_by_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write(tmp_path / "good", healthy())
    assert main(["doctor", str(good)]) == 0
    assert "ok    nothing of that was found" in capsys.readouterr().out
    bad = write(tmp_path / "bad", planted(PLANTS["lost format"]))
    assert main(["doctor", str(bad)]) == 1
    out = capsys.readouterr().out
    assert f"fail  lost format           since step {BEGINS}: well-formed replies 9" in out
    assert "→ lower trainer.optim.lr" in out
    assert main(["doctor", str(bad), "--json"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert (body["ok"], body["steps"], body["findings"][0]["step"]) == (False, STEPS, BEGINS)
    slow = write(tmp_path / "slow", planted(PLANTS["bottleneck"]))
    assert main(["doctor", str(slow)]) == 0  # a slow run learns
    assert "warn  bottleneck" in capsys.readouterr().out


def test_what_is_no_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warm = write(tmp_path / "warm", [{"step": 1, "loss": 2.0}])
    for folder in (tmp_path / "absent", tmp_path, warm):
        assert main(["doctor", str(folder)]) == 2
        err = capsys.readouterr().err
        assert str(folder) in err
        assert len(err.splitlines()) == 1


def field_docstrings(kind: type) -> dict[str, str]:
    """Returns the docstring below each field of a class, as one line."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: " ".join(str(ast.literal_eval(below.value)).split())
        for field, below in itertools.pairwise(tree.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
    }


def test_the_documentation_has_every_limit_and_every_check() -> None:
    page = (Path(__file__).parents[4] / "docs" / "doctor.md").read_text()
    texts = field_docstrings(type(LIMITS))
    assert list(texts) == [field.name for field in fields(LIMITS)]
    for name, text in texts.items():
        assert f"| `{name}` | {getattr(LIMITS, name):g} | {text} |\n" in page
    for name in names():
        assert f"| {name} |" in page
