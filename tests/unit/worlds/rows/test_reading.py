"""Rows are read from JSON, JSON lines and Parquet; errors name the file, the row, the key and the remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from air.errors import ConfigError, MissingError
from air.worlds.rows.reading import read

ROWS = [
    {"question": "2 + 2?", "answer": 4},
    {"question": "Capital?", "answer": ["Paris"], "level": "a"},
]


def written(folder: Path, suffix: str, rows: Any = ROWS) -> Path:
    path = folder / f"rows{suffix}"
    if suffix == ".parquet":
        columns = [{**row, "answer": json.dumps(row["answer"])} for row in rows]
        parquet.write_table(pyarrow.Table.from_pylist(columns, pyarrow.schema(
            [("question", pyarrow.string()), ("answer", pyarrow.string()), ("level", pyarrow.string())]
        )), path)  # fmt: skip
    elif suffix == ".json":
        path.write_text(json.dumps(rows), "utf-8")
    else:
        path.write_text("".join(f"{json.dumps(row)}\n\n" for row in rows), "utf-8")
    return path


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet"])
def test_each_kind_of_file_gives_the_same_rows(suffix: str, tmp_path: Path) -> None:
    rows = read(written(tmp_path, suffix)).rows
    assert [row.question for row in rows] == ["2 + 2?", "Capital?"]
    assert [sorted(row.fields) for row in rows] == [
        ["answer", "question"],
        ["answer", "level", "question"],
    ]
    places = [":1", ":3"] if suffix == ".jsonl" else ["[0]", "[1]"]
    assert [row.where for row in rows] == [f"{tmp_path}/rows{suffix}{place}" for place in places]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = written(tmp_path, ".jsonl")
    first = read(path)
    assert read(path) is first
    again = read(written(tmp_path, ".jsonl", ROWS[:1]))
    assert len(again.rows) == 1
    assert again.digest != first.digest


@pytest.mark.parametrize(
    ("messages", "question"),
    [
        ([{"role": "user", "content": "2 + 2?"}], "2 + 2?"),
        ([{"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]}], "2 + 2?"),
        (
            [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2 + 2?"}],
            "System: Be short.\n\nUser: 2 + 2?",
        ),
    ],
)
def test_a_conversation_is_a_question(messages: Any, question: str, tmp_path: Path) -> None:
    path = written(tmp_path, ".jsonl", [{"messages": messages, "answer": 4}])
    assert read(path).rows[0].question == question


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[1]", r"rows.jsonl:1: a row must be an object, not \[1\]"),
        ("{", "rows.jsonl:1: not JSON"),
        ("[" * 100_000, "rows.jsonl:1: not JSON"),
        ('{"answer": 4}', "rows.jsonl:1: the row has no `question` — give each row a text"),
        ('{"question": "a", "messages": []}', "has both `question` and `messages`"),
        ('{"question": " "}', "`question` must be a text that is not empty, got ' ' — correct or remove"),
        ('{"question": 3}', "`question` must be a text"),
        ('{"messages": "a"}', "`messages` must be a list"),
        ('{"messages": [{"role": "tool", "content": "a"}]}', "`messages.0` needs a \"role\""),
        ('{"messages": [{"role": "user", "content": ""}]}', "`messages.0.content` must be a text"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "only parts of the type"),
        # The answer is often the assistant's last message.
        ('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "SECRET"}]}',
         "`messages.1.role` must be `user`, got 'assistant'"),
        (json.dumps({"question": "a" * 20_001}), "has 20001 characters, more than 20000"),
    ],
)  # fmt: skip
def test_a_malformed_row_is_refused(line: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(line)
    with pytest.raises(ConfigError, match=words) as caught:
        read(path)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("rows.csv", b"a", "no file of rows — its name must end in .json, .jsonl, .parquet"),
        ("rows.json", b"{}", "holds no list"),
        ("rows.json", b"[", "not JSON"),
        ("rows.json", b"[]", "has no rows"),
        ("rows.jsonl", b"\xff", "not UTF-8"),
        ("rows.parquet", b"PAR1", "not Parquet"),
    ],
)
def test_a_malformed_file_is_refused(name: str, data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=f"{name}: {words}"):
        read(tmp_path / name)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"no.jsonl: no such file"):
        read(tmp_path / "no.jsonl")


def test_half_a_character_never_reaches_a_prompt(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "a\\ud800b"}')
    assert read(path).rows[0].question == "a?b"
