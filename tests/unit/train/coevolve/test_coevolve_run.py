"""The steps of a co-evolution between its trainings."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from air.cli.main import main
from air.errors import ConfigError
from air.train.coevolve import report
from air.train.coevolve.coevolve_run import CoevolveRun, malformed_warning
from air.train.coevolve.files import ANSWERED, PROPOSALS, ROWS
from air.train.coevolve.plan import Plan, plan
from air.train.config import overrides
from air.train.config.coevolve_config import CoevolveConfig
from tests.unit.train.coevolve.test_plan import config
from tests.unit.worlds.proposals.stopped_worker import StoppedWorker


def answered(run_plan: Plan, *answers: str) -> Path:
    """Writes the answers to one question in round 0. Returns the path of the round's rows."""
    folder = run_plan.round_folder(0)
    folder.mkdir(parents=True, exist_ok=True)
    line = {
        "question": "z + z?",
        "proposed": "".join(answers[:1]),
        "answers": answers,
        "tool_calls": 0.0,
    }
    (folder / ANSWERED).write_text(json.dumps(line) + "\n")
    return folder / ROWS


async def test_ctrl_c_ends_the_filter_while_answers_are_compared(tmp_path: Path) -> None:
    """Comparisons of hostile answers take minutes. Ctrl-C cancels the task, which the event loop does."""
    planned = plan(config(tmp_path))
    rows = answered(planned, "2z", "z*2", "z", "z+1")
    said: list[str] = []
    run = CoevolveRun(planned, said.append, lambda _: nullcontext(lambda: None))
    with StoppedWorker() as worker:
        filtering = asyncio.create_task(run._filter(0))
        await worker.reached(filtering)
        filtering.cancel()
        worker.go_on()
        with pytest.raises(asyncio.CancelledError):
            await filtering
    assert said == []
    assert not rows.exists()
    assert await run._filter(0) == 1
    assert json.loads(rows.read_text())["answer"] == "2z"


async def test_a_round_keeps_the_rows_with_which_its_training_began(tmp_path: Path) -> None:
    """Even if another selection would be made now, for example because a comparison reaches a limit."""
    planned = plan(config(tmp_path))
    run = CoevolveRun(planned, lambda _: None, lambda _: nullcontext(lambda: None))
    rows = answered(planned, "1", "1", "2", "3")
    assert await run._filter(0) == 1
    before = rows.read_bytes()
    answered(planned, "1", "1", "1", "1")
    assert await run._filter(0) == 1
    assert rows.read_bytes() == before
    rows.unlink()
    assert await run._filter(0) == await run._filter(0) == 0


@pytest.mark.parametrize(
    "text",
    [
        *("3\n", '{"x": 1}\n', '{"text": 3}\n', '{"text": "a"}\n[]\n', "nonsense\n", '{"text": "'),
    ],
)
async def test_a_file_of_proposals_with_other_content_is_named(tmp_path: Path, text: str) -> None:
    planned = plan(config(tmp_path))
    file = planned.round_folder(0) / PROPOSALS
    file.parent.mkdir(parents=True)
    file.write_text(text)
    run = CoevolveRun(planned, lambda _: None, lambda _: nullcontext(lambda: None))
    with pytest.raises(ConfigError, match=f"{re.escape(str(file))}:[12]: .* — ") as error:
        await run._answer(0, "no model")
    assert "\n" not in str(error.value)


async def test_a_round_in_which_all_proposals_are_malformed_says_so(tmp_path: Path) -> None:
    """With the first of them, in one line. No model is loaded, because there is no question."""
    planned = plan(config(tmp_path))
    file = planned.round_folder(0) / PROPOSALS
    file.parent.mkdir(parents=True)
    first = "What is\n\x1b[2J 3?\u202e" + "x" * 5000
    texts = [first, "<question>What is 3 + 4?</question>"]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    said: list[str] = []
    run = CoevolveRun(planned, said.append, lambda _: nullcontext(lambda: None))
    await run._answer(0, "no model")
    rounds = planned.config.rounds
    assert said[1:] == [f"[round 0/{rounds}] answers: 0 different questions"]
    assert said[0].startswith(
        f"[round 0/{rounds}] warning: 2 of 2 proposals are malformed, the first because the text needs "
        "<question> and </question> exactly once: 'What is\\n\\x1b[2J 3?\\u202ex"
    )
    assert "x'… — train the proposer with `sft`" in said[0]
    assert said[0].isprintable()
    assert len(said[0]) < 600
    assert len(file.with_name(ANSWERED).read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("malformed", "of", "warns"),
    [(0, 0, False), (0, 10, False), (8, 10, False), (9, 10, True), (1, 1, True), (89, 100, False)],
)
def test_a_warning_needs_nearly_all_proposals_to_be_malformed(
    malformed: int, of: int, warns: bool
) -> None:
    bad = {"malformed": "the question is empty", "text": "x"}
    good = {"question": "What is 3 + 4?", "proposed": "7"}
    warning = malformed_warning([good] * (of - malformed) + [bad] * malformed)
    assert (warning is not None) == warns
    assert warning is None or f"{malformed} of {of} proposals are malformed" in warning


@pytest.mark.parametrize(
    "change",
    [
        {"question": 3},
        {"proposed": None},
        {"answers": "1"},
        {"answers": []},
        {"answers": ["1", 3]},
        {"tool_calls": "many"},
        None,
    ],
)
async def test_a_file_of_answers_with_other_content_is_named(
    tmp_path: Path, change: dict[str, Any] | None
) -> None:
    planned = plan(config(tmp_path, rounds=0))
    file = answered(planned, "1", "1").with_name(ANSWERED)
    line = [] if change is None else {**json.loads(file.read_text()), **change}
    file.write_text(json.dumps(line) + "\n")
    run = CoevolveRun(planned, lambda _: None, lambda _: nullcontext(lambda: None))
    with pytest.raises(ConfigError, match=f"{re.escape(str(file))}:1: "):
        await run._filter(0)
    with pytest.raises(ConfigError, match=f"{re.escape(str(file))}:1: "):
        report.report(planned)


def test_a_report_without_proposals_is_no_error(tmp_path: Path) -> None:
    planned = plan(config(tmp_path, rounds=0))
    rows = answered(planned)
    for file in (rows, rows.with_name(ANSWERED)):
        file.write_text("")
    (one,) = report.write(planned)["rounds"]
    assert one["kept_share"] is None


def test_a_report_with_other_settings_is_refused(tmp_path: Path) -> None:
    """Otherwise, numbers of other settings would replace those of the co-evolution."""
    toml = tmp_path / "c.toml"
    held_out = config(tmp_path).held_out.data
    sides = "".join(
        f'[{name}]\nmodel = "{name}"\nrun_files = ["configs/agent0/small_{name}.toml"]\n'
        for name in ("proposer", "executor")
    )
    toml.write_text(
        f'rounds = 0\noutput_dir = "{tmp_path}"\n{sides}[held_out]\ndata = "{held_out}"'
    )
    argv = ["coevolve", "@", str(toml), "--report"]
    assert main(argv) == 2
    merged = overrides.parse(argv[1:3], CoevolveConfig)
    planned = plan(overrides.build(CoevolveConfig, merged))
    planned.claim()
    assert main(argv) == 0
    before = (planned.folder / "report.json").read_bytes()
    assert main([*argv, "--seed", "3"]) == 2
    assert (planned.folder / "report.json").read_bytes() == before
