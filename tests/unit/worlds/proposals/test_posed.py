"""A posed question pays 1 or −1, and shows its label to nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from air.actions import Action
from air.errors import ConfigError, MissingError
from air.worlds import conformance, sources
from air.worlds.sources import VALIDATION_SEED

ROWS = [
    {"question": "What is 3 + 4?", "answer": "7", "p_hat": 0.6},
    {"question": "What is 1/2?", "answer": "0.5"},
]


def write(folder: Path, *rows: Any) -> str:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"posed:{file}"


@pytest.mark.parametrize(
    ("seed", "reply", "reward", "answered"),
    [
        (0, "I say \\boxed{7}", 1.0, 1.0),
        (2, "\\boxed{8} no, \\boxed{7.0}", 1.0, 1.0),
        (0, "\\boxed{7} no, \\boxed{8}", -1.0, 1.0),
        (0, "7", -1.0, 0.0),
        (0, "\\boxed{7", -1.0, 0.0),
        (1, "\\boxed{\\frac{1}{2}}", 1.0, 1.0),
        (VALIDATION_SEED + 1, "\\boxed{1/2}", 1.0, 1.0),
        (1, "\\boxed{}", -1.0, 1.0),
        (1, "\\boxed{" + "9" * 5000 + "}", -1.0, 1.0),
    ],
)
async def test_the_last_boxed_answer_is_paid(
    seed: int, reply: str, reward: float, answered: float, tmp_path: Path
) -> None:
    task = sources.load(write(tmp_path, *ROWS))
    world = task.make()
    first = await world.reset(seed)
    assert "7" not in first.text
    assert "0.5" not in first.text
    step = await world.step(Action(answer=reply))
    assert (step.reward, step.done, step.observation.text) == (reward, True, "")
    assert world.facts()["answered"] == answered
    assert world.facts()["success"] == float(reward > 0)
    assert world.facts()["p_hat"] == (0.6 if seed in (0, 2) else 1.0)
    assert task.unanswered == -1.0


async def test_the_world_conforms(tmp_path: Path) -> None:
    assert await conformance.check(sources.load(write(tmp_path, *ROWS))) == {}


@pytest.mark.parametrize(
    "row",
    [
        {"question": "q"},
        {"question": " ", "answer": "1"},
        {"question": "q", "answer": ["1"]},
        {"question": "q", "answer": "1", "p_hat": 1.5},
        {"question": "q", "answer": "1", "p_hat": "x"},
        3,
    ],
)
def test_malformed_rows_are_refused(row: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rows\.jsonl:2"):
        sources.load(write(tmp_path, ROWS[0], row))


def test_files_are_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no rows"):
        sources.load(write(tmp_path))
    with pytest.raises(MissingError, match="no such file"):
        sources.load("posed:absent.jsonl")
