"""The page of a co-evolution: what its report says, as a table and as curves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from air.train.coevolve import report
from air.train.coevolve.files import FILE, JSON_FILE
from air.train.coevolve.plan import Plan
from air.view.index.run_discovery import Run, coevolutions, discover
from air.view.render import coevolution
from tests.unit.train.coevolve.test_plan import config, plan

ANSWERED: list[dict[str, Any]] = [
    {"question": "What is 3 + 4?", "proposed": "7", "answers": ["7", "7", "8", "9"]},
    {"question": "Name a colour", "proposed": "red", "answers": ["red", "blue", None, None]},
    {"question": "What is 3 + 5?", "proposed": "8", "answers": ["8", "8", "8", "8"]},
]


def recorded(folder: Path, **settings: Any) -> Plan:
    """A co-evolution of two rounds whose answers are made up, and its real report."""
    planned = plan(config(folder, rounds=1, **settings))
    planned.claim()
    for number in range(2):
        one = planned.round_folder(number)
        (one / "held_out" / "trajectories").mkdir(parents=True)
        lines = [{**line, "tool_calls": number + 0.5} for line in ANSWERED]
        text = "".join(json.dumps(line) + "\n" for line in [*lines, {"malformed": "no question"}])
        (one / "answered.jsonl").write_text(text)
        (one / "rows.jsonl").write_text(json.dumps({"question": "q", "answer": "a"}) + "\n")
    run = planned.round_folder(1) / "proposer"
    run.mkdir()
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "reward": 0.25}) + "\n")
    content = report.write(planned)
    content["rounds"][1]["held_out"] = {"accuracy": 0.625, "low": 0.5, "high": 0.75, "episodes": 40}
    (planned.folder / JSON_FILE).write_text(json.dumps(content))
    return planned


def test_the_viewer_finds_the_runs_and_the_report_of_a_co_evolution(tmp_path: Path) -> None:
    planned = recorded(tmp_path)
    for place in (planned.folder, tmp_path):
        runs = discover([place])
        assert {run.name for run in runs} == {"round0/held_out", "round1/held_out", "proposer"}
        (found,) = coevolutions(runs).items()
        assert found[0] == str(planned.folder)
        assert [one["round"] for one in found[1]["rounds"]] == [0, 1]
    (planned.folder / FILE).unlink()
    assert coevolutions(runs) == {}
    assert coevolutions([Run("r", Path("/r"))]) == {}  # a run that is mounted at the top


def test_the_table_has_every_measure_of_a_round(tmp_path: Path) -> None:
    planned = recorded(tmp_path)
    (content,) = coevolutions(discover([planned.folder])).values()
    page = coevolution.as_html(content)
    assert page.count("<tr>") == 3
    assert page.count('title="p from') == 20
    assert 'title="p from 0.5 to 0.6: 1"' in page
    assert 'title="p from 0.9 to 1: 1"' in page
    assert "0.625<br><small>0.500 – 0.750" in page
    assert "<td>1.500</td>" in page  # the calls of round 1
    assert "<td>–</td>" in page  # round 0 has no held-out episodes


def test_the_curves_are_by_round(tmp_path: Path) -> None:
    planned = recorded(tmp_path)
    (content,) = coevolutions(discover([planned.folder])).values()
    accuracy, shares, rewards = coevolution.charts(content)
    assert accuracy.curves["accuracy"] == [(1, 0.625)]
    assert shares.curves["kept"] == [(0, 0.25), (1, 0.25)]
    assert list(shares.curves) == ["in range", "kept", "novelty"]
    assert set(rewards.curves) == {"as coded", "published"}
    assert len(rewards.curves["published"]) == 2
