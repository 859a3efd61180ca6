"""`air tasks rows:PATH` lists, filters and splits rows, and reports what leaks."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from air.cli.main import main


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    numbers = [*range(20), 3]  # one question twice
    data = [
        {"question": f"What is {n} and one?", "answer": n + 1, "part": "train"} for n in numbers
    ]
    data[-1]["part"] = "test"
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in data))
    return path


def test_rows_are_listed_with_their_splits_and_leaks(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tasks", f"rows:{rows}#splits.field=part", "--limit", "2"]) == 0
    shown = capsys.readouterr().out
    assert "train       20    95.2%" in shown
    assert "leakage: 1 questions of validation are also in training, and 0 almost" in shown
    assert f"{rows}:21 ~ {rows}:4 (1.00): What is 3 and one?" in shown
    assert shown.count("What is") == 3


def test_rows_are_filtered_and_written_without_what_leaks(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "splits"
    flags = ["--where", "answer=1,2,4", "--without-leaks", "--to", str(to)]
    assert main(["tasks", "rows", f"{rows}#splits.field=part", *flags]) == 0
    assert "leakage: 0 questions" in capsys.readouterr().out
    written = {
        split: [
            json.loads(line)["answer"] for line in (to / f"{split}.jsonl").read_text().splitlines()
        ]
        for split in ("train", "validation")
    }
    assert written == {"train": [1, 2], "validation": [4]}


MIXED = [
    {"question": "What is two and two?", "answer": "4", "level": 1, "part": "train"},
    {"question": "What is three and three?", "answer": "6", "level": 2, "part": "train"},
    {"question": "Who wrote Faust?", "answer": "Goethe", "level": 1, "part": "test"},
    {
        "messages": [{"role": "user", "content": "what is TWO and two"}],
        "answer": "4",
        "level": 1,
        "part": "test",
    },
]
"""Questions, and a conversation that is one of them in other letters."""


@pytest.mark.parametrize("suffix", ["json", "jsonl", "parquet"])
def test_each_kind_of_file_is_listed_filtered_and_split_alike(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, to = tmp_path / f"rows.{suffix}", tmp_path / "splits"
    if suffix == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(every_column()), path)
    else:
        rows = [json.dumps(row) for row in MIXED]
        path.write_text("\n".join(rows) if suffix == "jsonl" else f"[{','.join(rows)}]")
    task = f"rows:{path}#splits.field=part"
    assert main(["tasks", task, "--where", "level=1", "--without-leaks", "--to", str(to)]) == 0
    assert "leakage: 0 questions" in capsys.readouterr().out
    written = {
        split: [json.loads(line) for line in (to / f"{split}.jsonl").read_text().splitlines()]
        for split in ("train", "validation")
    }
    assert written == {"train": [], "validation": MIXED[2:]}
    assert main(["tasks", task]) == 0
    shown = capsys.readouterr().out
    assert "leakage: 1 questions of validation are also in training, and 0 almost" in shown
    assert "What is three and three?" in shown
    assert "Who wrote Faust?" in shown


def every_column() -> list[dict[str, object]]:
    """The rows with all columns, as Parquet has them: a field that a row lacks is null there."""
    columns = dict.fromkeys(key for row in MIXED for key in row)
    return [{key: row.get(key) for key in columns} for row in MIXED]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--limit", "-1"], "--limit: must be 0 or more"),
        (["--where", "part"], "--where: must be FIELD=VALUE"),
        (["--where", "no=1"], "has no field `no`"),
    ],
)
def test_a_wrong_flag_is_named(
    rows: Path, flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tasks", "rows", str(rows), *flags]) == 2
    assert words in capsys.readouterr().err
