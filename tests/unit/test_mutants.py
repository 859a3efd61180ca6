"""The table of mutants fits the source and the tests as they are now; `make mutants` plays it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from air.sandbox.process import namespaces
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
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) > 60
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


def test_every_test_that_is_named_exists() -> None:
    playable = [m for m in MUTANTS if not m.root or namespaces.found().mode == "root"]
    named = {test for m in playable for test in (*m.tests, m.still) if test}
    files = sorted({test.partition("::")[0] for test in named})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    there = set(done.stdout.splitlines())
    functions = {name.partition("[")[0] for name in there}
    assert named <= there | functions
