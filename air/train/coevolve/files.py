"""The names of the files and folders in the folder of a co-evolution, which trains two models in rounds: a
proposer, which writes questions, and an executor, which answers them.

    coevolve.json                the settings that the content of the folder depends on
    report.json, report.txt      the results of all rounds
    round0/                      the same files for the untrained models; no trainings
    round1/
        proposer/                the training of the proposer: an ordinary run of `rl`
        proposals.jsonl          the texts that the proposer sampled
        answered.jsonl           the proposals with the executor's answers
        rows.jsonl               the questions selected for the executor's training, with their labels
        executor/                the training of the executor: an ordinary run of `rl`
        held_out/                the evaluation on held-out questions, as `air eval` records it

Each `.jsonl` file is written atomically. If the `.jsonl` file that a stage of a round writes exists, the
stage is finished and is not repeated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from air import json_lines
from air.errors import ConfigError

FILE = "coevolve.json"
JSON_FILE, TEXT_FILE = "report.json", "report.txt"
ROUND = "round"
"""The beginning of the name of a round's folder; the number of the round follows."""
PROPOSALS, ANSWERED, ROWS = "proposals.jsonl", "answered.jsonl", "rows.jsonl"
STAGE_FILES = (PROPOSALS, ANSWERED, ROWS)
"""The files that the stages of a round write, in order, apart from the two trainings and the evaluation."""
PROPOSER, EXECUTOR, HELD_OUT = "proposer", "executor", "held_out"
"""The names of the folders in a round's folder: two trainings and the evaluation on held-out questions."""
PAYMENT_FILE, SAMPLING_FILE = "payment.json", "sampling.json"
"""The names of two files in a round's folder: the settings of the task on which the proposer is trained, and
of the task in which the trained proposer writes the round's proposals."""
POSED_FILE, HELD_OUT_FILE = "posed.json", "held_out.json"
"""The names of two files in a round's folder, which are written only if the executor has tools or answers are
not compared by their canonical forms: the settings of the task on which the executor is trained, and of the
task that asks the held-out questions."""


_REMEDY = "remove the file, and those that later stages have written"
_ANSWERED: dict[str, type | tuple[type, ...]] = {
    "question": str,
    "proposed": str,
    "answers": list,
    "tool_calls": (int, float),
}


def read_proposals(folder: Path) -> list[str]:
    """Returns the texts in `proposals.jsonl` in a round's folder. Raises ConfigError if the file cannot be
    read, or is not as this program writes it."""
    lines = [*json_lines.read(folder / PROPOSALS, complete=True)]
    for place, line in lines:
        if not isinstance(line, dict) or not isinstance(line.get("text"), str):
            raise ConfigError("must have a `text`", where=place, remedy=_REMEDY)
    return [line["text"] for _, line in lines]


def read_answered(folder: Path) -> list[dict[str, Any]]:
    """Returns the lines of `answered.jsonl` in a round's folder (see
    `air.train.coevolve.proposal_selection`). Raises ConfigError if the file cannot be read, or is not as this
    program writes it."""
    lines = [*json_lines.read(folder / ANSWERED, complete=True)]
    for place, line in lines:
        if not isinstance(line, dict):
            raise ConfigError("must be a JSON object", where=place, remedy=_REMEDY)
        for key, kind in () if "malformed" in line else _ANSWERED.items():
            value = line.get(key)
            is_valid = isinstance(value, kind)
            if isinstance(value, list):
                is_valid = bool(value) and all(one is None or isinstance(one, str) for one in value)
            if not is_valid:
                raise ConfigError(f"has no valid `{key}`", where=place, remedy=_REMEDY)
    return [line for _, line in lines]
