"""An episode of a task in MLGym's form, named in a run file's taskset, from prompt to trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import played_by, research
from tests.unit.tasks.mlgym_tree import guesses, make_tree


async def test_an_episode_from_a_checkout(tmp_path: Path, runtime: str) -> None:
    root = make_tree(tmp_path / "checkout")
    config = research(["mlgym:lamps"], runtime, record_dir=tmp_path / "records")
    config.taskset.mlgym_root = root  # type: ignore[attr-defined]
    reply = f"```bash\ncat > submission.csv << 'END'\n{guesses(36).decode()}END\nsubmit\n```"
    async with played_by(lambda _: reply, config) as play:
        (trace,) = (await play()).traces
    assert trace.reward == pytest.approx((0.9 - 0.35) / (0.9 - 0.35))
    assert trace.info["air"]["task"] == "mlgym:lamps"
    assert "notes.txt" not in trace.model_dump_json()
    assert str(root) not in trace.model_dump_json()
    (record,) = (tmp_path / "records").iterdir()
    assert '"task": "mlgym:lamps"' in record.read_text()
