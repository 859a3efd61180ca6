"""What `air tasks check --attacks` prints and writes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from air.cli import attacks
from air.integrity.verdict import AttackVerdict

VERDICT = AttackVerdict(
    "forge", "oracle", "It learns an answer.", "titanic", "docker", "broken", "paid"
)


async def test_an_interrupted_battery_reports_what_it_has_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress, began = attacks.Progress(3), asyncio.Event()

    async def battery() -> None:
        with attacks.reported_if_interrupted(progress, tmp_path / "report.json"):
            progress(VERDICT)
            began.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(battery())
    await began.wait()
    task.cancel()  # as asyncio does on Ctrl-C
    with pytest.raises(asyncio.CancelledError):
        await task
    printed = capsys.readouterr()
    assert "interrupted after 1 of 3" in printed.err
    assert "broken: titanic, docker: forge (oracle): paid" in printed.err
    assert "oracle" in printed.out
    report = json.loads((tmp_path / "report.json").read_text())
    assert [one["attack"] for one in report["verdicts"]] == ["forge"]
