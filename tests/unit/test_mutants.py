"""The table of mutants fits the source and the tests as they are now; `make mutants` plays it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants import Mutant, table

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = table()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_still_applies(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    changed = mutant.applied(source)
    assert changed != source
    ast.parse(changed)


def test_names_are_told_apart() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) > 50
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


def test_every_test_that_is_named_exists() -> None:
    """By file and function; that its parameters exist, `make mutants` sees before it plays."""
    named = {test for m in MUTANTS for test in (*m.tests, m.still) if test}
    functions = {test.partition("[")[0] for test in named}
    assert functions <= {
        f"{file}::{node.name}"
        for file in {function.partition("::")[0] for function in functions}
        for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
