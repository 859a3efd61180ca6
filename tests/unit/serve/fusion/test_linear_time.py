"""Graders of SandboxFusion's datasets, given completions that a model has made as slow to read as it can."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from air.serve.fusion.datasets.asserts import _END_OF_FUNCTION, _FUTURE
from air.serve.fusion.datasets.auto_eval import joined, one_go_file
from air.serve.fusion.datasets.common_oj import equal
from air.serve.fusion.datasets.extraction import (
    extract,
    extract_heuristic_code,
    without_entry_point,
)

PIECES = [
    *("\n", " ", "\n ", "\n\t\r", "```\n", "`", "(", ")", ";", '"', "1", "_", "@\n", "\x1c"),
    *("import (\n", "import (", "import ", "import\n", 'import "', 'import ""\n', 'import a "b"\n'),
    *("package ", "package\n", "package a\n", "package main", "import a ", "import\n\n"),
    *("select\n", "select ", "with ", "select 1;\n", "def a ", "class \n", "int main("),
    *("from __future__ import a\n", "#<INSERT>", "if __name__ ==", "# Example usage", "<?"),
]
"""Texts that a completion repeats."""
LENGTH = 1 << 15
SECONDS = 1.0
"""The processor time that reading one completion may take. It takes 0.01 s; with `\\s*` at the beginning of
a pattern, 17 s."""


def _go(text: str) -> object:
    return one_go_file(joined(text, "x", quoted=False))


def _asserts(text: str) -> object:
    return _FUTURE.findall(text), _FUTURE.sub("", text), _END_OF_FUNCTION.split(text, maxsplit=1)


def _extracted(language: str) -> Callable[[str], object]:
    def use(text: str) -> object:
        return without_entry_point(extract(text, language, [])[0] or text, language)

    return use


USES: dict[str, Callable[[str], object]] = {
    **{name: _extracted(name) for name in ("python", "sql", "bash", "cpp", "go")},
    "go file": _go,
    "asserts": _asserts,
    "online judge": lambda text: equal(text, f"{text}1"),
}


@pytest.mark.parametrize("name", USES)
def test_a_completion_is_read_in_linear_time(name: str) -> None:
    slow = {}
    for piece in PIECES:
        text = piece * (LENGTH // len(piece))
        began = time.thread_time()
        USES[name](text)
        if (seconds := time.thread_time() - began) > SECONDS:
            slow[piece] = seconds
    assert not slow


def test_a_megabyte_of_line_breaks_is_no_query() -> None:
    assert extract_heuristic_code("\n" * (1 << 20) + "x", "sql") == []
    assert one_go_file("\n" * (1 << 20)) == "\n" * (1 << 20)
    assert one_go_file("import (\n" * (1 << 17)) == "import (\n" * (1 << 17)


def test_queries_are_found_as_before() -> None:
    text = (
        "Look:\n\n  SELECT a\nfrom b;\nwith c as (\n select 1)\n; select 2;\n\tselect 3\n\nselects"
    )
    found = [block.code.strip() for block in extract_heuristic_code(text, "sql")]
    assert found == ["SELECT a\nfrom b", "with c as (\n select 1)", "select 3\n\nselects"]


GO = """package main

import (
    "fmt"
    m "math"
)

func a() { fmt.Println(m.Pi) }
  package main
import "os"
import ( "fmt"; )
import s "strings"
import (
    "bad
"""


def test_the_clauses_of_go_files_are_merged() -> None:
    lines = [line for line in one_go_file(GO).split("\n") if line.strip()]
    assert lines == [
        "package main",
        *('import "fmt"', 'import m "math"', 'import "fmt";', 'import "os"', 'import s "strings"'),
        "func a() { fmt.Println(m.Pi) }",
        *("import (", '    "bad'),
    ]
