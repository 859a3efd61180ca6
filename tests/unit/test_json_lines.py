"""JSON of files that Python's parser refuses in one of several ways."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from air import json_lines
from air.errors import ConfigError
from air.integrity.gate import run as gate
from air.manual.world_session import call_of

FAULTY = {
    "cut": "[",
    "deep": "[" * 100_000,
    "deep and whole": "[" * 100_000 + "]" * 100_000,
    "long number": "1" + "0" * 5_000,
    "cut text": '"\\ud800',
}


@pytest.fixture(params=FAULTY)
def faulty(request: pytest.FixtureRequest) -> str:
    return FAULTY[request.param]


def test_what_the_parser_refuses_is_a_value_error(faulty: str) -> None:
    for text in (faulty, faulty.encode()):
        with pytest.raises(ValueError, match=r"."):
            json_lines.decode(text)
    assert json_lines.parsed(faulty.encode()) is None


def test_the_line_of_a_file_is_named(tmp_path: Path, faulty: str) -> None:
    file = tmp_path / "a.jsonl"
    for before in ("", "{}\n\n"):
        file.write_text(before + faulty + "\n{}\n")
        where = rf"a\.jsonl:{1 + before.count(chr(10))}: not JSON"
        for read in (json_lines.read, json_lines.entries):
            with pytest.raises(ConfigError, match=where):
                list(read(file))


def test_one_list_is_read_as_its_entries(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps([1, {"a": 2}], indent=1))
    assert list(json_lines.entries(file)) == [(f"{file}[0]", 1), (f"{file}[1]", {"a": 2})]


def test_a_file_that_is_no_report_is_named(tmp_path: Path, faulty: str) -> None:
    (tmp_path / "report.json").write_text(faulty)
    with pytest.raises(ConfigError, match=r"report\.json: is no report"):
        gate.read(tmp_path / "report.json")


def test_a_call_with_faulty_arguments_is_refused(faulty: str) -> None:
    with pytest.raises(ValueError, match="no JSON object"):
        call_of(f"look {faulty}")
