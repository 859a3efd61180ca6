"""Demonstrations of scripted players are, token by token, the episodes of a model with the same replies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from air.cli.main import main
from air.errors import ConfigError, UsageError
from air.manual.demonstrations import demonstrate
from air.train.model import policy as policies
from air.train.model.demonstrations import read_examples, tokenize
from air.trajectories import load
from air.trajectories.conversations import to_sft
from tests.e2e.worlds.test_formats import DOORS, LETTERS, WORLDS, model, only, tokenizer, trained

__all__ = ["model"]


ONE_TEXT = ("search_r1", "action", "bash_swe", "code")
"""Formats that write one text, for a world's only tool. This world has two."""


@pytest.mark.parametrize("name", [name for name in WORLDS if name not in ONE_TEXT])
async def test_supervised_training_sees_the_tokens_of_an_episode(
    name: str, model: Path, tmp_path: Path
) -> None:
    rewards = await demonstrate(
        DOORS, [0], tmp_path / "demos", action_format=name, thought="I try."
    )
    assert rewards == [1.0]
    played = only(tmp_path / "demos")
    replies = [step.reply for step in load(played).steps]
    assert len(replies) == 2
    assert to_sft([played], tmp_path / "demos.jsonl") == 1
    ((example,),) = (
        tokenize(policies.load(model).renderer(), tokenizer(model), talk).examples
        for talk in read_examples(tmp_path / "demos.jsonl")
    )
    async with trained(replies, model, DOORS, name, tmp_path / "trained") as (trace, _):
        (branch,) = trace.branches
    assert example.token_ids == branch.token_ids
    assert example.mask == [own for node in branch.nodes for own in node.mask]


async def test_what_cannot_be_demonstrated_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no scripted player"):
        await demonstrate(LETTERS, [0], tmp_path, thought="")
    for name in ONE_TEXT:
        with pytest.raises(
            (UsageError, ConfigError), match=f"'{name}' (cannot call the tool|writes one text)"
        ):
            await demonstrate(DOORS, [0], tmp_path, action_format=name, thought="")


@pytest.mark.parametrize(
    "task",
    [
        "game:blocksworld-text",
        "game:sokoban5",
        "game:tetris1",
        "question:gsm8k",
        "question:sql",
        "question:shop",
    ],
)
def test_the_scripted_players_of_shipped_worlds_do_well(
    task: str, tmp_path: Path, capsys: Any
) -> None:
    out = tmp_path / "demos"
    assert main(["demos", str(out), "--tasks", task, "--episodes", "2", "--thought", ""]) == 0
    assert "2 demonstrations" in capsys.readouterr().out
    ends = [load(path).end for path in (out / "trajectories").glob("*.jsonl")]
    assert [end.facts["success"] for end in ends if end] == [1, 1]
    (line, _) = (out / "demos.jsonl").read_text().splitlines()
    assert json.loads(line)["messages"][-1]["role"] == "assistant"


def test_an_unknown_format_is_told_before_anything_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["demos", str(out), "--tasks", "game:sokoban5", "--format", "searchr1"]) == 2
    error = capsys.readouterr().err
    assert error == "error: --format: no action format named 'searchr1' — use `search_r1`\n"
    assert not out.exists()


def test_no_demonstration_shows_an_episode_of_an_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demos"
    args = ["demos", str(out), "--tasks", DOORS, "--seed", "1000120", "--episodes", "4"]
    assert main(args) == 2
    assert "--seed: the seeds of worlds would be 1000120 to 1000123" in capsys.readouterr().err
    assert not out.exists()
